"""Scripts of several rounds: one call per round, up to a number or without limit."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from examples.demo_model.conversation import Outcome, ToolUse
from examples.demo_model.results import failure
from examples.demo_model.skills.demo_tools import increment
from examples.demo_model.toolbox import Toolbox

MOST = 100


@dataclass(frozen=True)
class Loop:
    """A question that takes `total` rounds, or as many as are allowed if `total` is None."""

    total: int | None
    use: Callable[[int, Toolbox], ToolUse | None]
    """The call of the round with this number, from 1."""

    def next_call(self, outcomes: tuple[Outcome, ...], tools: Toolbox) -> ToolUse | None:
        """The call to make now, or None at the end: counting ends at its number or at the first failure."""
        if self.total is not None and (len(outcomes) >= self.total or any(failure(each.text) for each in outcomes)):
            return None
        return self.use(len(outcomes) + 1, tools)

    def summary(self, outcomes: tuple[Outcome, ...]) -> str:
        """How many rounds were made and why they ended, derived from the outcomes."""
        done = sum(failure(outcome.text) is None for outcome in outcomes)
        if self.total is None:
            calls = f"{len(outcomes)} calls were made" if outcomes else "No call was made"
            return f"{calls}, and {done} of them answered. I stop because no tool is offered to me any more."
        if done >= self.total:
            return f"Counted to {self.total}, one call per round."
        if done < len(outcomes):
            return f"Counting ended after {done} of {self.total}, because a call failed."
        return f"Counting ended after {done} of {self.total}, because no tool is offered to me any more."


_COUNT = re.compile(r"\bcount (?:up )?to (\d+)\b", re.IGNORECASE)
_ENDLESS = re.compile(r"\bkeep (?:on )?(?:calling|using)\b|\bendless(?:ly)?\b|\bforever\b", re.IGNORECASE)


def loop_in(question: str) -> Loop | None:
    """The loop that this question asks for, or None."""
    if match := _COUNT.search(question):
        return Loop(min(max(int(match[1]), 1), MOST), lambda _, tools: increment(question, tools))
    if _ENDLESS.search(question):
        return Loop(None, _anything_harmless)
    return None


def _anything_harmless(number: int, tools: Toolbox) -> ToolUse | None:
    # Different arguments each time, if possible: this demonstrates the limit of rounds, not the guard against repeats.
    return (
        tools.use(("echo",), {"text": f"round {number}"})
        or tools.use(("calculate",), {"expression": f"{number} + 1"})
        or tools.use(("current_time",), {"timezone": "Etc/UTC"})
    )
