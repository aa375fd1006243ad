"""Results that were too long to be shown: where the whole of each is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dialog_engine.model import Turn
from dialog_engine.tool_calls.texts import WholeResult, whole_of
from plugins_contract.outcomes import ToolOutcome


@dataclass(frozen=True, slots=True)
class KeptResult:
    """The result of a call as it is shown; `whole` is None when nothing was left out, or what was is not kept here."""

    correlation_id: str
    tool_name: str
    outcome: ToolOutcome
    whole: WholeResult | None


class ResultStore(Protocol):
    """The results that this engine keeps."""

    async def result(self, turn: Turn, name: str) -> KeptResult | None:
        """The result of the call whose correlation id ends with `name`, in the session of `turn` and of its subject."""
        ...

    async def cut_results(self, turn: Turn) -> Sequence[tuple[str, str]]:
        """The newest results in the session of `turn` that were cut and are kept here whole, ten at most.

        Of each the correlation id of the call and the name of its tool.
        """
        ...


class Answers(Protocol):
    """What workers answered, for as long as it can be had."""

    async def outcome(self, correlation_id: str) -> ToolOutcome | None:
        """The outcome of a call as its worker sent it; None when that is gone, or cannot be asked for now."""
        ...


async def whole_result(
    outcome: ToolOutcome, stored: WholeResult | None, answers: Answers, correlation_id: str
) -> WholeResult | None:
    """All the text of a result; None when a part of it is nowhere to be had.

    Copies of a session that go to other engines hold results as they are shown: there the worker's answer is asked
    for, which Redis keeps for a while.
    """
    if stored is not None:
        return stored
    if not outcome.truncated:
        return whole_of(outcome)
    sent = await answers.outcome(correlation_id)
    return None if sent is None else whole_of(sent)
