"""The tool calls that this engine waits for, and where the updates of each from relay, mailbox and audit are delivered.

They are delivered as `CallUpdate`s, the types of the pipeline.
"""

import asyncio
import contextlib
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass

from dialog_engine.model import CallAnswered, CallProgressed, CallQueued, CallRunning, CallUpdate
from dialog_engine.streams.refusals import Rejected
from plugins_contract.errors import ErrorCode
from plugins_contract.ledger.replies import AlreadyFinished, AlreadyQueued, Conflict, Enqueued, Loss, Overloaded, Queued
from plugins_contract.outcomes import CallFinished, CallProgress, CallReply, CallStarted, CallState, ToolOutcome


@dataclass(frozen=True, slots=True)
class CallLost:
    """The audit found that Redis has lost something of this call. Repeated by each audit while that is so."""

    correlation_id: str
    loss: Loss


Update = CallUpdate | CallLost
Deliver = Callable[[Update], None]
"""Takes an update of a call. It must not block."""


@dataclass(slots=True, eq=False)
class _Subscription:
    deliver: Deliver
    received_at: float


class Subscriptions:
    """The calls that are waited for. A later subscription to the same call replaces an earlier one."""

    def __init__(self) -> None:
        self._calls: dict[str, _Subscription] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, correlation_id: str) -> bool:
        return correlation_id in self._calls

    @contextlib.contextmanager
    def subscribed(self, correlation_ids: Iterable[str], deliver: Deliver) -> Generator[None]:
        """Deliver the updates of these calls while the context is open, each until its terminal reply."""
        now = asyncio.get_running_loop().time()
        ours = {correlation_id: _Subscription(deliver, now) for correlation_id in correlation_ids}
        self._calls.update(ours)
        try:
            yield
        finally:
            for correlation_id, subscription in ours.items():
                # A later subscription may have replaced this one.
                if self._calls.get(correlation_id) is subscription:
                    del self._calls[correlation_id]

    def enqueued(self, correlation_id: str, answer: Enqueued | Rejected) -> bool:
        """Deliver the answer of ENQUEUE. Returns whether the call is waited for."""
        subscription = self._calls.get(correlation_id)
        if subscription is not None:
            subscription.deliver(of_enqueued(correlation_id, answer))
        return subscription is not None

    def replied(self, correlation_id: str, reply: CallReply) -> None:
        """Deliver a message of the response channel. The terminal one ends the subscription."""
        subscription = self._calls.get(correlation_id)
        if subscription is None:
            return
        subscription.received_at = asyncio.get_running_loop().time()
        subscription.deliver(of_reply(correlation_id, reply))
        if isinstance(reply, CallFinished):
            self._calls.pop(correlation_id, None)

    def lost(self, correlation_id: str, loss: Loss) -> None:
        """Deliver that the audit found the call lost."""
        if subscription := self._calls.get(correlation_id):
            subscription.deliver(CallLost(correlation_id, loss))

    def quiet_for(self, seconds: float) -> list[str]:
        """The calls without a reply for longer than that."""
        since = asyncio.get_running_loop().time() - seconds
        return [call for call, subscription in self._calls.items() if subscription.received_at < since]

    def all(self) -> list[str]:
        """The calls that are waited for."""
        return list(self._calls)


def of_reply(correlation_id: str, reply: CallReply) -> CallUpdate:
    """The update that a message of the response channel means."""
    match reply:
        case CallStarted(attempt):
            return CallRunning(correlation_id, attempt)
        case CallProgress(progress, total, message):
            return CallProgressed(correlation_id, progress, total, message)
        case CallFinished(outcome):
            return CallAnswered(correlation_id, outcome)


def of_enqueued(correlation_id: str, answer: Enqueued | Rejected) -> CallUpdate:
    """The update that an answer of ENQUEUE means, or a request that could not be enqueued."""
    match answer:
        case Queued(backlog=backlog):
            return CallQueued(correlation_id, backlog)
        case AlreadyQueued():
            return CallQueued(correlation_id)
        case AlreadyFinished(outcome):
            return CallAnswered(correlation_id, outcome)
        case Overloaded(backlog):
            message = f"{backlog} tool calls are waiting already: try again later"
            return CallAnswered(correlation_id, _failed(ErrorCode.OVERLOADED, message))
        case Rejected(reason):
            message = f"the request cannot be sent to the workers, so it was not run: {reason}"
            return CallAnswered(correlation_id, _failed(ErrorCode.UNKNOWN_ERROR, message))
        case Conflict():
            return CallAnswered(
                correlation_id, _failed(ErrorCode.UNKNOWN_ERROR, "another request has this correlation id")
            )


def _failed(code: ErrorCode, message: str) -> ToolOutcome:
    return ToolOutcome.failure(CallState.FAILED, code, message)
