"""Questions of servers: put by the owner of a turn, answered at any engine, and awaited where it is not parked."""

import asyncio
import time
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
)
from dialog_engine.tool_calls.results.steps import Steps
from dialog_engine.tool_calls.values import AnswerKey, timed
from plugins_contract.catalog import ToolEntry
from plugins_contract.encryption import Cipher
from plugins_contract.errors import ErrorCode
from plugins_contract.held import HeldState
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import CallState, ToolError, ToolOutcome

LOOK_SECONDS = 1.0
"""The interval at which the owner of a turn that is not parked reads whether a question was answered."""
GONE_SECONDS = 60.0
"""How long a tool is missing in the catalog before its questions are withdrawn: its only worker may be restarting."""
LOOKED_AT = 200
"""The questions of parked turns whose tools one look finds. The next look goes on behind them."""
_GONE = {
    ErrorCode.TOOL_NOT_FOUND: "its server or its tool was removed",
    ErrorCode.PERMISSION_DENIED: "the right to its tool was lost",
    ErrorCode.DISABLED: "its tool was switched off",
}


@dataclass(frozen=True, slots=True)
class Given:
    """What a person says to a question."""

    status: QuestionStatus
    content: Mapping[str, Any] | None = None
    key_id: str = ""
    answer_key: AnswerKey | None = None


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
        gone_seconds: float = GONE_SECONDS,
        note: Callable[[QuestionStatus], None] = lambda _: None,
    ) -> None:
        """`now_ms` is the clock of Redis. A question expires after `timeout_seconds`. `call_timeout_ms` is the time of
        a round of a tool without one of its own. `note` is called with the end of each question that is committed
        here, and with each that is asked."""
        self.store = store
        self._source = source
        self._cipher = cipher
        self._now_ms = now_ms
        self._timeout_ms = round(timeout_seconds * 1000)
        self._call_timeout_ms = call_timeout_ms
        self._gone_seconds = gone_seconds
        self.note = note
        self._wake = asyncio.Event()
        self._missing: dict[str, float] = {}
        """The tools that the catalog did not have at the last look at them, each with the first such look."""
        self._looked_at = ""

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
        for _ in asked.questions:
            self.note(QuestionStatus.ASKED)
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
                return timed(rules.dropped("its session was deleted"), asked.call.correlation_id)
            for step in state.asked.steps(steps.round, asked.answers):
                emit(step)
            asked = state.asked
            if state.outcome is not None:
                return state.outcome
            if state.request is not None:
                return state.request
            if asked.is_open and (over := self._over(turn, asked)) is not None:
                await run_shielded(self._end(turn.turn_id, asked, *over))
                continue
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await wake.wait()
            except TimeoutError:
                pass

    def _over(self, turn: Turn, asked: AskedRound) -> tuple[Answer, ToolOutcome] | None:
        """How the question ends without an answer: nobody answered in time, or the tool or the right is gone."""
        asking, now = asked.asking, self._now_ms()
        if now >= asking.expires_at:
            outcome = rules.unanswered((asking.expires_at - asking.asked_at) // 1000)
            return Answer(QuestionStatus.EXPIRED, now), outcome
        if (gone := self._gone(turn.subject, turn.roles, asked.call.tool_name)) is None:
            return None
        message = f"{gone.message}: the question of its server was withdrawn, and the call did not go on"
        withdrawn = Answer(QuestionStatus.WITHDRAWN, now, reason=_GONE[gone.code])
        return withdrawn, ToolOutcome.failure(CallState.FAILED, gone.code, message)

    def _gone(self, subject: str, roles: Sequence[str], tool_name: str) -> ToolError | None:
        """Why nobody is asked for this tool any more."""
        if not self._source.tools():
            return None  # the catalog is not known now
        tool = self._source.visible_to(subject, roles).find(tool_name)
        if not isinstance(tool, ToolError) or tool.code is not ErrorCode.TOOL_NOT_FOUND:
            self._missing.pop(tool_name, None)
        elif time.monotonic() - self._missing.setdefault(tool_name, time.monotonic()) < self._gone_seconds:
            return None
        return tool if isinstance(tool, ToolError) and tool.code in _GONE else None

    async def removed(self) -> list[str]:
        """The parked turns with a question whose tool, or the right to it, is gone: of the next LOOKED_AT questions.
        Raises StorageUnavailableError."""
        found = await self.store.parked(self._looked_at, LOOKED_AT)
        self._looked_at = found[-1].correlation_id if len(found) == LOOKED_AT else ""
        return [each.turn_id for each in found if self._gone(each.subject, each.roles, each.tool_name)]

    async def _end(self, turn_id: str, asked: AskedRound, answer: Answer, outcome: ToolOutcome) -> None:
        outcome = timed(outcome, asked.call.correlation_id)
        if await self.store.answer(turn_id, asked, asked.ended(answer), None, outcome):
            for _ in asked.open_questions:
                self.note(answer.status)

    async def close(self, turn: Turn, why: str) -> Sequence[tuple[AskedRound, ToolOutcome]]:
        """Withdraw the open questions of a turn that ends for this reason. Raises as QuestionStore.close."""
        answer, outcome = Answer(QuestionStatus.WITHDRAWN, self._now_ms(), reason=why), rules.dropped(why)
        closed = await self.store.close(turn, answer, lambda call: timed(outcome, call.correlation_id))
        self.note_ends(closed, answer)
        return closed

    def note_ends(self, ended: Sequence[tuple[AskedRound, ToolOutcome]], answer: Answer) -> None:
        """Questions ended with this answer in a transaction of this engine."""
        for asked, _ in ended:
            for _ in range(list(asked.answers.values()).count(answer)):
                self.note(answer.status)

    async def answer(
        self, turn: Turn, found: FoundRound, place: int, given: Given, resume: Resume
    ) -> AskedRound | None:
        """Commit an answer, with the request of the next round if it is the last one, and `resume` the turn if it was
        parked. `turn` has the subject and the roles of the person. None when the round has changed since it was read.

        Raises:
            AnswerRefusedError: it does not fit the form.
            IdempotencyKeyReusedError: the key of the request with the answer stands for another one.
            StorageUnavailableError: it cannot be committed now.
        """
        return await run_shielded(self._answer(turn, found, place, given, resume))

    async def _answer(
        self, turn: Turn, found: FoundRound, place: int, given: Given, resume: Resume
    ) -> AskedRound | None:
        asked, now = found.asked, self._now_ms()
        if (over := self._over(turn, asked)) is not None:
            ended, outcome = over
            return await self._commit(found, asked.ended(ended), None, outcome, resume, given.answer_key)
        content = None
        if given.status is QuestionStatus.ANSWERED:
            content, problems = rules.filled(asked.asking.asked.questions[place - 1], given.content)
            if problems:
                raise AnswerRefusedError(problems)
        answers = {**asked.answers, place: Answer(given.status, now, content, given.key_id)}
        complete = len(answers) == len(asked.asking.asked.questions)
        request = partial(self._next, asked, answers) if complete else None
        return await self._commit(found, answers, request, None, resume, given.answer_key)

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
        asked, now = found.asked, self._now_ms()
        answer = Answer(QuestionStatus.ANSWERED, now)  # the address was visited
        if asked.asking.asked.holder:
            answer = Answer(QuestionStatus.WITHDRAWN, now, reason="its server does not wait for the answer any more")
        answers = asked.ended(answer)
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
        answer_key: AnswerKey | None = None,
    ) -> AskedRound | None:
        asked = found.asked
        outcome = outcome and timed(outcome, asked.call.correlation_id)
        committed = await self.store.answer(found.turn_id, asked, answers, request, outcome, answer_key)
        if committed is None:
            return None
        now = replace(asked, answers=answers)
        for place in answers.keys() - asked.answers.keys():
            self.note(answers[place].status)
        if taken := committed.taken:
            steps = Steps(taken, taken.rounds, {asked.call.correlation_id: asked.asking.server})
            finished = [steps.finished(asked.call, outcome)] if outcome else []
            resume(taken, [*now.steps(taken.rounds, asked.answers), *finished])
        self.wake()
        return now
