"""The command blocks of the documents for operators, and how each is tested.

The line before a block says it, as a comment that readers do not see:

| comment | the block |
|---|---|
| `<!-- test: STACK [SETUP] -->` | is run on that stack, after the setup of that name |
| `<!-- test: kubernetes OVERLAY -->` | is run on a cluster that only checks (`tests.support.cluster`) |
| `<!-- test: by FILE::TEST -->` | has a test of its own, named from the folder of the tests |

`; expect TEXT` at its end: the output has that text. `; then SERVICE=N …`: so many containers of these services run
afterwards.
"""

import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.processes import ROOT

DOCUMENTS = ("deploy/README.md", "README.md", "docs/operations.md", "docs/runbook.md")
"""In the order in which their blocks are run: the first one starts the stack of Compose."""
COMMANDS = {"sh", "sql", ""}
"""The languages of command blocks. One without a language is none unless a comment says how it is tested."""
_BLOCK = re.compile(
    r"^(?:<!-- test: (?P<test>.*?) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_INLINE = re.compile(r"(?<!`)`((?:docker compose|kubectl|kustomize|plugins-mcp|dialog-engine|make) [^`]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """One command block. `stack` is "by" for one with a test of its own; empty: nothing says how it is tested."""

    document: str
    line: int
    language: str
    text: str
    stack: str = ""
    setup: str = ""
    expected: str = ""
    containers: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.document}:{self.line}"


def blocks() -> list[Block]:
    """Those of all documents, in the order in which they are run."""
    return [block for document in DOCUMENTS for block in _blocks(document, (ROOT / document).read_text())]


def _blocks(document: str, text: str) -> Iterator[Block]:
    for found in _BLOCK.finditer(text):
        language, test = found["language"], found["test"] or ""
        if language not in COMMANDS or not (language or test):
            continue
        where, _, rest = test.partition("; ")
        stack, _, setup = where.partition(" ")
        fields = dict(re.findall(r"(expect|then) ((?:(?!; then|; expect).)+)", rest))
        containers = [each.split("=") for each in fields.get("then", "").split()]
        yield Block(
            document, text.count("\n", 0, found.start("language")) + 1, language, found["text"], stack, setup,
            fields.get("expect", ""), tuple((service, int(count)) for service, count in containers),
        )  # fmt: skip


def inline_commands() -> list[tuple[str, str]]:
    """The commands within sentences: where, and the command."""
    return [
        (document, command)
        for document in DOCUMENTS
        for command in _INLINE.findall(re.sub(r"```.*?```", "", (ROOT / document).read_text(), flags=re.DOTALL))
    ]


def clone(folder: Path) -> Path:
    """A copy of what is tracked, and what will be, as somebody gets it who clones the repository."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    there = b"\0".join(name for name in done.stdout.split(b"\0") if name and (ROOT / name.decode()).is_file())
    folder.mkdir(parents=True)
    tar = ["tar", "--null", "--files-from=-", "--create", "--file=-"]
    packed = subprocess.run(tar, cwd=ROOT, input=there, capture_output=True, check=True)
    subprocess.run(["tar", "--extract", "--file=-"], cwd=folder, input=packed.stdout, check=True)
    return folder


@dataclass
class Shell:
    """Where somebody types one block after the other: what a block sets, the next one has."""

    folder: Path
    env: dict[str, str]
    places: Mapping[str, str] = field(default_factory=dict[str, str])
    """What is elsewhere on this machine, such as the port, and where."""
    variables: dict[str, str] = field(default_factory=dict[str, str])

    def run(self, text: str, timeout: float = 500) -> str:
        """Its output. Fails with it when a command does."""
        for there, here in self.places.items():
            text = text.replace(there, here)
        state = self.folder.parent / f"{self.folder.name}.state"
        state.touch()
        given = "\n".join(f"{name}={shlex.quote(value)}" for name, value in self.variables.items())
        script = f"set -a\n. {state}\n{given}\nset -euo pipefail\ntrap 'export -p > {state}' EXIT\n{text}"
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        self.variables = {}
        assert done.returncode == 0, f"{text}\nexit {done.returncode}\n{done.stdout[-6000:]}"
        return done.stdout
