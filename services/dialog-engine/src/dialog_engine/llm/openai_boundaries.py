"""Where one streamed tool call ends and another begins, of providers that send names or ids with every fragment. Pure.

They may give all calls of a message the same index, or none, and only comparing their arguments distinguishes them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dialog_engine.errors import LLMStreamBrokenError
from dialog_engine.llm.decoding import is_complete
from dialog_engine.llm.lenient_json import ArgumentsScan, join_arguments
from dialog_engine.llm.openai_wire import CallDelta, FunctionDelta

MAX_COMPARED = 64_000_000
"""How much of one answer may be compared to distinguish its calls, in characters of arguments. Only providers that send
a name without an id, or changing ids, with the fragments of a call cause any of it, and few of them much."""
_COMPARED_PER_ITEM = 16
"""Comparing two calls, or joining a fragment, takes as long as reading so many characters."""


@dataclass(slots=True, eq=False)
class Slot:
    """One tool call so far. A field that is set is never overwritten by later fragments."""

    index: int | None
    id: str = ""
    name: str = ""
    fragments: list[str] = field(default_factory=list[str])
    extra: dict[str, Any] | None = None
    scan: ArgumentsScan | None = None
    """Of the first `scanned` fragments; few providers need it."""
    scanned: int = 0

    def clear(self) -> None:
        """Remove the fragments."""
        self.fragments.clear()
        self.scan, self.scanned = None, 0

    def may_be_complete(self) -> bool:
        """Whether the fragments may be a complete object: False is certain."""
        self.scan = self.scan or ArgumentsScan()
        for fragment in self.fragments[self.scanned :]:
            self.scan.add(fragment)
        self.scanned = len(self.fragments)
        return self.scan.may_be_complete()


@dataclass(slots=True)
class Boundaries:
    """Distinguishes the calls of one message."""

    compared: int = 0
    """How much was compared so far, as MAX_COMPARED counts it."""

    def opens_another(self, slot: Slot, call: CallDelta, name: str) -> bool:
        """Whether a fragment with the index of `slot` starts another: all calls may have the same index, or none."""
        if call.id and slot.id:
            # Some servers make up a new id for every fragment: only a name, or a call that is complete, is a new start.
            return call.id != slot.id and (bool(name) or self._is_complete(slot))
        if not name or not slot.name:
            return False
        if name != slot.name:
            return call.index is None or self._is_complete(slot) or self._arguments(slot) == ""
        text = text_of(call.function)
        return not slot.id and text != "" and self._is_complete(slot) and text != self._arguments(slot)

    def _is_complete(self, slot: Slot) -> bool:
        """Whether the arguments so far are a complete object."""
        return slot.may_be_complete() and is_complete(self._arguments(slot))

    def _arguments(self, slot: Slot) -> str:
        """The arguments so far. Raises LLMStreamBrokenError when too much was compared."""
        self._count_compared(sum(map(len, slot.fragments)) + len(slot.fragments) * _COMPARED_PER_ITEM)
        return join_arguments(slot.fragments)

    def matched(self, calls: Sequence[CallDelta], slots: Iterable[Slot]) -> Iterator[tuple[CallDelta, Slot | None]]:
        """The calls of a whole message, each with the streamed one that it repeats; None for a new one.

        Raises:
            LLMStreamBrokenError: too much was compared.
        """
        ids = {call.id for call in calls if call.id}
        left = list(slots)
        self._count_compared(len(calls) * len(left) * _COMPARED_PER_ITEM)
        for call in calls:
            name = (call.function and call.function.name) or ""
            slot = _first(slot for slot in left if call.id and slot.id == call.id) or _first(
                slot for slot in left if slot.id not in ids and (slot.name == name or "" in (slot.name, name))
            )
            if slot is not None:
                left.remove(slot)
            yield call, slot

    def _count_compared(self, characters: int) -> None:
        self.compared += characters
        if self.compared > MAX_COMPARED:
            raise LLMStreamBrokenError("the model's provider repeats the names or ids of its calls too often")


def text_of(function: FunctionDelta | None) -> str:
    """The arguments in a fragment, as text."""
    arguments = function and function.arguments
    return msgspec.json.encode(arguments).decode() if isinstance(arguments, dict) else arguments or ""


def _first(slots: Iterable[Slot]) -> Slot | None:
    return next(iter(slots), None)
