"""The ports of running turns."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dialog_engine.chat.archive import MessageRecord, Page
from dialog_engine.chat.outbox import OutboxRow
from dialog_engine.chat.requests import StartingRequest
from dialog_engine.chat.waiting_messages import Candidate, HeldReason
from dialog_engine.model import AssistantMessage, Done, MediaInStore, MediaOfUser, Turn, TurnEvent, TurnFailed
from dialog_engine.tool_calls.questions.values import AskedRound
from dialog_engine.tool_calls.values import Asked, OpenCall
from plugins_contract.outcomes import MediaBlock


@dataclass(frozen=True, slots=True)
class Ended:
    """The committed end of a turn. `message_id` is None without a last message, or when the end was committed before.
    `begun`: the turn of the candidate runs now, and is this engine's."""

    message_id: int | None
    begun: bool = False


Park = Callable[[Turn, Mapping[str, str], int | None], Awaitable[bool]]
"""See `ParkedStore.park`."""
Unseen = Sequence[TurnEvent] | None
"""What has happened since a turn was parked, which its readers have not seen; None: it was not parked."""


@dataclass(frozen=True, slots=True)
class OpenCalls:
    """The committed calls of a turn that have no outcome: those with a request, those that wait for approval, and the
    rounds whose servers ask."""

    requested: Sequence[OpenCall]
    asked: Sequence[Asked]
    rounds: Sequence[AskedRound]


class TurnStore(Protocol):
    """Stores the beginnings and ends of turns. Every method raises StorageUnavailableError."""

    async def begin(
        self,
        turn: Turn,
        text: str,
        *,
        new_session: bool = False,
        queue: bool = False,
        request: StartingRequest = StartingRequest(),
    ) -> Turn | None:
        """Commit the user's message and a running turn, in its session or, with `new_session`, with it.

        With `queue` the message waits where it cannot begin at once: then None is returned, otherwise the turn as it
        runs. A turn without a choice of tools has that of its session from now on. `request` is what the client says of
        its request.

        Raises:
            SessionNotFoundError: there is no such session for this subject.
            TurnRunningError: without `queue`: another turn of the session runs, or another message is next.
            LimitExceededError: with `queue`: too many messages wait.
            SentBeforeError: the client has sent it before.
            IdempotencyKeyReusedError: it has used the key for another request.
            ClientMessageReusedError: it has sent another text or choice under that name.
            TurnNotFoundError: the session does not have the turn that this one shall follow.
            TooManyBranchesError: too many turns follow that one.
            SessionNamedError: with `new_session`: another session has got its name meanwhile.
        """
        ...

    async def finish(
        self,
        turn: Turn,
        message: AssistantMessage | None,
        done: Done,
        failure: TurnFailed | None,
        candidate: Candidate | None = None,
    ) -> Ended:
        """Commit the end of the turn with its last message, and begin the turn of the message that is next.

        `candidate` is that message. After a turn that was stopped or has failed it is held, unless its user has said
        that it is sent.

        Raises:
            TurnFencedError: another engine runs the turn.
        """
        ...

    async def request_stop(self, turn_id: str) -> str | Turn | None:
        """Store a stop request. Returns the engine that runs the turn, or the turn, if it was parked: it is this
        engine's now; None when it does not run."""
        ...

    async def is_running(self, turn_id: str) -> bool:
        """Whether the turn runs, at any engine."""
        ...


@dataclass(frozen=True, slots=True)
class SeenEngine:
    """The lease of another engine as it was read."""

    engine_id: str
    lease_until: int

    @property
    def released(self) -> bool:
        """The engine was shut down in an orderly way."""
        return self.lease_until == 0


@dataclass(frozen=True, slots=True)
class OwnedTurn:
    """A running turn that belongs to this engine."""

    turn_id: str
    epoch: int
    stop_requested: bool


@dataclass(frozen=True, slots=True)
class Adopted:
    """A turn that this engine has adopted, in a new epoch.

    `crashes` counts owners in a row that died soon after getting it; `rows` are its unpublished outbox rows.
    """

    turn: Turn
    stopped: bool
    crashes: int
    rows: Sequence[OutboxRow]


class Engines(Protocol):
    """The engines that share the store. Every method raises StorageUnavailableError."""

    async def register(self, lease_ms: int) -> bool:
        """Take the lease at the start. True when an earlier life of this engine was shut down in an orderly way."""
        ...

    async def renew(self, lease_ms: int) -> Sequence[OwnedTurn]:
        """Renew the lease. Returns the running turns of this engine."""
        ...

    async def stop_requests(self) -> Sequence[str]:
        """The running turns of this engine that have a stop request."""
        ...

    async def fenced(self, turns: Sequence[Turn]) -> Sequence[str]:
        """Those of these turns that another engine owns, or that are deleted."""
        ...

    async def others(self) -> Sequence[SeenEngine]:
        """The other engines."""
        ...

    async def adopt(self, seen: SeenEngine, limit: int) -> Sequence[Adopted]:
        """Adopt running turns of an engine, `limit` at most, if its lease is still as it was seen."""
        ...

    async def adopt_own(self, turn_ids: Sequence[str] | None, *, released: bool = False) -> Sequence[Adopted]:
        """Adopt turns that the store has as running at this engine: `turn_ids`, or all for None. With `released` this
        is not counted as a crash."""
        ...

    async def remove(self, seen: SeenEngine) -> Sequence[OutboxRow] | None:
        """Delete an engine that has no running turns, if its lease is still as it was seen. Returns its unpublished
        outbox rows, which this engine owns now; None if it was not deleted, such as when another engine was first."""
        ...

    async def release(self) -> None:
        """Release the lease of this engine: others may adopt its turns at once."""
        ...


class Control(Protocol):
    """Wakes other engines. A lost message costs up to a second, because each engine polls the store."""

    def stop(self, turn_id: str) -> None:
        """A stop request is committed for a turn of another engine."""
        ...

    def decision(self) -> None:
        """A decision on a call of another engine's turn is committed."""
        ...

    def free(self, session_id: str) -> None:
        """A message that has waited in this session has begun, or was withdrawn."""
        ...

    def who_reads(self, turn_id: str, within: float) -> None:
        """Ask every engine, this one too, whether it has a reader of the turn, or had one within so many seconds."""
        ...

    def reads(self, turn_id: str) -> None:
        """This engine has a reader of the turn, or had one in the time for which it was asked."""
        ...

    def sessions_changed(self) -> None:
        """Sessions have got new revisions. Readers at other engines learn it within three seconds in any case."""
        ...


class Credentials(Protocol):
    """The credentials with which requests are made."""

    async def revoked(self, credential: str) -> bool:
        """Whether this credential is not accepted any more. One that has expired was not revoked; nor was "", which a
        turn has whose sender needed none, had one that cannot be revoked, or used an earlier release."""
        ...

    async def rights(self, turn: Turn) -> tuple[str, ...] | HeldReason:
        """The roles that the sender of a message has now, or why the message may not be sent any more."""
        ...


class TurnSlot(Protocol):
    """A place among the turns of a subject that run."""

    async def release(self) -> None:
        """Give it back."""
        ...


class TurnLimits(Protocol):
    """What subjects may consume. Raises LimitExceededError."""

    async def tokens_left(self, subject: str) -> None:
        """Check that tokens are left."""
        ...

    async def turn(self, subject: str) -> TurnSlot:
        """Take a place for a turn, if tokens are left for it."""
        ...

    def resumed(self, subject: str) -> TurnSlot:
        """Take a place for a turn that goes on, also when none is free. Raises nothing."""
        ...

    def count_until_end(
        self, slot: TurnSlot, turn: Turn, when_ended: Callable[[str, Callable[[int], None]], None]
    ) -> None:
        """Count a turn until `when_ended` calls back with its tokens, and release its place then."""
        ...


class History(Protocol):
    """The messages of a session."""

    async def page(self, session_id: str, turn_id: str, *, before: int | None, limit: int, size: int) -> Page:
        """The newest messages of the path to a turn, or those before the message with the id `before` on the path to
        that: at most `limit`, and only as many as reach `size` bytes, but one at least."""
        ...

    async def fetched(self, media: MediaInStore | MediaOfUser) -> MediaBlock:
        """The image or sound with its data, which is empty when the store does not have it any more."""
        ...

    async def turn_messages(self, turn_id: str) -> Sequence[MessageRecord]:
        """The committed messages of a turn, oldest first, each with its calls."""
        ...

    async def open_calls(self, turn: Turn) -> OpenCalls:
        """What of a turn is open, all as of one time. Raises TurnFencedError when another engine runs it."""
        ...


class TurnLog(Protocol):
    """The user-visible log of one turn, written by its owner only."""

    def append(self, event: TurnEvent) -> None:
        """Add an event; clients that follow see it at once."""
        ...

    async def settle(self) -> None:
        """Wait for a bounded time until everything in it is stored."""
        ...

    async def close(self) -> None:
        """End the log, and wait for a bounded time until it is stored."""
        ...


class TurnLogs(Protocol):
    """Creates the logs of the turns that run here."""

    def open(self, turn: Turn) -> TurnLog:
        """The log of `turn` in its current epoch."""
        ...

    async def waited_for(self, turn: Turn) -> Mapping[str, str] | None:
        """What readers of `turn` saw waiting when it was parked: calls, and questions of servers, by their ids, and for
        a decision its hash. None where its open log does not go on there: Redis does not have all that was seen."""
        ...

    async def has_ended(self, turn: Turn) -> bool:
        """Whether the log of `turn` ends with `done` before this life of it, as far as Redis can say that."""
        ...

    def moved(self, turn: Turn) -> None:
        """The turn is not this engine's any more: nothing more is stored from here, and readers must ask again."""
        ...
