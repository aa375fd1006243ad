"""Tool calls that wait for a person's approval.

A decision is a row of the store, committed by whichever engine is asked. The turn that waits finds it there: at once
when its engine is told (`wake`), and by looking once a second in any case.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dialog_engine.errors import StorageUnavailableError
from dialog_engine.model import ApprovalStatus, ChatEvent, ToolCall, Turn
from dialog_engine.tool_calls import approvals
from dialog_engine.tool_calls.approvals import Answer, AskAgain, Reject, Run
from dialog_engine.tool_calls.commits import to_its_end
from dialog_engine.tool_calls.context import CallResult
from dialog_engine.tool_calls.ports import ApprovalStore, ToolCalls, ToolSource
from dialog_engine.tool_calls.questions import ApprovalState, Asked, Decision, Given, Question
from dialog_engine.tool_calls.steps import Steps
from plugins_contract.catalog import ToolEntry
from plugins_contract.messages import ToolCallRequested

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Approved:
    """The call is committed with a request now, and is to be seen through. `edited`: see CallResult."""

    call: ToolCall
    request: ToolCallRequested
    edited: dict[str, Any] | None


@dataclass(slots=True, eq=False)
class _Waiting:
    """The calls of one turn that wait, and what is committed of them by now."""

    turn: Turn
    asked: dict[str, Asked]
    changed: asyncio.Queue[ApprovalState] = field(default_factory=asyncio.Queue[ApprovalState])


class PendingApprovals:
    """The approvals that turns of this engine wait for, and decisions on those of any turn."""

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
        """`now_ms` is the clock of Redis; `note` is told of each decision that is committed here."""
        self._store = store
        self._source = source
        self._calls = calls
        self._now_ms = now_ms
        self._timeout_ms = round(timeout_seconds * 1000)
        self._note = note
        self._waiting: dict[str, _Waiting] = {}
        self._wake = asyncio.Event()

    @property
    def waiting(self) -> int:
        """How many calls wait for a person."""
        return len(self._waiting)

    def question(self, tool: ToolEntry, arguments: dict[str, Any]) -> Question | None:
        """What is to be asked before such a call; None when nothing is."""
        return approvals.question_for(tool, arguments, self._now_ms(), self._timeout_ms)

    def wake(self) -> None:
        """A decision may have been committed: look now."""
        self._wake.set()

    async def run(self) -> None:
        """Look for decisions, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                await self._look()
            except StorageUnavailableError as error:
                log.warning("decisions on tool calls cannot be read now: %s", error)

    async def decide(self, turn_id: str, asked: Asked, given: Given) -> Decision | None:
        """Judge what a person says about a call of any turn, and commit what follows from it.

        None when the question does not stand any more: look at the call again.

        Raises:
            ApprovalError: it cannot be taken; nothing has changed, or a new question was put.
            StorageUnavailableError: it cannot be committed now.
        """
        tool = self._source.find(asked.call.tool_name)
        match approvals.judge(asked.question, given, tool, self._now_ms()):
            case Reject(error):
                raise error
            case AskAgain(question, error):
                if not await to_its_end(self._store.ask_again(turn_id, asked, question)):
                    return None
                self.wake()
                raise error
            case Answer() as answer:
                taken = await to_its_end(self._commit(turn_id, asked, answer))
                if taken and answer.error is not None:
                    raise answer.error
                return answer.decision if taken else None
            case Run() as run:
                return run.decision if await to_its_end(self._commit(turn_id, asked, run)) else None

    async def decisions(
        self, turn: Turn, asked: Sequence[Asked], steps: Steps, emit: Callable[[ChatEvent], None]
    ) -> AsyncGenerator[Approved | CallResult]:
        """Wait until every call is decided on; each decision is committed, and shown, before it is yielded.

        Raises:
            StorageUnavailableError: that a call's time is up cannot be committed.
        """
        waiting = _Waiting(turn, {each.call.correlation_id: each for each in asked})
        self._waiting.update(dict.fromkeys(waiting.asked, waiting))
        self.wake()  # for a decision that was committed before this engine took the turn
        try:
            while waiting.asked:
                state = await self._next(waiting)
                if state is None or (each := waiting.asked.get(state.correlation_id)) is None:
                    continue
                if state.decision is None and state.outcome is None:
                    if state.question == each.question:
                        continue  # found twice
                    waiting.asked[state.correlation_id] = again = Asked(each.call, state.question)
                    emit(steps.asked(again))
                    continue
                del waiting.asked[state.correlation_id]
                self._waiting.pop(state.correlation_id, None)
                yield _told(each.call, state, steps, emit)
        finally:
            for correlation_id in waiting.asked:
                if self._waiting.get(correlation_id) is waiting:
                    del self._waiting[correlation_id]

    async def _next(self, waiting: _Waiting) -> ApprovalState | None:
        """The next change, or None when a call's time was up: that is a change to come."""
        now = self._now_ms()
        for each in waiting.asked.values():
            if each.question.expires_at <= now:
                await to_its_end(self._commit(waiting.turn.turn_id, each, approvals.expired(each.question, now)))
        first = min(each.question.expires_at for each in waiting.asked.values())
        try:
            async with asyncio.timeout((first - now) / 1000 if first > now else LOOK_SECONDS):
                return await waiting.changed.get()
        except TimeoutError:
            return None

    async def _commit(self, turn_id: str, asked: Asked, judgement: Run | Answer) -> bool:
        match judgement:
            case Run(decision, tool, arguments):
                taken = await self._store.decide(
                    turn_id, asked, decision, lambda turn: self._calls.request(turn, asked.call, tool, arguments), None
                )
            case Answer(decision, outcome):
                taken = await self._store.decide(turn_id, asked, decision, None, outcome)
        if taken:
            self._note(judgement.decision.status)
        self.wake()
        return taken

    async def _look(self) -> None:
        """Hand what has changed to those that wait for it."""
        for state in await self._store.states(list(self._waiting)):
            waiting = self._waiting.get(state.correlation_id)
            known = waiting.asked.get(state.correlation_id) if waiting else None
            if waiting is None or known is None:
                continue
            if state.decision is None and state.outcome is None and state.question == known.question:
                continue
            waiting.changed.put_nowait(state)


def _told(
    call: ToolCall, state: ApprovalState, steps: Steps, emit: Callable[[ChatEvent], None]
) -> Approved | CallResult:
    """Show a decision that is committed, and say what follows from it."""
    if state.decision is not None:
        emit(steps.decided(call, state.decision))
    if state.outcome is not None:
        emit(steps.finished(call, state.outcome))
        return CallResult(call, state.outcome)
    if state.request is None or state.decision is None:
        raise RuntimeError(f"call {call.correlation_id} was approved without a request")
    return Approved(call, state.request, state.decision.arguments)
