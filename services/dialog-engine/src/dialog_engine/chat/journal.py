"""The journal: what is committed in this engine's file and not yet shared with the other engines.

Storage writes an entry in the transaction that makes the change; entries are shared in their order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import msgspec

from dialog_engine.model import Turn


class Step(StrEnum):
    """Where in the life of its turn an entry stands."""

    BEGINS = "begins"
    GOES_ON = "goes on"
    ENDS = "ends"
    AGAIN = "again"
    """It was shared before, and lost: what is there by now stands."""


class Change(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What changed. Empty texts and None stand for: not by this entry."""

    subject: str
    title: str = ""
    created_at: int | None = None
    updated_at: int | None = None
    rows: dict[str, msgspec.Raw] = {}


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One committed change of a session, made by `turn_id` ("" for none) in that epoch; `payload` is a Change."""

    seq: int
    session_id: str
    turn_id: str
    epoch: int
    step: Step
    payload: bytes


class JournalTable(Protocol):
    """Where the entries wait."""

    async def waiting(self, after: int, limit: int) -> Sequence[JournalEntry]:
        """The oldest entries behind number `after`."""
        ...

    async def shared(self, entries: Sequence[JournalEntry], versions: "Sequence[SharedVersions]") -> None:
        """They are where every engine finds them."""
        ...

    async def whole(self, session_id: str) -> Change | None:
        """All that is committed here of a session; None when it is not here."""
        ...

    async def ended(self, session_id: str) -> Change | None:
        """The same, but only of turns that have ended: what nobody will change any more."""
        ...

    async def idle_since(self, at: int, limit: int) -> Sequence[str]:
        """Sessions that are here, whose last change was at `at` (Unix milliseconds) or later, and in which this engine
        runs nothing; the last changed first."""
        ...


@dataclass(frozen=True, slots=True)
class SharedVersions:
    """Changes of this engine took a session from version `before` (0: nothing was shared) to `last`, without anybody
    else's in between."""

    session_id: str
    before: int
    last: int


class NotSharedError(Exception):
    """What was committed here is known here only: the other engines cannot be told now."""


class Journal(Protocol):
    """Shares what is committed here."""

    def version(self, session_id: str, known: int) -> int:
        """Up to which version everything of a session is here, when the file says `known`: it lags a little."""
        ...

    def taken_over(self, turn_id: str) -> None:
        """The turn is this engine's again."""
        ...

    async def settled(self, turn_id: str = "") -> bool:
        """Wait until all that was committed is shared. False when `turn_id` belongs to another engine by now.

        Raises:
            NotSharedError: it cannot be now.
        """
        ...

    async def share_whole(self, turn: Turn) -> bool:
        """Share all there is of the session of a turn that runs here. False when it cannot be, for good.

        Raises:
            NotSharedError: it cannot be now.
        """
        ...
