"""Questions of servers: put by the owner of a turn, answered at any engine, and awaited where it is not parked."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dialog_engine.model import ChatEvent, QuestionStatus, ToolCall, Turn
from dialog_engine.sideband import run_shielded
from dialog_engine.tool_calls.approvals.pending import Resume
from dialog_engine.tool_calls.ports import ToolSource
from dialog_engine.tool_calls.questions import rules
from dialog_engine.tool_calls.questions.values import (
    Answer,
    AnswerRefusedError,
    Answers,
    AskedRound,
    Asking,
    FoundRound,
    QuestionStore,
    RoundState,
)
from dialog_engine.tool_calls.results.steps import Steps
from dialog_engine.tool_calls.values import timed
from plugins_contract.catalog import ToolEntry
from plugins_contract.encryption import Cipher
from plugins_contract.errors import ErrorCode
from plugins_contract.held import HeldState
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import CallState, ToolError, ToolOutcome

LOOK_SECONDS = 1.0
"""The interval at which the owner of a turn that is not parked reads whether a question was answered."""
_GONE = frozenset({ErrorCode.TOOL_NOT_FOUND, ErrorCode.PERMISSION_DENIED, ErrorCode.DISABLED})


@dataclass(frozen=True, slots=True)
class Given:
    """What a person says to a question."""

    status: QuestionStatus
    content: Mapping[str, Any] | None = None
    key_id: str = ""


class PendingQuestions:
    """The questions of all turns, as one engine puts, answers and awaits them."""

    def __init__(
        self,
        store: QuestionStore,
        source: ToolSource,
        *,
        cipher: Cipher,
        now_ms: Callable[[], int],
        timeout_seconds: float,
        call_timeout_ms: int,
        note: Callable[[QuestionStatus], None] = lambda _: None,
    ) -> None:
        """`now_ms` is the clock of Redis. A question expires after `timeout_seconds`. `call_timeout_ms` is the time of
        a round of a tool without one of its own. `note` is called with the end of each question that is committed
        here."""
        self.store = store
        self._source = source
        self._cipher = cipher
        self._now_ms = now_ms
        self._timeout_ms = round(timeout_seconds * 1000)
        self._call_timeout_ms = call_timeout_ms
        self._note = note
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Read now whether questions were answered."""
        wake, self._wake = self._wake, asyncio.Event()
        wake.set()

    async def ask(self, turn: Turn, call: ToolCall, request: ToolCallRequested, outcome: ToolOutcome) -> AskedRound:
        """Commit the questions that ended a round. Raises as QuestionStore.ask."""
        assert outcome.asked is not None, "a round that asks has questions"  # noqa: S101 -- by the state of the outcome
        asked, now = outcome.asked, self._now_ms()
        made: list[Asking] = []

        def make(sent: str) -> Asking:
            made.append(Asking(request.server, request.tool, asked, sent, now, now + self._timeout_ms))
            return made[-1]

        await self.store.ask(turn, call, request, make)
        return AskedRound(call, request.next_round.number if request.next_round else 1, made[-1])

    async def answered(
        self, turn: Turn, asked: AskedRound, steps: Steps, emit: Callable[[ChatEvent], None]
    ) -> ToolCallRequested | ToolOutcome:
        """Wait until a round has its answers, and emit each. The request of the next round, or the call's outcome.

        Raises:
            StorageUnavailableError: the store cannot be read, or the expiry cannot be committed.
        """
        while True:
            wake = self._wake
            state = await self.store.state(asked)
            if state is None:
                return timed(_withdrawn("its session was deleted"), asked.call.correlation_id)
            for step in state.asked.steps(steps.round, asked.answers):
                emit(step)
            asked = state.asked
            if state.outcome is not None:
                return state.outcome
            if state.request is not None:
                return state.request
            if asked.is_open and (why := self._over(turn, state)) is not None:
                await run_shielded(self._end(turn.turn_id, asked, *why))
                continue
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await wake.wait()
            except TimeoutError:
                pass

    def _over(self, turn: Turn, state: RoundState) -> tuple[QuestionStatus, ToolOutcome] | None:
        """Why the question is over without an answer: nobody answered in time, or the tool or the right is gone."""
        asking = state.asked.asking
        if self._now_ms() >= asking.expires_at:
            outcome = rules.unanswered((asking.expires_at - asking.asked_at) // 1000)
            return QuestionStatus.EXPIRED, outcome
        if not self._source.tools():
            return None  # the catalog is not known now
        tool = self._source.visible_to(turn.subject, turn.roles).find(state.asked.call.tool_name)
        if isinstance(tool, ToolError) and tool.code in _GONE:
            message = f"{tool.message}: the question of its server was withdrawn, and the call did not go on"
            return QuestionStatus.WITHDRAWN, ToolOutcome.failure(CallState.FAILED, tool.code, message)
        return None

    async def _end(self, turn_id: str, asked: AskedRound, status: QuestionStatus, outcome: ToolOutcome) -> None:
        answers = ended(asked, status, self._now_ms())
        outcome = timed(outcome, asked.call.correlation_id)
        if await self.store.answer(turn_id, asked, answers, None, outcome):
            self._note(status)

    async def close(self, turn: Turn) -> Sequence[tuple[AskedRound, ToolOutcome]]:
        """Withdraw the open questions of a turn that ends. Raises as QuestionStore.close."""
        message = "the turn ended while its server waited for an answer: it did not go on"
        outcome = ToolOutcome.failure(CallState.CANCELLED, ErrorCode.CANCELLED, message)
        closed = await self.store.close(turn, self._now_ms(), lambda call: timed(outcome, call.correlation_id))
        for _ in closed:
            self._note(QuestionStatus.WITHDRAWN)
        return closed

    async def answer(
        self, turn: Turn, found: FoundRound, place: int, given: Given, resume: Resume
    ) -> AskedRound | None:
        """Commit an answer, with the request of the next round if it is the last one, and `resume` the turn if it was
        parked. `turn` has the subject and the roles of the person. None when the round has changed since it was read.

        Raises:
            AnswerRefusedError: it does not fit the form.
            StorageUnavailableError: it cannot be committed now.
        """
        return await run_shielded(self._answer(turn, found, place, given, resume))

    async def _answer(
        self, turn: Turn, found: FoundRound, place: int, given: Given, resume: Resume
    ) -> AskedRound | None:
        asked, now = found.asked, self._now_ms()
        if (over := self._over(turn, RoundState(asked))) is not None:
            status, outcome = over
            return await self._commit(found, ended(asked, status, now), None, outcome, resume)
        content = None
        if given.status is QuestionStatus.ANSWERED:
            content, problems = rules.filled(asked.asking.asked.questions[place - 1], given.content)
            if problems:
                raise AnswerRefusedError(problems)
        answers = {**asked.answers, place: Answer(given.status, now, content, given.key_id)}
        complete = len(answers) == len(asked.asking.asked.questions)
        request = partial(self._next, asked, answers) if complete else None
        return await self._commit(found, answers, request, None, resume)

    def _next(self, asked: AskedRound, answers: Answers, _: Turn, *, again: bool = False) -> ToolCallRequested:
        tool = self._source.find(asked.call.tool_name)
        timeout = (tool.timeout_ms if isinstance(tool, ToolEntry) else None) or self._call_timeout_ms
        deadline = self._now_ms() + timeout
        return rules.next_request(asked.asking, answers, cipher=self._cipher, deadline=deadline, again=again)

    async def over(self, found: FoundRound, state: HeldState, resume: Resume) -> None:
        """Settle an open question that its server does not wait for any more, and `resume` the turn if it was parked.

        The next round brings what became of the call. If that was lost with its session, the call ends, or runs again.
        Raises StorageUnavailableError.
        """
        asked = found.asked
        status = QuestionStatus.WITHDRAWN if asked.asking.asked.holder else QuestionStatus.ANSWERED
        answers = ended(asked, status, self._now_ms())
        is_lost = state is HeldState.LOST
        outcome = rules.lost(asked.asking) if is_lost else None
        request = None if outcome else partial(self._next, asked, answers, again=is_lost)
        await self._commit(found, answers, request, outcome, resume)

    async def _commit(
        self,
        found: FoundRound,
        answers: Answers,
        request: Callable[[Turn], ToolCallRequested] | None,
        outcome: ToolOutcome | None,
        resume: Resume,
    ) -> AskedRound | None:
        asked = found.asked
        outcome = outcome and timed(outcome, asked.call.correlation_id)
        committed = await self.store.answer(found.turn_id, asked, answers, request, outcome)
        if committed is None:
            return None
        now = replace(asked, answers=answers)
        for place in answers.keys() - asked.answers.keys():
            self._note(answers[place].status)
        if taken := committed.taken:
            steps = Steps(taken, taken.rounds, {asked.call.correlation_id: asked.asking.server})
            finished = [steps.finished(asked.call, outcome)] if outcome else []
            resume(taken, [*now.steps(taken.rounds, {}), *finished])
        self.wake()
        return now


def ended(asked: AskedRound, status: QuestionStatus, at: int) -> dict[int, Answer]:
    """The answers of a round whose open questions end so."""
    places = range(1, 1 + len(asked.asking.asked.questions))
    return {place: asked.answers.get(place) or Answer(status, at) for place in places}


def _withdrawn(why: str) -> ToolOutcome:
    return ToolOutcome.failure(CallState.CANCELLED, ErrorCode.CANCELLED, why)
