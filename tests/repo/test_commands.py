"""The commands of the documents: every block has its test, and those of Kubernetes are checked here, offline."""

import json
import os
import re
import shlex
import stat
import sys
from functools import cache
from pathlib import Path

import pytest

from deploy.check import OVERLAYS, built
from tests.drill.faults import FAULTS
from tests.marks import exhaustive, promise
from tests.support.cluster import check
from tests.support.documents import Shell, blocks, clone, inline_commands
from tests.support.processes import ROOT

STACKS = {"product", "compose", "secrets", "move", "kubernetes", "by"}
PROGRAMS = ("kubectl", "kustomize", "docker", "redis-cli")
ENGINE_COMMANDS = ROOT / "services" / "dialog-engine" / "src" / "dialog_engine" / "operators" / "commands.py"


@promise("every block of commands in the documents for operators is run by a test")
def test_every_block_of_commands_says_how_it_is_tested() -> None:
    assert [block.name for block in blocks() if block.stack not in STACKS] == []


def test_a_block_with_a_test_of_its_own_names_one_that_is_there() -> None:
    for block in blocks():
        if block.stack == "by":
            file, _, test = block.setup.partition("::")
            assert re.search(rf"^(async )?def {test}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE), block.name


def test_a_command_within_a_sentence_is_one_of_a_tested_block() -> None:
    tested = [" ".join(block.text.split()) for block in blocks()]
    programs = re.findall(r'commands\.add_parser\("([\w-]+)"', ENGINE_COMMANDS.read_text())
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    unknown = list[str]()
    for document, command in inline_commands():
        program, first, *_ = shlex.split(command.replace("…", "x"))
        match program:
            case "make":
                known = first in targets
            case "dialog-engine":
                known = first in programs
            case "plugins-mcp":
                known = first in ("dead", "tools", "servers", "check")
            case _:
                known = any(" ".join(command.split()) in text for text in tested)
        if not known:
            unknown.append(f"{document}: {command}")
    assert unknown == []


def test_every_command_of_the_drill_is_one_of_the_documents() -> None:
    lines = re.findall(r"^(\S.*?)(?: +# (.*))?$", "\n".join(block.text for block in blocks()), re.MULTILINE)
    known = {re.sub(" FILE=.*", "", command) for command, _ in lines}
    # `docker compose start worker   # or engine, redis` is three commands.
    known |= {
        f"{command.rpartition(' ')[0]} {other}" for command, note in lines for other in re.findall(r"[\w-]+", note)
    }
    texts = "\n".join(block.text for block in blocks())
    steps = {re.sub(" FILE=.*", "", step) for fault in FAULTS.values() for step in fault.steps}
    assert {step for step in steps if step not in texts} - known == set()


@cache
def objects_of(overlay: str) -> str:
    return "".join(json.dumps(each) + "\n" for each in built(OVERLAYS / overlay))


def cluster(folder: Path, overlay: str) -> Shell:
    """A shell whose kubectl reaches a cluster that only checks (`tests.support.cluster`)."""
    programs = folder / "bin"
    programs.mkdir()
    for name in PROGRAMS:
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.support.cluster {name} "$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    objects = folder / "objects.jsonl"
    objects.write_text(objects_of(overlay))
    env = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(folder),
        "PYTHONPATH": str(ROOT),
        "CLUSTER_OBJECTS": str(objects),
        "REDIS_ADMIN_URL": "redis://admin@redis",
    }
    return Shell(clone(folder / "clone"), env)


@exhaustive("25 s of processor: the tests below check commands that are wrong in the same cluster")
@promise("every block of commands in the documents for operators is run by a test")
@pytest.mark.parametrize("overlay", ["scale", "small"])
def test_the_commands_for_kubernetes_name_what_is_there(tmp_path: Path, overlay: str) -> None:
    shell = cluster(tmp_path, overlay)
    ran = 0
    for block in blocks():
        if (block.stack, block.setup) == ("kubernetes", overlay):
            output = shell.run(f"cd {shell.folder}\n{block.text}", timeout=100)
            assert block.expected in output, block.name
            ran += 1
    assert ran > 1


@pytest.mark.parametrize(
    "wrong",
    [
        "kubectl -n callstream scale deployment/callstream-engines --replicas=0",
        "kubectl -n callstream scale deployment/callstream-engine --replica=0",
        "kubectl scale deployment/callstream-engine --replicas=0",
        "kubectl -n callstream create job x --from=cronjob/callstream-back",
        "kubectl -n callstream get pods -l app.kubernetes.io/name=callstream-workers",
        "kubectl -n callstream exec deployment/callstream-worker -- plugins-mcp tools accepts demo",
        "kubectl -n callstream exec deployment/callstream-engine -- dialog-engine back-up",
        "kubectl -n callstream exec deployment/callstream-engine -c operators -- dialog-engine subjects",
        "kustomize edit set image engine=x:1",
    ],
)
def test_a_wrong_command_for_kubernetes_is_refused(tmp_path: Path, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = tmp_path / "objects.jsonl"
    objects.write_text(objects_of("scale"))
    monkeypatch.setenv("CLUSTER_OBJECTS", str(objects))
    with pytest.raises(SystemExit, match="the cluster refuses it"):
        check(*shlex.split(wrong))
