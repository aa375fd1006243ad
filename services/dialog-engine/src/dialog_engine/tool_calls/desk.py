"""The desk where decisions on waiting calls are handed in. The task that runs the turn takes them: it alone decides."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dialog_engine.errors import ApprovalDecidedError, ApprovalError, StorageUnavailableError
from dialog_engine.model import ApprovalStatus, ChatEvent, ToolCall, Turn
from dialog_engine.tool_calls import approvals
from dialog_engine.tool_calls.approvals import Answer, AskAgain, Reject, Run
from dialog_engine.tool_calls.commits import to_its_end
from dialog_engine.tool_calls.context import CallResult
from dialog_engine.tool_calls.ports import ApprovalStore, ToolCalls, ToolSource
from dialog_engine.tool_calls.questions import Asked, Decision, Given, Question
from dialog_engine.tool_calls.steps import Steps
from plugins_contract.catalogue import ToolEntry
from plugins_contract.messages import ToolCallRequested


class NotWaitingHereError(Exception):
    """No call of that id waits here (any more)."""


@dataclass(frozen=True, slots=True)
class Approved:
    """The call is committed with a request now, and is to be seen through. `edited`: see CallResult."""

    call: ToolCall
    request: ToolCallRequested
    edited: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class _HandedIn:
    """What a person says about a call, and where the answer goes."""

    correlation_id: str
    given: Given
    answer: asyncio.Future[Decision]


@dataclass(slots=True)
class _Waiting:
    """The calls of one turn that wait."""

    turn: Turn
    asked: dict[str, Asked]
    steps: Steps
    emit: Callable[[ChatEvent], None]


_Inbox = asyncio.Queue[_HandedIn]


class ApprovalDesk:
    """The approvals of the turns that run here."""

    def __init__(
        self,
        store: ApprovalStore,
        source: ToolSource,
        calls: ToolCalls,
        *,
        now_ms: Callable[[], int],
        timeout_seconds: float,
        note: Callable[[ApprovalStatus], None] = lambda _: None,
    ) -> None:
        """`now_ms` is the clock of Redis; `note` is told of each decision."""
        self._store = store
        self._source = source
        self._calls = calls
        self._now_ms = now_ms
        self._timeout_ms = round(timeout_seconds * 1000)
        self._note = note
        self._inboxes: dict[str, _Inbox] = {}

    @property
    def waiting(self) -> int:
        """How many calls wait for a person."""
        return len(self._inboxes)

    def question(self, tool: ToolEntry, arguments: dict[str, Any]) -> Question | None:
        """What is to be asked before such a call; None when nothing is."""
        return approvals.question_for(tool, arguments, self._now_ms(), self._timeout_ms)

    def expects(self, correlation_id: str) -> bool:
        """Whether that call waits here."""
        return correlation_id in self._inboxes

    async def hand_in(self, correlation_id: str, given: Given) -> Decision:
        """Give a decision to the turn that waits for it. Returns when it is committed.

        Raises:
            NotWaitingHereError: nothing was done.
            ApprovalError: it cannot be taken.
            StorageUnavailableError: it cannot be committed now.
        """
        inbox = self._inboxes.get(correlation_id)
        if inbox is None:
            raise NotWaitingHereError
        handed_in = _HandedIn(correlation_id, given, asyncio.get_running_loop().create_future())
        inbox.put_nowait(handed_in)
        return await handed_in.answer

    async def decisions(
        self, turn: Turn, asked: Sequence[Asked], steps: Steps, emit: Callable[[ChatEvent], None]
    ) -> AsyncGenerator[Approved | CallResult]:
        """Wait until every call is decided on; each decision is committed, and told, before it is yielded."""
        waiting = _Waiting(turn, {each.call.correlation_id: each for each in asked}, steps, emit)
        inbox = _Inbox()
        self._inboxes.update(dict.fromkeys(waiting.asked, inbox))
        try:
            while waiting.asked:
                for decided in await self._next(waiting, inbox):
                    self._inboxes.pop(decided.call.correlation_id, None)
                    yield decided
        finally:
            for each in asked:
                if self._inboxes.get(each.call.correlation_id) is inbox:
                    del self._inboxes[each.call.correlation_id]
            while not inbox.empty():
                _fail(inbox.get_nowait(), NotWaitingHereError())

    async def _next(self, waiting: _Waiting, inbox: _Inbox) -> Sequence[Approved | CallResult]:
        now = self._now_ms()
        overdue = [each for each in waiting.asked.values() if each.question.expires_at <= now]
        if overdue:
            return [await self._answered(waiting, each, approvals.expired(each.question, now)) for each in overdue]
        first = min(each.question.expires_at for each in waiting.asked.values())
        try:
            async with asyncio.timeout((first - now) / 1000):
                handed_in = await inbox.get()
        except TimeoutError:
            return ()
        try:
            decided = await self._taken(waiting, handed_in)
        except Exception as error:
            _fail(handed_in, error)
            if not isinstance(error, ApprovalError | NotWaitingHereError | StorageUnavailableError):
                raise
            return ()  # nothing has changed: the question stands
        except asyncio.CancelledError:
            _fail(handed_in, NotWaitingHereError())
            raise
        return (decided,) if decided else ()

    async def _taken(self, waiting: _Waiting, handed_in: _HandedIn) -> Approved | CallResult | None:
        asked = waiting.asked.get(handed_in.correlation_id)
        if asked is None:
            raise NotWaitingHereError
        tool = self._source.find(asked.call.tool_name)
        match approvals.judge(asked.question, handed_in.given, tool, self._now_ms()):
            case Reject(error):
                raise error
            case AskAgain(question, error):
                await to_its_end(self._ask_again(waiting, asked, question))
                raise error
            case Answer() as answer:
                decided: Approved | CallResult = await self._answered(waiting, asked, answer)
                if answer.error is not None:
                    _fail(handed_in, answer.error)
                decision = answer.decision
            case Run() as run:
                decided, decision = await self._approved(waiting, asked, run), run.decision
        if not handed_in.answer.done():
            handed_in.answer.set_result(decision)
        return decided

    async def _approved(self, waiting: _Waiting, asked: Asked, run: Run) -> Approved:
        request = self._calls.request(waiting.turn, asked.call, run.tool, run.arguments)
        await to_its_end(self._commit(waiting, asked, run.decision, request=request))
        return Approved(asked.call, request, run.decision.arguments)

    async def _answered(self, waiting: _Waiting, asked: Asked, answer: Answer) -> CallResult:
        result = CallResult(asked.call, answer.outcome)
        await to_its_end(self._commit(waiting, asked, answer.decision, result=result))
        return result

    async def _commit(
        self,
        waiting: _Waiting,
        asked: Asked,
        decision: Decision,
        *,
        request: ToolCallRequested | None = None,
        result: CallResult | None = None,
    ) -> None:
        outcome = result.outcome if result else None
        if not await self._store.decide(waiting.turn, asked, decision, request, outcome):
            raise ApprovalDecidedError("this call was decided on before")
        del waiting.asked[asked.call.correlation_id]
        self._note(decision.status)
        waiting.emit(waiting.steps.decided(asked.call, decision))
        if outcome is not None:
            waiting.emit(waiting.steps.finished(asked.call, outcome))

    async def _ask_again(self, waiting: _Waiting, asked: Asked, question: Question) -> None:
        if not await self._store.ask_again(waiting.turn, asked, question):
            raise ApprovalDecidedError("this call was decided on before")
        again = Asked(asked.call, question)
        waiting.asked[asked.call.correlation_id] = again
        waiting.emit(waiting.steps.asked(again))


def _fail(handed_in: _HandedIn, error: Exception) -> None:
    if not handed_in.answer.done():
        handed_in.answer.set_exception(error)
