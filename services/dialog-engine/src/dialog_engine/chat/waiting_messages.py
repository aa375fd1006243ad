"""Messages that wait for the turns before them in their session, as the store has them.

A message has the id of the turn that it becomes, and its place in the order of its session. It begins when no turn of
the session runs, unless it is held: then its user decides, and those behind it wait too.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from dialog_engine.chat.requests import StartingRequest
from dialog_engine.model import Turn

WAITING, WITHDRAWN = "waiting", "withdrawn"
"""The status of a message that has not become a turn."""
MAX_WAITING = 20
"""How many messages may wait in a session."""


class HeldReason(StrEnum):
    """Why a message does not begin until its user says so."""

    STOPPED = "STOPPED"
    """The turn before it was stopped."""
    FAILED = "FAILED"
    """The turn before it failed."""
    CREDENTIAL_REVOKED = "CREDENTIAL_REVOKED"
    """The key or token that sent it is not accepted any more."""
    CREDENTIAL_EXPIRED = "CREDENTIAL_EXPIRED"
    """The key, the token or the sign-in that sent it has ended."""
    FORBIDDEN = "FORBIDDEN"
    """Its sender may not chat any more."""
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED"
    """The tokens of its subject are used up for today."""
    RESTORED = "RESTORED"
    """The store was restored from a backup, since which it may have been sent."""


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """A message that waits, or was withdrawn. `turn` is what it becomes, with the rights that its sender had then.

    `version` rises with each change of the text or the sender. `text` is empty where it was not asked for, and once the
    message is withdrawn. `created_at` is Unix milliseconds.
    """

    turn: Turn
    version: int
    created_at: int
    held: str = ""
    withdrawn: bool = False
    text: str = ""

    @property
    def status(self) -> str:
        """In the place of that of a turn."""
        return WITHDRAWN if self.withdrawn else WAITING


@dataclass(frozen=True, slots=True)
class Candidate:
    """The first message of a session as it would begin: with the rights that its sender has now, or `held`.

    It begins only if the message still has this `version`.
    """

    turn: Turn
    version: int
    held: HeldReason | None = None


class WaitingStore(Protocol):
    """The messages that wait. Every method raises StorageUnavailableError."""

    async def first(self, session_id: str) -> WaitingMessage | None:
        """The first message of a session, without its text; None when none waits, or the first one is held."""
        ...

    async def begin(self, candidate: Candidate) -> bool:
        """Begin the turn of the first message of its session, if no turn runs there; hold it, if it is to be held.
        Whether the turn has begun, which then is this engine's."""
        ...

    async def due(self, limit: int) -> Sequence[str]:
        """Sessions in which no turn runs and whose first message is not held."""
        ...

    async def waiting(self, turn_ids: Collection[str]) -> Collection[str]:
        """Those of these messages that wait."""
        ...

    async def find(self, subject: str, turn_id: str) -> WaitingMessage | None:
        """A message that waits, or was withdrawn within a week; None when there is none of this subject."""
        ...

    async def of_session(self, subject: str, session_id: str) -> Sequence[WaitingMessage]:
        """The messages that wait in a session, in their order."""
        ...

    async def of_subject(self, subject: str, limit: int) -> Sequence[WaitingMessage]:
        """The messages that wait in any session of the subject, the oldest first."""
        ...

    async def edit(self, sender: Turn, text: str) -> None:
        """Replace the text of the message `sender.turn_id`; who does it is its sender from now on.

        Raises:
            TurnStartedError: its turn has begun.
            TurnNotFoundError: there is no such message, or it was withdrawn.
        """
        ...

    async def send(
        self, sender: Turn, request: StartingRequest = StartingRequest(), *, stop: bool = False
    ) -> tuple[str, str | None]:
        """Release the message `sender.turn_id` and make it the first one of its session: it begins when no turn runs
        there, also after one that was stopped or has failed. Returns the session, and the turn that runs there now.
        With a request to `stop` that turn, some engine ends it even if this one dies.

        Raises:
            TurnStartedError, TurnNotFoundError: as from `edit`.
            SentBeforeError, IdempotencyKeyReusedError: as from `SentRequests.check_new`.
        """
        ...

    async def withdraw(self, subject: str, turn_id: str, *, key_id: str = "") -> str:
        """Withdraw a message. Returns its session. It may be repeated.

        What follows on a message that was held after a stop or a failure is held in its place.

        Raises:
            TurnStartedError, TurnNotFoundError: as from `edit`.
        """
        ...
