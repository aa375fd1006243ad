"""The command blocks of the documents for operators, and how each is tested.

The line before a block says it, as a comment that readers do not see:

| comment | the block |
|---|---|
| `<!-- test: STACK [SETUP] -->` | is run on that stack, after the setup of that name |
| `<!-- test: kubernetes OVERLAY -->` | is run on a cluster that only checks (`tests.support.cluster`) |
| `<!-- test: by FILE::TEST -->` | has a test of its own, named from the folder of the tests |

`; expect TEXT` at its end: the output has that text. `; then SERVICE=N …`: so many containers of these services run afterwards.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.processes import ROOT

DOCUMENTS = ("deploy/README.md", "README.md", "docs/operations.md", "docs/runbook.md")
"""In the order in which their blocks are run: the first one starts the stack of Compose."""
COMMANDS = {"sh", "sql", ""}
"""The languages of command blocks. One without a language is none unless a comment says how it is tested."""
_BLOCK = re.compile(r"^(?:<!-- test: (?P<test>.*?) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(?<!`)`((?:docker compose|kubectl|kustomize|plugins-mcp|dialog-engine|make) [^`]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """One command block. `stack` is empty when nothing says how it is tested, and "by" for one with a test of its own."""

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
        """Where it is."""
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
            document,
            text.count("\n", 0, found.start("language")) + 1,
            language,
            found["text"],
            stack,
            setup,
            fields.get("expect", ""),
            tuple((service, int(count)) for service, count in containers),
        )


def inline_commands() -> list[tuple[str, str]]:
    """The commands within sentences: where, and the command."""
    return [
        (document, command)
        for document in DOCUMENTS
        for command in _INLINE.findall(re.sub(r"```.*?```", "", (ROOT / document).read_text(), flags=re.DOTALL))
    ]
