"""Results that were too long to be shown: where the whole of each is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dialog_engine.model import Turn
from dialog_engine.tool_calls.texts import WholeResult


@dataclass(frozen=True, slots=True)
class KeptResult:
    """The result of a call, by its tool's name: all of it."""

    correlation_id: str
    tool_name: str
    whole: WholeResult


class ResultStore(Protocol):
    """The results of all sessions."""

    async def result(self, turn: Turn, name: str) -> KeptResult | None:
        """The result of the call whose correlation id ends with `name`, in the session of `turn` and of its subject."""
        ...

    async def cut_results(self, turn: Turn) -> Sequence[tuple[str, str]]:
        """The newest results in the session of `turn` that were cut, ten at most.

        Of each the correlation id of the call and the name of its tool.
        """
        ...
