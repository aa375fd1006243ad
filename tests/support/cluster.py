"""A Kubernetes cluster that only checks: kubectl, kustomize, docker and redis-cli for the commands of the documents.

`python -m tests.support.cluster PROGRAM ARGUMENT…`; CLUSTER_OBJECTS names the file of what is there, a line for each.
kubectl's own parser checks the options, the objects are those that kustomize builds, each validated as `deploy.check`
does it, and what runs in a container is read by the parser of that program. Exit code 1, with the reason, for whatever
a cluster would refuse.
"""

import base64
import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import yaml

from deploy.check import built, problems

# What takes long to import is imported where it is needed: each command is a process.

KUBECTL = Path(sys.executable).with_name("kubectl")
KINDS = {
    "deployment": "Deployment", "statefulset": "StatefulSet", "cronjob": "CronJob", "job": "Job", "secret": "Secret",
    "persistentvolumeclaim": "PersistentVolumeClaim", "scaledobject": "ScaledObject",
}  # fmt: skip


def check(program: str, *argv: str) -> None:
    """Check one command.

    Raises:
        SystemExit: a cluster would refuse it, for the reason that it has.
    """
    match program:
        case "kubectl":
            _kubectl([*argv])
        case "kustomize":
            _set_images([*argv])
        case "docker" if argv[:1] == ("build",):
            dockerfile = Path(argv[argv.index("-f") + 1])
            if not dockerfile.is_file():
                _refuse(f"there is no {dockerfile}")
        case "docker" if argv[:1] == ("push",) and len(argv) == 2:
            pass
        case "redis-cli" if "FLUSHDB" in argv:
            pass
        case _:
            _refuse(f"{program} {' '.join(argv)} is not known here")


def _kubectl(argv: list[str]) -> None:
    own, _, inside = _split(argv)
    # The parser of kubectl refuses unknown options before it prints its help.
    done = subprocess.run([KUBECTL, *own, "--help"], capture_output=True, text=True, check=False)
    if done.returncode:
        _refuse(done.stderr)
    if own[:2] == ["-n", "callstream"]:
        own = own[2:]
    elif own[0] not in ("apply", "create"):
        _refuse("it names no namespace: -n callstream")
    command, *rest = own
    if command == "apply":
        _apply(Path(rest[rest.index("-k") + 1]))
        return
    if rest[:1] == ["namespace"]:
        return
    if command == "create" and rest[:1] == ["-f"]:
        _create_all(sys.stdin.read())
        return
    if rest[:1] == ["job"]:
        _exists("CronJob", _value(rest, "--from").removeprefix("cronjob/"))
        _created({"kind": "Job", "metadata": {"name": rest[1]}})
        return
    if selector := _value(rest, "-l"):
        _selects(selector)
        return
    names = [part for part in rest if re.fullmatch(rf"({'|'.join(KINDS)})/[\w-]+", part)]
    if rest[0] in KINDS:
        names.append(f"{rest[0]}/{rest[1]}")
    if not names:
        _refuse("it names no object")
    found = [_exists(KINDS[kind], name) for kind, name in (each.split("/") for each in names)]
    if command == "exec":
        if (name := _value(rest, "-c")) and name not in [each["name"] for each in _pod(found[0])["containers"]]:
            _refuse(f"the pod has no container {name}")
        _inside(inside)
    if path := _value(rest, "-o"):
        key = path.removeprefix("jsonpath={.data.").removesuffix("}").replace("\\.", ".")
        sys.stdout.write(base64.b64encode(found[0]["stringData"][key].encode()).decode())
    if command == "attach" and not sys.stdin.read():
        _refuse("nothing is on its standard input")


def _split(argv: list[str]) -> tuple[list[str], str, list[str]]:
    if "--" not in argv:
        return argv, "", []
    at = argv.index("--")
    return argv[:at], "--", argv[at + 1 :]


def _value(argv: list[str], option: str) -> str:
    """The value of an option, in either form; '' without it."""
    for at, each in enumerate(argv):
        if each.startswith(f"{option}="):
            return each.partition("=")[2]
        if each == option:
            return argv[at + 1]
    return ""


def _apply(folder: Path) -> None:
    there = _objects()
    for resource in built(folder):
        if resource not in there:  # what has not changed is valid: tests/repo/test_kubernetes.py
            _valid(resource)


def _create_all(text: str) -> None:
    for resource in yaml.safe_load_all(text):
        _valid(resource)
        _created(resource)


def _valid(resource: dict[str, Any]) -> None:
    for problem in problems(resource):
        _refuse(f"{resource['kind']} {resource['metadata']['name']}: {problem}")


def _set_images(argv: list[str]) -> None:
    """`kustomize edit set image NAME=IMAGE:TAG …` in the folder of a kustomization."""
    if argv[:3] != ["edit", "set", "image"]:
        _refuse(f"kustomize {' '.join(argv)} is not known here")
    wanted = [each.partition("=")[::2] for each in argv[3:]]
    for name, _ in wanted:
        if not any(name == container["image"].partition(":")[0] for container in _containers()):
            _refuse(f"no container has the image {name}")
    file = Path("kustomization.yaml")
    kustomization = yaml.safe_load(file.read_text())
    for name, image in wanted:
        new, _, tag = image.rpartition(":")
        kustomization.setdefault("images", []).append({"name": name, "newName": new, "newTag": tag})
    file.write_text(yaml.safe_dump(kustomization))


def _containers() -> list[dict[str, Any]]:
    return [container for each in _objects() for container in _pod(each).get("containers", [])]


def _pod(resource: dict[str, Any]) -> dict[str, Any]:
    return resource.get("spec", {}).get("template", {}).get("spec", {})


def _inside(argv: list[str]) -> None:
    """What runs in a container: an operator's command, which its parser must know."""
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            match argv:
                case ["dialog-engine", *rest]:
                    from dialog_engine.operators.commands import read_arguments as engine  # noqa: PLC0415

                    engine(rest)
                    sys.stdout.write("what it prints\n")
                case ["plugins-mcp", *rest]:
                    from plugins_mcp.operators.arguments import read_arguments as worker  # noqa: PLC0415

                    worker(rest)
                case _:
                    _refuse(f"{argv} is not known here")
        except SystemExit:
            _refuse(errors.getvalue())


def _exists(kind: str, name: str) -> dict[str, Any]:
    for each in _objects():
        claims = [
            f"{template['metadata']['name']}-{each['metadata']['name']}-0"
            for template in each.get("spec", {}).get("volumeClaimTemplates", [])
        ]
        named = (each["kind"], each["metadata"]["name"]) == (kind, name)
        if named or (kind == "PersistentVolumeClaim" and name in claims):
            return each
    return _refuse(f"there is no {kind} {name}")


def _selects(selector: str) -> None:
    label, _, value = selector.partition("=")
    templates = [each.get("spec", {}).get("template", {}).get("metadata", {}) for each in _objects()]
    if not any(value == template.get("labels", {}).get(label) for template in templates):
        _refuse(f"no pod has the label {selector}")


def _objects() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(os.environ["CLUSTER_OBJECTS"]).read_text().splitlines()]


def _created(resource: dict[str, Any]) -> None:
    with Path(os.environ["CLUSTER_OBJECTS"]).open("a") as file:
        file.write(json.dumps(resource) + "\n")


def _refuse(reason: str) -> NoReturn:
    sys.exit(f"the cluster refuses it: {reason.strip()}")


if __name__ == "__main__":
    check(*sys.argv[1:])
