"""The Helm chart is made of the manifests for kustomize, and its default values give what kustomize gives."""

import json
import re
import shutil
import subprocess
from functools import cache
from typing import Any

import pytest

from deploy import helm_chart
from deploy.check import OVERLAYS, parsed
from tests.support.processes import ROOT

SIZES = sorted(overlay.name for overlay in OVERLAYS.iterdir())
SETTINGS = "callstream/settings"
Resources = dict[str, dict[str, Any]]


@cache
def chart() -> dict[str, str]:
    return helm_chart.chart()


@cache
def from_kustomize(size: str) -> Resources:
    return helm_chart.resources_of(OVERLAYS / size)


def named(text: str) -> Resources:
    """The resources by kind and name, without the digest of the settings, which kustomize has in names."""
    found: Resources = {}
    for each in filter(None, parsed(text)):
        annotations = each.get("spec", {}).get("template", {}).get("metadata", {}).get("annotations", {})
        if annotations.pop(SETTINGS, None) is not None and not annotations:
            del each["spec"]["template"]["metadata"]["annotations"]
        found[f"{each['kind'].lower()}-{each['metadata']['name']}"] = each
    return found


def rendered(template: str, values: dict[str, Any], size: str) -> str:
    """The template with these values, by the few actions that the chart has."""
    if condition := re.search(r"^\{\{- if (.*) \}\}\n", template, re.MULTILINE):
        if f'"{size}"' not in condition[1] and "eq .Values.size" in condition[1]:
            return ""
        template = template.replace(condition[0], "").removesuffix("{{- end }}\n")

    def value(path: str) -> Any:
        found: Any = values
        for name in path.split("."):
            found = found[name]
        return found

    text = re.sub(r"\{\{- toYaml \.Values\.([\w.]+) \| nindent 2 \}\}", lambda m: json.dumps(value(m[1])), template)
    text = re.sub(r"\{\{ toJson \.Values\.([\w.]+) \}\}", lambda m: json.dumps(value(m[1])), text)
    text = re.sub(r"\{\{ tuple [^}]*sha256sum \}\}", "digest", text)
    text = re.sub(r"\{\{ \.Values\.([\w.]+) \}\}", lambda m: str(value(m[1])), text)
    return text.replace('{{ "{{" }}', "\0").replace('{{ "}}" }}', "}}").replace("\0", "{{")


def test_the_chart_is_that_of_todays_manifests() -> None:
    there = {path: (helm_chart.CHART / path).read_text() for path in helm_chart.existing()}

    assert there == chart(), "python -m deploy.helm_chart"


@pytest.mark.parametrize("size", SIZES)
def test_the_default_values_give_what_kustomize_gives(size: str) -> None:
    files = chart()
    [values] = parsed(files["values.yaml"])
    templates = [text for path, text in files.items() if path.startswith("templates/")]

    texts = [rendered(template, values, size) for template in templates]

    assert named("\n---\n".join(texts)) == from_kustomize(size)


@pytest.mark.skipif(shutil.which("helm") is None, reason="there is no helm on this machine")
@pytest.mark.parametrize("size", SIZES)
def test_helm_gives_what_kustomize_gives(size: str) -> None:
    command = ["helm", "template", "callstream", helm_chart.CHART, "--set", f"size={size}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    assert named(done.stdout) == from_kustomize(size)


def test_pods_are_replaced_when_a_setting_changes() -> None:
    for path, text in chart().items():
        if "deployment" in path:
            part = "engine" if "engine" in path else "worker"
            assert f"{SETTINGS}: {{{{ tuple .Values.{part} .Values.redis | toJson | sha256sum }}}}" in text
