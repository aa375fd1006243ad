"""The tool calls that this engine waits for: their messages are delivered to their waiters, and what blocks them."""

import asyncio
import contextlib
from collections.abc import Callable, Container, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from callstream_runtime.clock import RedisWatch
from dialog_engine.model import CallAnswered, CallHeld, CallProgressed, CallQueued, CallRunning, CallUpdate, WaitsFor
from dialog_engine.tool_calls.ports import ToolDirectory
from plugins_contract.catalog import HEARTBEAT_SECONDS
from plugins_contract.errors import ErrorCode
from plugins_contract.ledger.replies import (
    AlreadyFinished,
    AlreadyQueued,
    Conflict,
    Enqueued,
    Loss,
    Moved,
    Overloaded,
    Queued,
)
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import CallFinished, CallProgress, CallReply, CallStarted, CallState, ToolOutcome

LOOK_SECONDS = 0.5
SETTLED_SECONDS = 2 * HEARTBEAT_SECONDS
"""How long Redis must have been steady before a missing heartbeat means anything: living workers have sent one then."""


@dataclass(frozen=True, slots=True)
class Unpublishable:
    """The request cannot be published: it cannot be decoded, or Redis refuses the command. It was not run."""

    reason: str


NotPublished = Overloaded | Conflict | Unpublishable
"""Why a call is not published. Once the call was answered so, it never is."""


def reason_of(refusal: NotPublished) -> str:
    """The reason, for operators who read the outbox."""
    match refusal:
        case Unpublishable(reason):
            return reason
        case Overloaded(backlog):
            return f"{backlog} calls wait already"
        case Conflict():
            return "its correlation id names another request"


@dataclass(frozen=True, slots=True)
class CallLost:
    """The audit found that Redis has lost something of this call; delivered with every audit while that holds."""

    correlation_id: str
    loss: Loss


CallMessage = CallUpdate | CallLost
Deliver = Callable[[CallMessage], None]
"""Takes the messages of a call. Must not block."""


@dataclass(slots=True, eq=False)
class _Subscription:
    deliver: Deliver
    last_message_at: float
    sealed: bool = False
    replied: bool = False


class Subscriptions:
    """The calls that are waited for. A later subscription to a call replaces the earlier one."""

    def __init__(self) -> None:
        self._calls: dict[str, _Subscription] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, correlation_id: str) -> bool:
        return correlation_id in self._calls

    @contextlib.contextmanager
    def subscribed(
        self, correlation_ids: Iterable[str], deliver: Deliver, *, sealed: Container[str] = ()
    ) -> Generator[None]:
        """Deliver the messages of these calls while the context is open, or until their terminal reply.

        `sealed` are those whose requests are encrypted.
        """
        now = asyncio.get_running_loop().time()
        ours = {each: _Subscription(deliver, now, each in sealed) for each in correlation_ids}
        self._calls.update(ours)
        try:
            yield
        finally:
            for correlation_id, subscription in ours.items():
                # A later subscription may have replaced this one.
                if self._calls.get(correlation_id) is subscription:
                    del self._calls[correlation_id]

    def enqueued(self, correlation_id: str, answer: Enqueued | Unpublishable) -> bool:
        """Deliver the result of publishing a request. Returns whether the call is waited for."""
        if (subscription := self._calls.get(correlation_id)) is None:
            return False
        update = of_enqueued(correlation_id, answer)
        # A fast worker replies before the relay has read the answer of ENQUEUE: a running call is not shown as queued.
        if not (subscription.replied and isinstance(update, CallQueued)):
            subscription.deliver(update)
        return True

    def replied(self, correlation_id: str, reply: CallReply) -> None:
        """Deliver a reply. After the terminal one the call is not waited for any more."""
        subscription = self._calls.get(correlation_id)
        if subscription is None:
            return
        subscription.last_message_at, subscription.replied = asyncio.get_running_loop().time(), True
        subscription.deliver(of_reply(correlation_id, reply))
        if isinstance(reply, CallFinished):
            self._calls.pop(correlation_id, None)

    def lost(self, correlation_id: str, loss: Loss) -> None:
        """Deliver a loss that the audit found."""
        if subscription := self._calls.get(correlation_id):
            subscription.deliver(CallLost(correlation_id, loss))

    def sealed(self, correlation_id: str) -> bool:
        """Whether the request of a call that is waited for is encrypted."""
        subscription = self._calls.get(correlation_id)
        return subscription is not None and subscription.sealed

    def quiet_for(self, seconds: float) -> list[str]:
        """The calls without a message for longer than that."""
        since = asyncio.get_running_loop().time() - seconds
        return [call for call, subscription in self._calls.items() if subscription.last_message_at < since]

    def all(self) -> list[str]:
        """The calls that are waited for."""
        return list(self._calls)


def of_reply(correlation_id: str, reply: CallReply) -> CallUpdate:
    """A reply as an update."""
    match reply:
        case CallStarted(attempt):
            return CallRunning(correlation_id, attempt)
        case CallProgress(progress, total, message):
            return CallProgressed(correlation_id, progress, total, message)
        case CallFinished(outcome):
            return CallAnswered(correlation_id, outcome)


def of_enqueued(correlation_id: str, answer: Enqueued | Unpublishable) -> CallUpdate:
    """The answer of ENQUEUE, or why it could not be asked, as an update."""
    match answer:
        case Queued(backlog=backlog):
            return CallQueued(correlation_id, backlog)
        case AlreadyQueued() | Moved():
            return CallQueued(correlation_id)
        case AlreadyFinished(outcome):
            return CallAnswered(correlation_id, outcome)
        case Overloaded(backlog):
            message = f"{backlog} tool calls are waiting already: try again later"
            return CallAnswered(correlation_id, _failed(ErrorCode.OVERLOADED, message))
        case Unpublishable(reason):
            message = f"the request cannot be sent to the workers, so it was not run: {reason}"
            return CallAnswered(correlation_id, _failed(ErrorCode.UNKNOWN_ERROR, message))
        case Conflict():
            return CallAnswered(
                correlation_id, _failed(ErrorCode.UNKNOWN_ERROR, "another request has this correlation id")
            )


def _failed(code: ErrorCode, message: str) -> ToolOutcome:
    return ToolOutcome.failure(CallState.FAILED, code, message)


class BlockedCalls:
    """Polls the availability of Redis and of workers, and notifies subscribers when it changes."""

    def __init__(self, watch: RedisWatch, tools: ToolDirectory) -> None:
        self._watch = watch
        self._tools = tools
        self._redis_unavailable = False
        self._without_worker: frozenset[str] = frozenset()
        """The MCP servers that no worker reports."""
        self._subscribers: set[_BlockedSubscriber] = set()

    def waits_for(self, server: str) -> WaitsFor | None:
        """What a call to that MCP server waits for; None when nothing blocks it."""
        if self._redis_unavailable:
            return WaitsFor.REDIS
        return WaitsFor.WORKER if server in self._without_worker else None

    @contextlib.contextmanager
    def subscribed(self, requests: Sequence[ToolCallRequested], deliver: Callable[[CallHeld], None]) -> Generator[None]:
        """Deliver what each call waits for at every change, while the context is open. `deliver` must not block."""
        subscriber = _BlockedSubscriber(requests, deliver)
        subscriber.update(self.waits_for)
        self._subscribers.add(subscriber)
        try:
            yield
        finally:
            self._subscribers.discard(subscriber)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Look once, and notify."""
        before = self._redis_unavailable, self._without_worker
        self._redis_unavailable = not self._watch.available
        settled = self._watch.steady_for() >= SETTLED_SECONDS
        views = self._tools.servers if settled else ()
        self._without_worker = frozenset(view.catalog.server for view in views if not view.workers)
        if (self._redis_unavailable, self._without_worker) != before:
            for subscriber in self._subscribers:
                subscriber.update(self.waits_for)


class _BlockedSubscriber:
    """Calls that are waited for together, and what was last delivered for each."""

    def __init__(self, requests: Sequence[ToolCallRequested], deliver: Callable[[CallHeld], None]) -> None:
        self._delivered: dict[str, WaitsFor | None] = {}
        self._requests = requests
        self._deliver = deliver

    def update(self, waits_for: Callable[[str], WaitsFor | None]) -> None:
        for request in self._requests:
            now = waits_for(request.server)
            if now is not self._delivered.get(request.correlation_id):
                self._delivered[request.correlation_id] = now
                self._deliver(CallHeld(request.correlation_id, now))


class CallObserver:
    """What the executor and the relay report about tool calls. This one does nothing; others count, log and trace.

    Its methods must not block and must not raise.
    """

    def requested(self, request: ToolCallRequested) -> None:
        """The call is committed, and waited for from now on."""

    def publishing(self, requests: Sequence[ToolCallRequested]) -> AbstractContextManager[object]:
        """The calls are being put on the stream while the context is open."""
        return nullcontext()

    def enqueued(self, request: ToolCallRequested, entry: str, backlog: int) -> None:
        """The call is on the stream as `entry`, behind `backlog` others."""

    def refused(self, correlation_id: str, request: ToolCallRequested | None, reason: str, detail: str) -> None:
        """The call is not on the stream: `reason` is overloaded, conflict or error. `request` is None if it cannot be
        read."""

    def lost(self, request: ToolCallRequested, loss: Loss) -> None:
        """Redis has lost something of the call."""

    def finished(self, request: ToolCallRequested, outcome: ToolOutcome, seconds: float | None = None) -> None:
        """The call has its outcome, after it was waited for `seconds`; None for a call of an earlier life."""
