"""No regular expression backtracks over a long text: parts of one that repeat cannot share what they match.

Two parts without a limit, next to each other or one inside the other, that match the same characters take quadratic
time or more where the expression fails. Possessive repeats (`*+`) and atomic groups never give back what they match.
"""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

parser: Any = import_module("re._parser")
SERVICES = Path(__file__).parents[2] / "services"
FUNCTIONS = {"compile", "search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer"}
ALPHABET = [chr(code) for code in (*range(256), 0x2028, 0x4E2D)]
UNLIMITED = 1_000
"""From so many repetitions on."""
MAX_PATHS = 500

ALLOWED = [
    r"<redis\.(?:asyncio\.)?client\.Redis\(.*?host=([^,)]+),port=(\d+).*?\)>\)>\)>",  # an error of redis-py
    r" {0,3}(?:#{1,6}[ \t]|([-=*_])(?:[ \t]*\1)*[ \t]*$)|.*-->[ \t]*$",  # 200 characters of a line
]


class Part(NamedTuple):
    """Characters, and whether they repeat without limit and may be given back, and whether they must occur."""

    characters: frozenset[str]
    repeats: bool = False
    required: bool = True


def _characters(operator: Any, argument: Any) -> frozenset[str] | None:
    """What one character may be; None for anything else."""
    match str(operator):
        case "LITERAL":
            return frozenset({chr(argument)})
        case "NOT_LITERAL":
            return frozenset(ALPHABET) - {chr(argument)}
        case "ANY":
            return frozenset(ALPHABET)
        case "IN":
            return frozenset(each for each in ALPHABET if _is_in(argument, each))
        case _:
            return None


def _is_in(items: Any, character: str) -> bool:
    code, negated = ord(character), False
    for operator, argument in items:
        match str(operator):
            case "NEGATE":
                negated = True
            case "LITERAL" if argument == code:
                return not negated
            case "RANGE" if argument[0] <= code <= argument[1]:
                return not negated
            case "CATEGORY":
                escape = {"DIGIT": "d", "SPACE": "s", "WORD": "w"}[str(argument).rsplit("_", 1)[-1]]
                escape = escape.upper() if "_NOT_" in str(argument) else escape
                if re.match(rf"\{escape}", character):
                    return not negated
            case _:
                pass
    return negated


def _paths(items: Any) -> Iterator[list[Part]]:
    """The ways through an expression, each a row of parts. What repeats without limit is there twice."""
    choices = [list(islice(_ways(operator, argument), MAX_PATHS)) for operator, argument in items]
    for choice in islice(product(*choices), MAX_PATHS):
        yield [part for way in choice for part in way]


def _ways(operator: Any, argument: Any) -> Iterator[list[Part]]:
    if (characters := _characters(operator, argument)) is not None:
        yield [Part(characters)]
        return
    match str(operator):
        case "MAX_REPEAT" | "MIN_REPEAT":
            least, most, inner = argument
            single = _characters(*inner[0]) if len(inner) == 1 else None
            if single is not None:
                yield [Part(single, repeats=most >= UNLIMITED, required=least > 0)]
                return
            if not least:
                yield []
            ways = list(islice(_paths(inner), 20))
            yield from ways
            if most >= UNLIMITED:
                yield from ([*first, *second] for first in ways for second in ways)
        case "SUBPATTERN":
            yield from _paths(argument[-1])
        case "BRANCH":
            for branch in argument[1]:
                yield from _paths(branch)
        case "POSSESSIVE_REPEAT" | "ATOMIC_GROUP" | "ASSERT" | "ASSERT_NOT" | "AT" | "GROUPREF":
            yield []
        case other:
            raise AssertionError(f"{other} is not known here")


def _overlap(path: list[Part]) -> bool:
    """Whether two parts that repeat can share characters, with nothing between them that keeps them apart."""
    for place, first in enumerate(path):
        for part in path[place + 1 :] if first.repeats else ():
            if part.repeats and part.characters & first.characters:
                return True
            if part.required and not part.characters & first.characters:
                break
    return False


def backtracks(pattern: str | bytes, flags: int = 0) -> bool:
    """Whether an expression may take more than time proportional to the text, from one place in it."""
    return any(map(_overlap, islice(_paths(parser.parse(pattern, flags)), MAX_PATHS)))


def _expressions() -> Iterator[tuple[str, str | bytes]]:
    for file in sorted(SERVICES.glob("*/src/**/*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {f"re.{name}" for name in FUNCTIONS}:
                pattern = node.args[0]
                for part in ast.walk(pattern):  # of an f-string or a concatenation its constant parts
                    if isinstance(part, ast.Constant) and isinstance(part.value, str | bytes):
                        yield f"{file.name}:{node.lineno}", part.value


@pytest.mark.parametrize(
    "pattern", [r"\s*(?:(?!x).)*\s*y", r"(a+)+b", r"(?:a|b+)*c", r"\w*\s*\n(.*)\n\s*z", r".*,.*;", rb'"(?:[^"]*x?)*"']
)
def test_expressions_that_backtrack_are_found(pattern: str | bytes) -> None:
    assert backtracks(pattern, re.DOTALL)


@pytest.mark.parametrize("pattern", [r'"(?:[^"\\]|\\.)*"', r"\s*\w+:\d*", r"(?:,\w+)*", r"a*+a*", r"\d{1,9}\d{1,9}"])
def test_expressions_that_do_not_are_allowed(pattern: str) -> None:
    assert not backtracks(pattern, re.DOTALL)


def test_no_expression_of_the_services_backtracks() -> None:
    found: list[str] = []
    for place, pattern in _expressions():
        try:
            bad = backtracks(pattern, re.DOTALL)
        except re.error:
            continue  # a part of an expression that is none by itself
        if bad and pattern not in ALLOWED:
            found.append(f"{place}: {pattern!r}")
    assert not found
