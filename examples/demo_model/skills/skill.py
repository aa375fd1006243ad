"""What a skill is, and what several of them use."""

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
    """What it takes, for the user of a request that does not offer it."""
    stems: tuple[str, ...]
    """Names of tools whose results this skill tells."""
    uses: Callable[[str, Toolbox], Uses]
    """Question and tools to wanted calls: empty if not meant, None in the place of a call that no tool fits."""
    tell: Callable[[Outcome, str], str]
    """A successful result, in words; the question helps to name things as the user did."""
    alone: bool = False
    """Whether the rest of the question is this skill's own text, in which no other skill may look for keywords."""


def asks(pattern: str, use: Callable[[str, Toolbox], ToolUse | None]) -> Callable[[str, Toolbox], Uses]:
    """A skill that makes one call wherever the question matches."""
    trigger = re.compile(pattern, re.IGNORECASE)
    return lambda question, tools: [use(question, tools)] if trigger.search(question) else []


def number_before(question: str, unit: str) -> float | None:
    match = re.search(rf"(\d+(?:\.\d+)?)[\s-]*(?:{unit})\b", question, re.IGNORECASE)
    return float(match[1]) if match else None


def given(**hints: Any) -> dict[str, Any]:
    """The hints that the question gave."""
    return {name: value for name, value in hints.items() if value is not None}


def quote(outcome: Outcome, _: str = "") -> str:
    """Any result, as it came: a value as a list or a block, a text as a quotation, cut where it is long."""
    value = parse(outcome.text)
    if isinstance(value, dict | list):
        return f"`{outcome.name}` answered:\n\n```json\n{_cut(json.dumps(value, indent=2, ensure_ascii=False))}\n```"
    quoted = _cut(str(value).strip()).replace("\n", "\n> ")
    return f"`{outcome.name}` answered:\n\n> {quoted}" if quoted else f"`{outcome.name}` answered with nothing."


def _cut(text: str, limit: int = 600) -> str:
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text):,} characters in all)"
