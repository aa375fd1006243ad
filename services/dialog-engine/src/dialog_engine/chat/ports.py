"""What a running turn needs from the world."""

from collections.abc import Sequence
from typing import Protocol

from dialog_engine.chat.archive import MessageRecord
from dialog_engine.model import AssistantMessage, Done, Message, Turn, TurnEvent, TurnFailed
from dialog_engine.tool_calls.rounds import OpenCall


class TurnStore(Protocol):
    """Where turns begin and end, durably."""

    async def begin(self, turn: Turn, text: str, *, new_session: bool = False) -> None:
        """Commit the user's message and a running turn, in its session or, with `new_session`, with it.

        Raises:
            SessionNotFoundError: there is no such session for this subject.
            TurnRunningError: the session has a running turn.
            StorageUnavailableError: nothing can be committed now.
        """
        ...

    async def finish(
        self, turn: Turn, message: AssistantMessage | None, done: Done, failure: TurnFailed | None
    ) -> int | None:
        """Commit the end of the turn with its last message. Returns the message's id."""
        ...


class UnfinishedTurns(Protocol):
    """The turns that an earlier life of this engine left."""

    async def unfinished(self) -> Sequence[Turn]:
        """Those that it left running, as it left them."""
        ...

    async def go_on(self, turn: Turn, epoch: int) -> Turn:
        """Take up one of them in this epoch."""
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
