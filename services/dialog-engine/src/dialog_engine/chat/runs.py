"""Who runs which turn, known to all engines: the run lease. Its answers are closed unions: match on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from dialog_engine.chat.copies import SessionCopy, SessionHead
from dialog_engine.chat.outbox import OutboxRow
from dialog_engine.model import Turn


class RunsUnavailableError(Exception):
    """The engines cannot talk to each other now: Redis is away."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The session is this engine's for one turn. `version` is that of the shared copy; 0 when there is none."""

    version: int


@dataclass(frozen=True, slots=True)
class Busy:
    """Another turn of the session runs, or is the next one to."""

    turn_id: str


@dataclass(frozen=True, slots=True)
class UnknownSession:
    """No engine has shared such a session of this subject."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The session was deleted."""


Claim = Claimed | Busy | UnknownSession | Forgotten


@dataclass(frozen=True, slots=True)
class Run:
    """A turn as all engines know it."""

    session_id: str
    engine_id: str
    epoch: int
    ended: bool


@dataclass(frozen=True, slots=True)
class Taken:
    """The turn is ours in this epoch; `stopped` when its end was asked for.

    `cut_short` counts its last lives: those that ended by themselves within a minute, in a row, without a change.
    """

    epoch: int
    stopped: bool
    cut_short: int = 0


@dataclass(frozen=True, slots=True)
class NotTaken:
    """Somebody has it, or it has ended."""


class Renewal(StrEnum):
    """What became of the lease of a turn that runs here."""

    KEPT = "OK"
    STOP = "CANCEL"
    """Kept, and the end of the turn was asked for."""
    MOVED = "MOVED"
    """Another engine runs the turn now."""
    GONE = "GONE"
    """Redis knows nothing of it: it lost its data, or was away when the turn began."""


class Runs(Protocol):
    """The leases. Every method raises RunsUnavailableError while Redis is away; a repeated call does no harm."""

    async def claim(self, turn: Turn, *, known: bool, wait_seconds: float = 0) -> Claim:
        """Ask for the session of `turn`, which is about to begin; `known` when a copy of the session is here.

        With `wait_seconds` a turn whose session is busy has a place in its line for so long: ask again in time.
        """
        ...

    async def leave(self, turn: Turn) -> None:
        """Give the place in the line up."""
        ...

    async def renew(self, turns: Sequence[Turn]) -> Sequence[Renewal]:
        """Keep the leases of these turns."""
        ...

    async def run_out(self) -> Sequence[str]:
        """Turns whose leases have run out: they were given up, or their engine is gone."""
        ...

    async def given_up(self) -> Sequence[str]:
        """Turns that their engine has given up by itself."""
        ...

    async def look(self, turn_id: str) -> Run | None:
        """Who runs a turn, or ran it."""
        ...

    async def take(self, turn_id: str, run: Run) -> Taken | NotTaken:
        """Run the turn from now on, if its lease has run out or it was ours, and it is still as `run` says."""
        ...

    async def give_up(self, turn: Turn) -> None:
        """Let others have the turn at once."""
        ...

    async def withdraw(self, turn: Turn) -> None:
        """Nothing was committed of the turn: it never was."""
        ...

    async def stop(self, turn_id: str) -> bool:
        """Ask whoever runs the turn for its end. False when nobody does."""
        ...


class SharedCopies(Protocol):
    """The copies of sessions that every engine can read. Raises RunsUnavailableError while Redis is away."""

    async def head(self, session_id: str) -> tuple[SessionHead, int] | Forgotten | None:
        """The session and the version of its copy."""
        ...

    async def whole(self, session_id: str) -> SessionCopy | Forgotten | None:
        """The whole copy."""
        ...

    async def newest(self, subject: str, *, limit: int, before: int | None) -> Sequence[SessionHead]:
        """The sessions of a subject, the last changed first."""
        ...

    async def forget(self, session_id: str, subject: str) -> Busy | UnknownSession | None:
        """Delete it for all engines; None when that is done."""
        ...

    async def forgotten_since(self, at: int) -> Sequence[tuple[str, int]]:
        """Sessions deleted at or after `at`, with the time, in Unix milliseconds on the clock of Redis; the first of
        them, when they are many."""
        ...


class LocalCopies(Protocol):
    """What this engine's own file has of the sessions of all engines. Raises StorageUnavailableError."""

    async def version(self, session_id: str) -> int | None:
        """Up to which version of the shared copy everything is here; None when the session is not here at all."""
        ...

    async def session_of(self, turn_id: str) -> tuple[str, bool] | None:
        """The session of a turn that is known here, and whether another engine was running the turn when it was
        last heard of."""
        ...

    async def last_ran_here(self, session_id: str) -> bool:
        """Whether the session's last turn, as far as it is known here, ran here."""
        ...

    async def merge(self, copy: SessionCopy) -> None:
        """Take in what is not here yet."""
        ...

    async def take_over(self, copy: SessionCopy, turn_id: str, epoch: int) -> tuple[Turn, Sequence[OutboxRow]] | None:
        """Take in the session and make one of its turns this engine's own, with the requests of its open calls.

        None when no such turn runs: it ended, or nothing was committed of it.
        """
        ...

    async def give_away(self, turn_id: str, copy: SessionCopy | None) -> None:
        """Another engine runs the turn: have what its copy of the session says of it instead of what was committed
        here, in one step; nothing for now, without a copy."""
        ...

    async def forget(self, session_ids: Sequence[str]) -> None:
        """They were deleted."""
        ...
