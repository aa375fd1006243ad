"""What the script sees of a request, and what it answers: values only."""

from dataclasses import dataclass
from typing import Any

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Tool:
    """A tool that this request offers."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True)
class ToolUse:
    """A wanted call of an offered tool, with arguments its schema accepts."""

    name: str
    arguments: Arguments


@dataclass(frozen=True)
class Outcome:
    """A call of an earlier round, and the text that came back for it."""

    name: str
    arguments: Arguments
    text: str


@dataclass(frozen=True)
class Conversation:
    """The user's last message and everything since, plus what may be called now."""

    question: str
    rounds: tuple[tuple[Outcome, ...], ...] = ()
    tools: tuple[Tool, ...] = ()
    introduced: bool = False
    """Whether an earlier answer has told the user what this model is."""

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        return tuple(outcome for outcomes in self.rounds for outcome in outcomes)


@dataclass(frozen=True)
class Plan:
    """The next assistant message: text, and calls if any."""

    text: str
    calls: tuple[ToolUse, ...] = ()
    reasoning: str = ""
