"""`python -m tests.promises`: the lines of `tests/` by folder and of each promise's tests, and the words of docs.

With `--write` it writes `promises.txt` instead, the list of what is promised, in which a review sees what came or went.
"""

import argparse
import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
LIST = TESTS / "promises.txt"


@dataclass(frozen=True, slots=True)
class Proof:
    """A test with `@promise`, as it is written in its file."""

    promise: str
    test: str
    """`file::function`, from this folder."""
    lines: int
    in_make_test: bool
    """Whether `make test` runs it, or a case of it."""
    only_in_test_all: str
    """Why no test of `make test` proves the promise; empty if one does."""


@cache
def proofs() -> list[Proof]:
    """Every proof of every promise, by file."""
    return [proof for path in sorted(TESTS.rglob("test_*.py")) for proof in _proofs_of(path)]


def _proofs_of(path: Path) -> Iterator[Proof]:
    text = path.read_text()
    if "promise(" not in text:
        return
    module = ast.parse(text)
    marks = [
        node.value for node in module.body if isinstance(node, ast.Assign) and _names(node.targets) == {"pytestmark"}
    ]
    exhaustive = "exhaustive" in _names(marks)
    for node in ast.walk(module):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        calls = [
            (call, call.func.id)
            for call in node.decorator_list
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        ]
        left_out = exhaustive or "exhaustive" in {name for _, name in calls}
        in_make_test = not left_out or "smoke" in _names(node.decorator_list)
        for call, name in calls:
            if name == "promise":
                lines = (node.end_lineno or 0) - node.decorator_list[0].lineno + 1
                reasons = [ast.literal_eval(keyword.value) for keyword in call.keywords]
                test = f"{path.relative_to(TESTS)}::{node.name}"
                yield Proof(ast.literal_eval(call.args[0]), test, lines, in_make_test, "".join(reasons))


def _names(nodes: Iterable[ast.expr]) -> set[str]:
    return {part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name)}


def promised() -> str:
    """What `promises.txt` has to say."""
    return "".join(f"{promise}\n" for promise in sorted({proof.promise for proof in proofs()}))


def lines_by_folder() -> Counter[str]:
    """The lines of Python of each folder; those of files that lie in no folder are under their names."""
    lines = Counter[str]()
    for path in TESTS.rglob("*.py"):
        lines[path.relative_to(TESTS).parts[0]] += len(path.read_text().splitlines())
    return lines


def words_of_documents() -> Counter[str]:
    """The words of the Markdown files of each folder that has documents, and of the README, as `wc -w` counts them."""
    words = Counter[str]()
    for top in ("README.md", "docs", "deploy", "services"):
        root = TESTS.parent / top
        for path in root.rglob("*.md") if root.is_dir() else (root,):
            if "node_modules" not in path.parts:
                words[top] += len(path.read_text().split())
    return words


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.promises", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write promises.txt")
    if parser.parse_args().write:
        LIST.write_text(promised())
        return
    folders = lines_by_folder()
    print("lines of tests:", *(f"{lines:7,} {folder}" for folder, lines in sorted(folders.items())), sep="\n")
    print(f"{folders.total():7,} in all", "", "lines, tests and promise:", sep="\n")
    lines, tests = Counter[str](), Counter[str]()
    for proof in proofs():
        lines[proof.promise] += proof.lines
        tests[proof.promise] += 1
    print(*(f"{count:5} {tests[promise]:3} {promise}" for promise, count in lines.most_common()), sep="\n")
    documents = words_of_documents()
    print("", "words of docs:", *(f"{words:7,} {top}" for top, words in documents.items()), sep="\n")
    print(f"{documents.total():7,} in all")


if __name__ == "__main__":
    main()
