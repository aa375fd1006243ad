"""The input and output of the script, as values."""

from dataclasses import dataclass
from typing import Any

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Tool:
    """A tool that the request offers."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True)
class ToolUse:
    """A call of an offered tool that the script wants to make, with arguments that fit the schema."""

    name: str
    arguments: Arguments


@dataclass(frozen=True)
class Outcome:
    """A call of an earlier round, and the text of its result."""

    name: str
    arguments: Arguments
    text: str


@dataclass(frozen=True)
class Conversation:
    """The user's last message, everything after it, and the tools that may be called now."""

    question: str
    rounds: tuple[tuple[Outcome, ...], ...] = ()
    tools: tuple[Tool, ...] = ()
    introduced: bool = False
    """Whether an earlier answer has said that this model is a script."""

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        return tuple(outcome for outcomes in self.rounds for outcome in outcomes)


@dataclass(frozen=True)
class Plan:
    """The next assistant message: text, and calls if there are any."""

    text: str
    calls: tuple[ToolUse, ...] = ()
    reasoning: str = ""
