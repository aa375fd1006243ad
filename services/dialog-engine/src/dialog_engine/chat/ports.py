"""What a running turn needs from the world."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from dialog_engine.chat.archive import MessageRecord
from dialog_engine.chat.outbox import OutboxRow
from dialog_engine.model import AssistantMessage, Done, Message, Turn, TurnEvent, TurnFailed
from dialog_engine.tool_calls.execution import OpenCall


class TurnStore(Protocol):
    """Where turns begin and end, durably. Everything raises StorageUnavailableError when it cannot be done now."""

    async def begin(self, turn: Turn, text: str, *, new_session: bool = False, queue: bool = False) -> None:
        """Commit the user's message and a running turn, in its session or, with `new_session`, with it.

        With `queue` a turn whose session is busy is noted as waiting, behind those that came before it: `begin` it
        again until it begins, or `leave`.

        Raises:
            SessionNotFoundError: there is no such session for this subject.
            TurnRunningError: another turn of the session runs, or is the next one to.
        """
        ...

    async def leave(self, turn: Turn) -> None:
        """The turn does not wait any more. It may not have."""
        ...

    async def finish(
        self, turn: Turn, message: AssistantMessage | None, done: Done, failure: TurnFailed | None
    ) -> int | None:
        """Commit the end of the turn with its last message. Returns the message's number; None for a repetition.

        Raises:
            TurnFencedError: another engine runs the turn.
        """
        ...

    async def request_stop(self, turn_id: str) -> str | None:
        """Note that the turn shall be stopped. Returns the engine that runs it; None when it does not run."""
        ...

    async def is_running(self, turn_id: str) -> bool:
        """Whether the turn runs anywhere."""
        ...


@dataclass(frozen=True, slots=True)
class SeenEngine:
    """The lease of another engine as it was read."""

    engine_id: str
    lease_until: int

    @property
    def released(self) -> bool:
        """It went down in good order."""
        return self.lease_until == 0


@dataclass(frozen=True, slots=True)
class OwnedTurn:
    """A running turn that belongs to this engine."""

    turn_id: str
    epoch: int
    stop_requested: bool


@dataclass(frozen=True, slots=True)
class Adopted:
    """A turn that belongs to this engine from now on, in a new epoch.

    `crashes` counts its owners in a row that died soon, `rows` are those of its outbox rows that are to be published.
    """

    turn: Turn
    stopped: bool
    crashes: int
    rows: Sequence[OutboxRow]


class Engines(Protocol):
    """The engines that share the store. Everything raises StorageUnavailableError when it cannot be done now."""

    async def register(self, lease_ms: int) -> bool:
        """Take this engine's lease at its start. Whether an earlier life of it went down in good order."""
        ...

    async def renew(self, lease_ms: int, waiting: Collection[str]) -> Sequence[OwnedTurn]:
        """Renew the lease. Of the messages that wait here for their session only those of the turns `waiting` still do.
        Returns the running turns of this engine."""
        ...

    async def stop_requests(self) -> Sequence[str]:
        """The running turns of this engine that shall be stopped."""
        ...

    async def fenced(self, turns: Sequence[Turn]) -> Sequence[str]:
        """Those of these turns that are another engine's by now, or are deleted."""
        ...

    async def others(self) -> Sequence[SeenEngine]:
        """The other engines."""
        ...

    async def adopt(self, seen: SeenEngine, limit: int) -> Sequence[Adopted]:
        """Take running turns of an engine, if its lease is still as it was seen."""
        ...

    async def adopt_own(self, turn_ids: Sequence[str] | None, *, released: bool = False) -> Sequence[Adopted]:
        """Take up running turns of this engine that do not run: these, or all. `released`: nobody died with them."""
        ...

    async def remove(self, seen: SeenEngine) -> Sequence[OutboxRow]:
        """Forget an engine that has no running turns, if its lease is still as it was seen. Returns what it left to be
        published: it is this engine's now."""
        ...

    async def release(self) -> None:
        """Give this engine's lease up."""
        ...


class Control(Protocol):
    """Wakes other engines. A message that is lost costs up to a second: each of them looks into the store anyway."""

    def stop(self, turn_id: str) -> None:
        """A turn of another engine shall be stopped."""
        ...

    def decision(self) -> None:
        """A decision on a call of another engine's turn is committed."""
        ...

    def free(self, session_id: str) -> None:
        """A session for which a message waits at another engine may be free."""
        ...


class History(Protocol):
    """What was said in a session so far."""

    async def messages(self, session_id: str) -> Sequence[Message]:
        """Every message, oldest first; a tool call without an outcome has no result."""
        ...

    async def told(self, turn: Turn) -> Sequence[MessageRecord]:
        """What this turn's user and assistant have said so far, oldest first, each message with its calls."""
        ...

    async def open_calls(self, turn: Turn) -> Sequence[OpenCall]:
        """Committed calls of the turn that have no outcome yet."""
        ...


class TurnLog(Protocol):
    """The user-visible log of one turn, written by its owner only."""

    def append(self, event: TurnEvent) -> None:
        """Add an event; clients that follow see it at once."""
        ...

    async def close(self) -> None:
        """No more events; wait, bounded, until they are stored."""
        ...


class TurnLogs(Protocol):
    """Makes the logs of the turns that run here."""

    def open(self, turn: Turn) -> TurnLog:
        """The log of `turn` in its present epoch."""
        ...

    def moved(self, turn: Turn) -> None:
        """Another engine has taken the turn over: nothing more is stored from here, and readers go there."""
        ...
