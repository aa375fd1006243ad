"""The definition of a skill, and functions that several skills use."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from examples.demo_model.conversation import Outcome, ToolUse
from examples.demo_model.results import parse
from examples.demo_model.toolbox import Toolbox

Uses = list[ToolUse | None]


@dataclass(frozen=True)
class Skill:
    """One kind of request."""

    needs: str
    """The tool that the skill needs, as shown to the user if the request does not offer it."""
    stems: tuple[str, ...]
    """Names of the tools whose results this skill phrases."""
    uses: Callable[[str, Toolbox], Uses]
    """From question and tools to calls: empty if the skill does not apply, None for a call that no tool fits."""
    tell: Callable[[Outcome, str], str]
    """A successful result in words; the question provides the names that the user used."""
    alone: bool = False
    """Whether the rest of the question is this skill's input, in which other skills must not look for keywords."""


def asks(pattern: str, use: Callable[[str, Toolbox], ToolUse | None]) -> Callable[[str, Toolbox], Uses]:
    """A skill that makes one call if the question matches."""
    trigger = re.compile(pattern, re.IGNORECASE)
    return lambda question, tools: [use(question, tools)] if trigger.search(question) else []


def number_before(question: str, unit: str) -> float | None:
    match = re.search(rf"(\d+(?:\.\d+)?)[\s-]*(?:{unit})\b", question, re.IGNORECASE)
    return float(match[1]) if match else None


def given(**hints: Any) -> dict[str, Any]:
    """The hints that have a value."""
    return {name: value for name, value in hints.items() if value is not None}


def quote(outcome: Outcome, _: str = "") -> str:
    """Any result, quoted: a value as a code block, a text as a quotation; a long one is cut."""
    value = parse(outcome.text)
    if isinstance(value, dict | list):
        return f"`{outcome.name}` answered:\n\n```json\n{_cut(json.dumps(value, indent=2, ensure_ascii=False))}\n```"
    quoted = _cut(str(value).strip()).replace("\n", "\n> ")
    return f"`{outcome.name}` answered:\n\n> {quoted}" if quoted else f"`{outcome.name}` answered with nothing."


def _cut(text: str, limit: int = 600) -> str:
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text):,} characters in all)"
