"""Makes the Helm chart of the manifests for kustomize: `python -m deploy.helm_chart`.

Both overlays are built; a resource that both have is a template once, any other is a template for its `size`. What the
documents say to change in the manifests is a value of the chart, whose default is what the manifests have.
"""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from callstream_runtime.version import __version__
from deploy.check import OVERLAYS, Resource, built, parsed

CHART = Path(__file__).parent / "helm" / "callstream"
HEADER = "# Made of deploy/k8s by `python -m deploy.helm_chart`: change those files, not this one.\n"
_CONFIG_NAMES = re.compile(r"\b(callstream-(?:redis|engine|worker|mcp))-[a-z0-9]{10}\b")
_COMPONENTS = {
    "ScaledObject": "autoscaling",
    "TriggerAuthentication": "autoscaling",
    "PrometheusRule": "monitoring",
    "ServiceMonitor": "monitoring",
    "Ingress": "ingress",
}
"""The values that leave out what a cluster does not have."""
_SETTINGS = {"callstream-engine": "engine.settings", "callstream-worker": "worker.settings"}
_DIGEST = "{{ tuple %s | toJson | sha256sum }}"


def chart() -> dict[str, str]:
    """The files of the chart, by their paths in it."""
    sizes = {overlay.name: resources_of(overlay) for overlay in sorted(OVERLAYS.iterdir())}
    files = {
        "Chart.yaml": HEADER
        + _dumped(
            {
                "apiVersion": "v2",
                "name": "callstream",
                "description": "A chat backend whose tool calls survive",
                "type": "application",
                "version": __version__,
                "appVersion": __version__,
            }
        ),
        "values.yaml": HEADER + _dumped(_values(sizes)),
    }
    for size, resources in sizes.items():
        for name, resource in resources.items():
            everywhere = all(others.get(name) == resource for others in sizes.values())
            path = f"templates/{name}.yaml" if everywhere else f"templates/{size}/{name}.yaml"
            conditions = [] if everywhere else [f'eq .Values.size "{size}"']
            if component := _COMPONENTS.get(resource["kind"]):
                conditions.append(f".Values.{component}.enabled")
            files[path] = HEADER + _conditional(_template(resource), conditions)
    return files


def resources_of(overlay: Path) -> dict[str, Resource]:
    """The resources of an overlay by kind and name, without the namespace and the digests in names of ConfigMaps."""
    text = _CONFIG_NAMES.sub(r"\1", yaml.dump_all(built(overlay), Dumper=yaml.CSafeDumper, sort_keys=False))
    text = re.sub(r"image: callstream-(engine|worker)$", r"image: callstream-\1:latest", text, flags=re.MULTILINE)
    found: dict[str, Resource] = {}
    for each in parsed(text):
        if each["kind"] != "Namespace":
            each["metadata"].pop("namespace", None)
            found[f"{each['kind'].lower()}-{each['metadata']['name']}"] = each
    return found


def _values(sizes: dict[str, dict[str, Resource]]) -> dict[str, Any]:
    scale = sizes["scale"]
    [rule] = scale["ingress-callstream"]["spec"]["rules"]
    return {
        "size": "scale",
        "engine": {
            "image": "callstream-engine:latest",
            "replicas": scale["deployment-callstream-engine"]["spec"]["replicas"],
            "settings": scale["configmap-callstream-engine"]["data"],
        },
        "worker": {
            "image": "callstream-worker:latest",
            "settings": scale["configmap-callstream-worker"]["data"],
            "mcp": scale["configmap-callstream-mcp"]["data"]["mcp.json"],
        },
        "redis": {"address": scale["configmap-callstream-redis"]["data"]["REDIS_ADDRESS"]},
        "autoscaling": {"enabled": True},
        "monitoring": {"enabled": True},
        "ingress": {"enabled": True, "host": rule["host"]},
    }


def _template(resource: Resource) -> str:
    """The resource as a template, with the values in their places."""
    name, kind = resource["metadata"]["name"], resource["kind"]
    holes: dict[str, str] = {}

    def hole(action: str) -> str:
        holes[key := f"hole-{len(holes)}-"] = action
        return key

    resource = copy.deepcopy(resource)
    if kind == "ConfigMap" and name in _SETTINGS:
        resource["data"] = hole(f"{{{{- toYaml .Values.{_SETTINGS[name]} | nindent 2 }}}}")
    elif kind == "ConfigMap" and name == "callstream-mcp":
        resource["data"] = {"mcp.json": hole("{{ toJson .Values.worker.mcp }}")}
    elif name == "callstream-redis" and kind == "ConfigMap" and resource["data"]["REDIS_ADDRESS"] != "redis:6379":
        resource["data"]["REDIS_ADDRESS"] = hole("{{ toJson .Values.redis.address }}")
    elif kind == "Deployment":
        part = name.removeprefix("callstream-")
        if resource["spec"].get("replicas", 1) > 1:
            resource["spec"]["replicas"] = hole(f"{{{{ .Values.{part}.replicas }}}}")
        # Pods are replaced when a setting changes: kustomize does it by the name of the ConfigMap.
        watched = f".Values.{part} .Values.redis"
        annotations = resource["spec"]["template"]["metadata"].setdefault("annotations", {})
        annotations["callstream/settings"] = hole(_DIGEST % watched)
    elif kind == "Ingress":
        host = hole("{{ toJson .Values.ingress.host }}")
        resource["spec"]["rules"][0]["host"] = host
        resource["spec"]["tls"][0]["hosts"] = [host]
    text = _dumped(resource).replace("{{", "\0").replace("}}", '{{ "}}" }}').replace("\0", '{{ "{{" }}')
    for key, action in holes.items():
        text = text.replace(key, action)
    return re.sub(
        r"image: callstream-(engine|worker):latest$", r"image: {{ toJson .Values.\1.image }}", text, flags=re.M
    )


def _conditional(text: str, conditions: list[str]) -> str:
    if not conditions:
        return text
    condition = conditions[0] if len(conditions) == 1 else f"and {' '.join(f'({each})' for each in conditions)}"
    return f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n"


def _dumped(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, width=100_000)


def write(folder: Path = CHART) -> None:
    """Write the chart, and remove what is no longer a part of it."""
    files = chart()
    for path in list(existing(folder)):
        if path not in files:
            (folder / path).unlink()
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def existing(folder: Path = CHART) -> Iterator[str]:
    """The files that are there."""
    return (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    write()
