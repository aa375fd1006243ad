"""Stored conversations as they are read: records, and the ports by which they are read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from dialog_engine.chat.requests import SessionName, StartingRequest
from dialog_engine.chat.waiting_messages import WaitingMessage
from dialog_engine.model import NOTHING_BROUGHT, Brought, Leaving, ToolCall, TurnFailed, Usage
from dialog_engine.tool_calls.questions.values import AskedRound
from dialog_engine.tool_calls.values import Approval, WholeResult
from plugins_contract.choice import ToolChoice
from plugins_contract.outcomes import MediaBlock, ToolOutcome


@dataclass(frozen=True, slots=True)
class SessionPlace:
    """A place in the list of sessions: after all that changed later, and after `session_id` of those that changed then.

    `updated_at` is in Unix milliseconds. Without an id it is before all sessions that changed at that time.
    """

    updated_at: int
    session_id: str = ""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """One conversation. Times are Unix milliseconds."""

    session_id: str
    title: str
    created_at: int
    updated_at: int
    running_turn_id: str | None
    awaits_approval: bool = False
    """Whether a call of that turn waits for approval."""
    revision: int = 0
    """Of its last change: see `chat.session_changes`."""
    leaf_turn_id: str | None = None
    """The last turn of the path that is shown; None in an empty session."""
    waiting: int = 0
    """How many messages wait in it."""
    held: str = ""
    """Why the first of them is held, a HeldReason; empty when it is not."""
    tools: ToolChoice | None = None
    """What its messages choose that choose no tools themselves."""
    awaits_answer: bool = False
    """Whether a call of the running turn waits for an answer to a question of its server."""
    awaits_client: bool = False
    """Whether a call of the running turn waits for the client that runs its tool."""

    @property
    def place(self) -> SessionPlace:
        """Its place in the list of sessions."""
        return SessionPlace(self.updated_at, self.session_id)


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A tool call and its outcome; None while it is open. `approval` is set when it needed one, or when the client runs
    it (`by_client`). `title` is what the
    server called the tool when the call was made."""

    call: ToolCall
    server: str
    outcome: ToolOutcome | None
    approval: Approval | None = None
    title: str = ""
    rounds: Sequence[AskedRound] = ()
    """Those that its server has ended with questions."""

    @property
    def waits(self) -> bool:
        """Whether it waits for approval, or for the client that runs it."""
        return self.outcome is None and self.approval is not None and self.approval.decision is None

    @property
    def by_client(self) -> bool:
        """Whether the client runs it."""
        return self.approval is not None and self.approval.question.by_client

    @property
    def open_questions(self) -> Sequence[str]:
        """The ids of the questions of its server that wait for an answer."""
        return [question for each in self.rounds for question in each.open_questions] if self.outcome is None else []


@dataclass(frozen=True, slots=True)
class MessageRecord:
    """A message of a user or of the assistant, with its tool calls."""

    message_id: int
    turn_id: str
    role: str
    content: str
    interrupted: bool
    created_at: int
    calls: tuple[CallRecord, ...]
    reasoning: str = ""
    brought: Brought = NOTHING_BROUGHT
    """What came with a message of the user."""


@dataclass(frozen=True, slots=True)
class Page:
    """Messages of a session that follow each other, oldest first. `more`: there are further ones in the direction of
    reading; `before` is how many messages are before these on their path, where it was read."""

    messages: Sequence[MessageRecord]
    more: bool
    before: int = 0

    def from_a_question(self) -> "Page":
        """The page from its first message of the user on; the whole page when it is a part of one turn."""
        first = next((place for place, each in enumerate(self.messages) if each.role == "user"), 0)
        messages = self.messages[first:]
        return replace(self, messages=messages, more=self.more or first > 0, before=self.before + first)


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn. `status` is running, done, cancelled or failed; `credential` is that of its sender; `left_out` counts
    the oldest messages of its path that its model was not sent. `parent_turn_id` is the turn that it follows, '' for
    none; `siblings`, in a transcript, are all that follow that one."""

    turn_id: str
    session_id: str
    status: str
    reason: str | None
    usage: Usage
    ttft_ms: int | None
    failure: TurnFailed | None
    created_at: int
    finished_at: int | None
    model: str | None = None
    tool_calls: int = 0
    credential: str = ""
    left_out: int = 0
    parent_turn_id: str = ""
    siblings: Sequence[str] = ()
    parked: bool = False
    """Whether it runs, and only its user can let it go on: no engine has it."""
    epoch: int = 1


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user asks, and the turn that this follows: '' for none, and None for the last one that is shown.
    `brought` is what the request brought that asked it before."""

    text: str
    parent_turn_id: str | None
    brought: Brought | None = None


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A call that has taken effect, or may have. `execution_class` is '' where it is not known; `outcome` is None while
    the call is open."""

    turn_id: str
    call: ToolCall
    server: str
    execution_class: str
    outcome: ToolOutcome | None


@dataclass(frozen=True, slots=True)
class Transcript:
    """A page of a session, and the turns whose messages are in it: how each ended, what it cost, why it failed."""

    session: SessionRecord
    page: Page
    turns: Sequence[TurnRecord]
    waiting: Sequence[WaitingMessage] = ()
    """The messages that wait in the session, in their order."""


class Sessions(Protocol):
    """The sessions of a subject. Raises SessionNotFoundError for those of another subject."""

    async def create(self, subject: str, request: StartingRequest = StartingRequest()) -> str:
        """Create an empty session and return its id; that of the session before, if the request has the same key.

        Raises:
            IdempotencyKeyReusedError: the key was used for another request.
        """
        ...

    async def find_named(self, subject: str, name: SessionName) -> str | None:
        """The id of the session of the subject that has this name, or this id; None without one. A session gets its
        name from the request that begins it (`StartingRequest`)."""
        ...

    async def list(self, subject: str, *, limit: int, before: SessionPlace | None) -> list[SessionRecord]:
        """The newest first; with `before`, those that follow on that place."""
        ...

    async def move_leaf(self, subject: str, session_id: str, turn_id: str) -> str:
        """Show the path that leads to a turn, and on from it, by the newest turn at each fork. Returns its last turn.
        Running turns go on.

        Raises:
            TurnNotFoundError: the session is another subject's, or has no such turn.
        """
        ...

    async def choose_tools(self, subject: str, session_id: str, tools: ToolChoice | None) -> None:
        """Set what the messages choose that are sent from now on and choose no tools themselves; None: all of them.

        Raises:
            SessionNotFoundError: there is no such session for this subject.
        """
        ...

    async def ids(self, subject: str, *, after: str, limit: int) -> Sequence[str]:
        """The ids after `after` in their order, which no use of a session changes."""
        ...


class Archive(Protocol):
    """The messages and turns of a subject. For those of another: SessionNotFoundError, TurnNotFoundError."""

    async def transcript(
        self, subject: str, session_id: str, *, limit: int, before: int | None = None, after: int | None = None
    ) -> Transcript:
        """The newest messages of the path that is shown, or those before the message with the id `before` on the path
        of that, from the beginning of a turn on; or those of all paths that come after the message `after`. At most
        `limit`, and fewer when they are large."""
        ...

    async def question(self, subject: str, session_id: str, turn_id: str) -> Asked:
        """What a turn of the session answers."""
        ...

    async def made_calls(self, subject: str, turn_id: str, limit: int) -> Sequence[MadeCall]:
        """The calls of a turn, and of those after it if it is on the path that is shown, that have taken effect or may
        have, the oldest first: not those that no worker has run, nor those that may be repeated."""
        ...

    async def turn(self, subject: str, turn_id: str) -> TurnRecord:
        """One turn."""
        ...

    async def turn_messages(self, turn_id: str) -> Sequence[MessageRecord]:
        """The messages of a turn that the subject was found to own, oldest first."""
        ...

    async def asked(self, turn_id: str, call_id: str) -> Sequence[CallRecord]:
        """The calls of such a turn that have this id, the correlation id or the provider's, and need or needed
        approval, or are the client's. Two at most: the one with this correlation id, then those that wait, then the
        newest."""
        ...

    async def outcome(self, subject: str, turn_id: str, correlation_id: str) -> ToolOutcome | None:
        """The outcome of one call of the turn; None when there is none (yet)."""
        ...

    async def media(self, subject: str, turn_id: str, correlation_id: str, number: int) -> MediaBlock | None:
        """The image, sound or file at that position of the call's outcome, with its data; None when there is none."""
        ...

    async def image(self, turn_id: str, number: int) -> MediaBlock | None:
        """An image that came with the message of such a turn, with its data; None when there is none."""
        ...

    async def whole(self, subject: str, turn_id: str, correlation_id: str) -> WholeResult | None:
        """The whole text of that outcome; None when there is no outcome, or its whole text is not stored."""
        ...


class AskedResponses(Protocol):
    """What requests have brought, for protocols that say it again in each answer. Raises StorageUnavailableError."""

    async def brought(self, turn_id: str) -> Brought:
        """What the request of a turn that the subject was found to own has brought, also while its message waits."""
        ...

    async def keep_answer(
        self, turn_id: str, correlation_id: str, said: Mapping[str, Any], leaving: Leaving | None
    ) -> Brought:
        """Keep what the request has `said` in `response`, by the call whose answer begins another response of the turn,
        and what becomes of the turn from then on when it is left; unless the call is answered already. Returns what the
        turn was brought, with it."""
        ...

    async def ends_when_left(self, turn_id: str) -> bool:
        """Whether the last request that went on with the turn lets it be cancelled when nobody reads it any more."""
        ...

    async def forget(self, subject: str, turn_id: str, *, key_id: str = "") -> bool:
        """Forget what its answers say of the request. Returns whether its session has no other turn."""
        ...
