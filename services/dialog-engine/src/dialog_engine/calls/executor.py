"""Durable execution of tool calls: creates the requests, waits for their replies, enforces their deadlines."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from callstream_runtime.clock import Clock
from callstream_runtime.redis_errors import RedisUnavailable
from dialog_engine.calls import losses
from dialog_engine.calls.large_results import LargeResults
from dialog_engine.calls.losses import GivenUp, Known, given_up
from dialog_engine.calls.mailbox import Mailbox
from dialog_engine.calls.recent_ends import RecentEnds
from dialog_engine.calls.subscriptions import (
    BlockedCalls,
    CallLost,
    CallMessage,
    CallObserver,
    Subscriptions,
    of_enqueued,
)
from dialog_engine.calls.times import TIMES, ExecutorTimes
from dialog_engine.model import CallAnswered, CallUpdate, ToolCall, Turn
from dialog_engine.tool_calls.ports import ToolCalls
from dialog_engine.tool_calls.questions.values import MayAsk
from plugins_contract.catalog import ToolEntry
from plugins_contract.encryption import Cipher, seal_request
from plugins_contract.keys import Keys
from plugins_contract.ledger import UNKNOWN_INCARNATION, EngineLedger
from plugins_contract.ledger.replies import (
    AlreadyFinished,
    Cancelled,
    CancelledAtOnce,
    CancelledUnseen,
    CancelRequested,
    EndedLost,
    Loss,
    NotLost,
)
from plugins_contract.messages import ToolCallRequested, approve
from plugins_contract.outcomes import CallState, ToolOutcome

log = logging.getLogger(__name__)

T = TypeVar("T")
TOGETHER_SECONDS = 0.1
"""A call that is overdue so soon after another is ended with it: each attempt takes up to `ExecutorTimes.ask`."""
ASK_AGAIN_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A call that is waited for until `ends_at`. Both times are seconds on the clock of the event loop.

    `since` is None for a call that was committed earlier.
    """

    request: ToolCallRequested
    since: float | None
    ends_at: float


@dataclass(frozen=True, slots=True)
class _Overdue:
    """The time until which this call is waited for is over."""

    correlation_id: str


class CallExecutor(ToolCalls):
    """The tool calls of one engine."""

    def __init__(
        self,
        ledger: EngineLedger,
        calls: Subscriptions,
        mailbox: Mailbox,
        blocked: BlockedCalls,
        keys: Keys,
        clock: Clock,
        ended: RecentEnds,
        large: LargeResults,
        *,
        default_timeout_ms: int,
        observer: CallObserver | None = None,
        cipher: Cipher,
        times: ExecutorTimes = TIMES,
        may_ask: MayAsk | None = None,
    ) -> None:
        self._ledger = ledger
        self._calls = calls
        self._mailbox = mailbox
        self._blocked = blocked
        self._keys = keys
        self._clock = clock
        self._ended = ended
        self._large = large
        self._default_timeout_ms = default_timeout_ms
        self._observer = observer or CallObserver()
        self._cipher = cipher
        self._times = times
        self._may_ask = may_ask or MayAsk()

    @property
    def waiting(self) -> int:
        """How many calls are waited for."""
        return len(self._calls)

    def request(
        self, turn: Turn, call: ToolCall, tool: ToolEntry, arguments: dict[str, Any], approved_by: str = ""
    ) -> ToolCallRequested:
        request = ToolCallRequested(
            correlation_id=call.correlation_id,
            session_id=turn.session_id,
            turn_id=turn.turn_id,
            turn=turn.epoch,
            tool_call_id=call.tool_call_id,
            tool_name=call.tool_name,
            server=tool.server,
            tool=tool.tool,
            arguments=arguments,
            response_channel=self._keys.response(call.correlation_id),
            mailbox=self._mailbox.key,
            deadline=self._clock.now_ms() + (tool.timeout_ms or self._default_timeout_ms),
            execution_class=tool.execution_class,
            subject=turn.subject,
            roles=turn.roles,
            traceparent=turn.traceparent,
            choice=turn.choice.tools or msgspec.UNSET,
            keeps_large=self._large.taken or msgspec.UNSET,
            may_ask=self._may_ask.allowed or msgspec.UNSET,
        )
        request = approve(request, approved_by)
        return seal_request(request, self._cipher) if self._cipher.active else request

    async def run(self, requests: Sequence[ToolCallRequested], *, late: bool = False) -> AsyncGenerator[CallUpdate]:
        # Messages between the commit of the requests and this subscription are not lost: replies are looked up here or
        # by the sweep of the mailbox, and the relay retries refused requests.
        loop, inbox = asyncio.get_running_loop(), asyncio.Queue[CallMessage | _Overdue]()
        since = None if late else loop.time()
        waiting = {request.correlation_id: _Waiting(request, since, self._ends_at(request)) for request in requests}
        with (
            self._blocked.subscribed(requests, inbox.put_nowait),
            self._calls.subscribed(waiting, inbox.put_nowait, sealed=_sealed(requests)),
        ):
            if late:
                self._mailbox.look_up(waiting)
            else:
                for request in requests:
                    self._observer.requested(request)
            timers = [loop.call_at(call.ends_at, inbox.put_nowait, _Overdue(i)) for i, call in waiting.items()]
            try:
                while waiting:
                    for update in await self._updates(await inbox.get(), waiting):
                        if update.correlation_id not in waiting:
                            continue
                        if isinstance(update, CallAnswered):
                            yield await self._answered(waiting.pop(update.correlation_id), update)
                        else:
                            yield update
            finally:
                for timer in timers:
                    timer.cancel()

    async def cancel(self, requests: Sequence[ToolCallRequested]) -> dict[str, ToolOutcome]:
        inbox = asyncio.Queue[CallMessage]()
        ids, outcomes = [request.correlation_id for request in requests], dict[str, ToolOutcome]()
        with self._calls.subscribed(ids, inbox.put_nowait, sealed=_sealed(requests)):
            stopped = await self._end_all(requests, GivenUp.STOPPED)
            outcomes |= {i: outcome for i, outcome in zip(ids, stopped, strict=True) if outcome is not None}
            try:
                async with asyncio.timeout(self._times.cancel):
                    while len(outcomes) < len(ids):
                        update = await inbox.get()
                        if isinstance(update, CallAnswered):
                            outcomes[update.correlation_id] = update.outcome
            except TimeoutError:
                pass  # their workers are silent
        ended: dict[str, ToolOutcome] = {}
        for request in requests:
            outcome = outcomes.get(request.correlation_id) or given_up(GivenUp.STOPPED, Known.RUNNING, request)
            outcome = await self._large.whole(request.correlation_id, outcome)
            ended[request.correlation_id] = losses.of_class(request, outcome)
            self._observer.finished(request, ended[request.correlation_id])
        return ended

    async def _answered(self, call: _Waiting, answer: CallAnswered) -> CallAnswered:
        waited = None if call.since is None else asyncio.get_running_loop().time() - call.since
        if answer.outcome.state is CallState.UNKNOWN:
            answer = CallAnswered(answer.correlation_id, losses.of_class(call.request, answer.outcome))
        self._observer.finished(call.request, answer.outcome, waited)
        if answer.outcome.kept:
            answer = CallAnswered(answer.correlation_id, await self._large.whole(answer.correlation_id, answer.outcome))
        return answer

    def _ends_at(self, request: ToolCallRequested) -> float:
        """When to give up, in seconds on the clock of the event loop, which no step of Redis' clock moves."""
        left = (request.deadline - self._clock.now_ms()) / 1000
        return asyncio.get_running_loop().time() + left + self._times.grace

    async def _updates(self, message: CallMessage | _Overdue, waiting: Mapping[str, _Waiting]) -> Sequence[CallUpdate]:
        """The update in a message; for an overdue call, the answers to all calls that are overdue."""
        if not isinstance(message, (_Overdue, CallLost)):
            return (message,)
        if (call := waiting.get(message.correlation_id)) is None:
            return ()
        if isinstance(message, _Overdue):
            soon = asyncio.get_running_loop().time() + TOGETHER_SECONDS
            overdue = [each.request for each in waiting.values() if each.ends_at <= soon]
            outcomes = await self._end_all(overdue, GivenUp.OVERDUE)
            return [
                CallAnswered(request.correlation_id, outcome or given_up(GivenUp.OVERDUE, Known.RUNNING, request))
                for request, outcome in zip(overdue, outcomes, strict=True)
            ]
        update = await self._settle(call.request, message.loss)
        return (update,) if update else ()

    async def _settle(self, request: ToolCallRequested, loss: Loss) -> CallUpdate | None:
        """Settle a lost call. None when its state does not change, or when Redis cannot be asked now."""
        self._observer.lost(request, loss)
        match losses.remedy(loss, request, self._clock.now_ms()):
            case losses.EnqueueAgain():
                answer = await self._asked(request, self._ledger.enqueue(request))
                return answer and of_enqueued(request.correlation_id, answer)
            case losses.EndAs(outcome):
                match await self._asked(request, self._ledger.lose(request, loss, outcome)):
                    case EndedLost():
                        return CallAnswered(request.correlation_id, outcome)
                    case AlreadyFinished(finished):
                        return CallAnswered(request.correlation_id, finished)
                    case NotLost() | None:
                        return None
            case losses.LeaveIt():
                return None

    async def _end_all(self, requests: Sequence[ToolCallRequested], why: GivenUp) -> list[ToolOutcome | None]:
        """End calls, all together: see `_end`."""
        offered_to = await self._mailbox.unpublished([request.correlation_id for request in requests])
        return await asyncio.gather(*(self._end(request, why, offered_to) for request in requests))

    async def _end(self, request: ToolCallRequested, why: GivenUp, offered_to: Mapping[str, str]) -> ToolOutcome | None:
        """End a call. `offered_to` are the calls that are not published, and the incarnation that each may be known to.

        Returns its outcome; None while a worker runs it.
        """
        not_begun, unseen = given_up(why, Known.NOT_BEGUN, request), given_up(why, Known.LOST, request)
        match await self._asked(request, self._request_end(request, not_begun, unseen, offered_to)):
            case None:
                return given_up(why, Known.NOTHING, request)
            case CancelledAtOnce():
                outcome = not_begun
            case CancelledUnseen():
                outcome = unseen
            case AlreadyFinished(finished):
                outcome = finished
            case CancelRequested():
                return None
        if outcome in (not_begun, unseen):  # also when this engine ended it and the first answer was lost
            self._ended.add(request, outcome)
        return outcome

    async def _asked(self, request: ToolCallRequested, question: Awaitable[T]) -> T | AlreadyFinished | None:
        """The answer of the ledger about a call; None when it cannot be asked now.

        A mistake of this program ends the call: the answer says that it has ended so.
        """
        try:
            async with asyncio.timeout(self._times.ask):
                return await question
        except (RedisUnavailable, TimeoutError):
            return None
        except Exception:
            log.exception("call %s cannot be ended", request.correlation_id)
            return AlreadyFinished(losses.of_class(request, losses.internal_error()))

    async def _request_end(
        self, request: ToolCallRequested, outcome: ToolOutcome, unseen: ToolOutcome, offered_to: Mapping[str, str]
    ) -> Cancelled:
        """CANCEL, retried while Redis is unavailable: repeating it after a lost reply returns the same answer."""
        while True:
            where = offered_to.get(request.correlation_id, UNKNOWN_INCARNATION)
            try:
                return await self._ledger.cancel(request, outcome, unseen=unseen, offered_to=where)
            except RedisUnavailable:
                await asyncio.sleep(ASK_AGAIN_SECONDS)
            # The relay may have offered it meanwhile.
            offered_to = await self._mailbox.unpublished([request.correlation_id])


def _sealed(requests: Sequence[ToolCallRequested]) -> frozenset[str]:
    return frozenset(request.correlation_id for request in requests if request.sealed)
