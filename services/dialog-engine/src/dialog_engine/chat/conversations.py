"""Sessions as conversations of OpenAI's API: clients describe them, and add messages without asking anything."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dialog_engine.chat.requests import StartingRequest
from dialog_engine.model import ClientMessage

MAX_WAITING = 100
"""How many added messages may wait in a session for a question."""
MAX_WAITING_BYTES = 20_000_000
MAX_INSTRUCTION_BYTES = 100_000
"""Of all instructions that are added to a session: they are sent with every question."""


@dataclass(frozen=True, slots=True)
class Addition:
    """Messages that one request adds. `addition_id` is unique, and each message has an id of its own."""

    addition_id: str
    messages: Sequence[ClientMessage] = ()


@dataclass(frozen=True, slots=True)
class AddedItem:
    """A message that was added. `turn_id` is the turn that has it before its question, '' while it waits for one.
    `message` is None where that turn has it."""

    addition_id: str
    number: int
    turn_id: str
    message: ClientMessage | None


@dataclass(frozen=True, slots=True)
class Conversation:
    """A session. `leaf_turn_id` is the last turn of the path that is shown, '' for none."""

    session_id: str
    leaf_turn_id: str
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])


class Conversations(Protocol):
    """The conversations of a subject. For those of another: SessionNotFoundError. Every method raises
    StorageUnavailableError. `key_id` names the credential, for the audit."""

    async def create(
        self,
        subject: str,
        metadata: Mapping[str, str],
        addition: Addition,
        request: StartingRequest,
        *,
        key_id: str = "",
    ) -> str:
        """Create a session and return its id; that of the session before, if the request is a repetition.

        Raises:
            IdempotencyKeyReusedError: the key was used for another request.
            TooManyAddedError: the addition is too large.
        """
        ...

    async def find(self, subject: str, session_id: str) -> Conversation:
        """One conversation."""
        ...

    async def describe(self, subject: str, session_id: str, metadata: Mapping[str, str]) -> None:
        """Replace its metadata."""
        ...

    async def add(
        self, subject: str, session_id: str, addition: Addition, request: StartingRequest, *, key_id: str = ""
    ) -> str:
        """Add messages, which come before the next question. Returns the id of the addition; that of the one before, if
        the request is a repetition.

        Raises:
            IdempotencyKeyReusedError: the key was used for another request.
            TooManyAddedError: too much waits already.
        """
        ...

    async def waiting(self, session_id: str) -> Sequence[AddedItem]:
        """What waits in a session that the subject was found to own, in its order."""
        ...

    async def added(self, session_id: str, addition_id: str) -> Sequence[AddedItem]:
        """The messages of an addition to such a session, in their order."""
        ...

    async def remove(self, subject: str, session_id: str, item: AddedItem, *, key_id: str = "") -> bool:
        """Remove a message that waits. Returns False when it does not wait any more."""
        ...

    async def back(self, turn_id: str, limit: int) -> Sequence[str]:
        """A turn of such a session and those before it on its path, the newest first."""
        ...

    async def forth(self, leaf_turn_id: str, turn_id: str, limit: int) -> Sequence[str]:
        """A turn and those after it on the path to a leaf, the oldest first; with '' from the beginning on. Nothing
        when the turn is on another path."""
        ...
