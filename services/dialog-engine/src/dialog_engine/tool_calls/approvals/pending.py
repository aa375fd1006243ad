"""Calls of running turns that wait for a person's approval.

A decision is a row of the store, which any engine may commit; the rules for it are in `approvals/rules.py`. The engine
that runs the turn finds the row at once when another engine wakes it (`wake`), and otherwise within LOOK_SECONDS.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dialog_engine.errors import StorageUnavailableError
from dialog_engine.model import ApprovalStatus, ChatEvent, ToolCall, Turn, TurnEvent
from dialog_engine.sideband import run_shielded
from dialog_engine.tool_calls.approvals import rules
from dialog_engine.tool_calls.approvals.rules import AnswerCall, AskAgain, RunCall, StaysOpen
from dialog_engine.tool_calls.bounded_validation import validating
from dialog_engine.tool_calls.pipeline import CallResult
from dialog_engine.tool_calls.ports import ApprovalStore, ToolCalls, ToolSource
from dialog_engine.tool_calls.results.steps import Steps
from dialog_engine.tool_calls.values import AnswerKey, ApprovalState, Asked, Decision, Given, Question, timed
from plugins_contract.catalog import ToolEntry
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import ToolOutcome

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""The interval at which the store is asked for decisions."""


@dataclass(frozen=True, slots=True)
class Approved:
    """A call that was approved: it is committed with its request, and can be run. `edited`: see CallResult."""

    call: ToolCall
    request: ToolCallRequested
    edited: dict[str, Any] | None


@dataclass(slots=True, eq=False)
class Waiting:
    """The waiting calls of one turn as its user sees them, and a queue of what has changed for them in the store."""

    turn: Turn
    asked: dict[str, Asked]
    changed: asyncio.Queue[ApprovalState] = field(default_factory=asyncio.Queue[ApprovalState])
    decided: set[str] = field(default_factory=set[str])
    """The calls in `asked` whose decisions are in the queue."""


Resume = Callable[[Turn, Sequence[TurnEvent]], None]
"""Goes on with a turn that was parked and is this engine's now, and whose readers have not seen these events."""


class PendingApprovals:
    """The approvals that turns of this engine wait for. It also commits decisions on those of any turn."""

    def __init__(
        self,
        store: ApprovalStore,
        source: ToolSource,
        calls: ToolCalls,
        *,
        now_ms: Callable[[], int],
        timeout_seconds: float,
        client_timeout_seconds: float = 86_400,
        note: Callable[[ApprovalStatus], None] = lambda _: None,
    ) -> None:
        """`now_ms` is the clock of Redis. Clients have `client_timeout_seconds` for the results of their tools. `note`
        is called with each decision of a person that is committed here, and with each expiry."""
        self._store = store
        self._source = source
        self._calls = calls
        self._now_ms = now_ms
        self._timeout_ms = round(timeout_seconds * 1000)
        self._client_timeout_ms = round(client_timeout_seconds * 1000)
        self._note = note
        self._waiting: dict[str, Waiting] = {}
        self._wake = asyncio.Event()

    def question(self, tool: ToolEntry, arguments: dict[str, Any]) -> Question:
        """The question to put before such a call, whose tool needs approval."""
        return rules.question_for(tool, arguments, self._now_ms(), self._timeout_ms)

    def question_to_client(self, tool: ToolEntry, arguments: dict[str, Any]) -> Question:
        """The question that stands for a call of a tool which the client runs."""
        return rules.question_for(tool, arguments, self._now_ms(), self._client_timeout_ms, by_client=True)

    def wake(self) -> None:
        """Ask the store for decisions now."""
        self._wake.set()

    async def run(self) -> None:
        """Ask the store for decisions at each wake and each interval. Runs until cancelled."""
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
                log.warning("cannot read decisions on tool calls from the store now: %s", error)

    async def decide(
        self,
        turn_id: str,
        asked: Asked,
        given: Given,
        subject: str = "",
        roles: Sequence[str] = (),
        resume: Resume = lambda turn, unseen: None,
    ) -> Decision | None:
        """Commit what follows from a person's decision on a call of any turn, and `resume` the turn if it was parked.

        The person, who is `subject` with these roles, cannot approve a tool that they may not use.

        Returns None when the question is not open any more: the caller reads the call again.

        Raises:
            ApprovalError: the decision is refused. The question stays open, or a new one was put.
            IdempotencyKeyReusedError: the key of the request with the decision stands for another one.
            StorageUnavailableError: it cannot be committed now.
        """
        tool = self._source.visible_to(subject, roles).find(asked.call.tool_name)
        match await validating(rules.judge, asked.question, given, tool, self._now_ms()):
            case StaysOpen(error):
                raise error
            case AskAgain() as again:
                if not await run_shielded(self._ask_again(turn_id, asked, again, resume)):
                    return None
                raise again.error
            case AnswerCall() as answer:
                committed = await run_shielded(self._commit(turn_id, asked, answer, resume, given.answer_key))
                if committed and answer.error is not None:
                    raise answer.error
                return answer.decision if committed else None
            case RunCall() as run:
                committed = await run_shielded(self._commit(turn_id, asked, run, resume, given.answer_key))
                return run.decision if committed else None

    async def decisions(
        self, waiting: Waiting, steps: Steps, emit: Callable[[ChatEvent], None]
    ) -> AsyncGenerator[Approved | CallResult]:
        """Wait until every call has its decision. Each is committed and emitted before it is yielded.

        Raises:
            StorageUnavailableError: the expiry of a question cannot be committed.
        """
        self._waiting.update(dict.fromkeys(waiting.asked, waiting))
        self.wake()  # another engine may have committed a decision before this one took the turn over
        try:
            while waiting.asked:
                state = await self._next(waiting)
                if state is None or (each := waiting.asked.get(state.correlation_id)) is None:
                    continue
                if state.decision is None and state.outcome is None:
                    if state.question == each.question:
                        continue  # the same change was queued twice
                    waiting.asked[state.correlation_id] = again = Asked(each.call, state.question)
                    emit(steps.asked(again))
                    continue
                del waiting.asked[state.correlation_id]
                waiting.decided.discard(state.correlation_id)
                self._waiting.pop(state.correlation_id, None)
                yield _decided(each.call, state, steps, emit)
        finally:
            for correlation_id in waiting.asked:
                if self._waiting.get(correlation_id) is waiting:
                    del self._waiting[correlation_id]

    async def _next(self, waiting: Waiting) -> ApprovalState | None:
        """The next change. None when a question has expired: that is committed, and the change follows."""
        now = self._now_ms()
        for each in waiting.asked.values():
            if each.question.expires_at <= now:
                await run_shielded(self._commit(waiting.turn.turn_id, each, rules.expired(each.question, now)))
        first = min(each.question.expires_at for each in waiting.asked.values())
        try:
            async with asyncio.timeout((first - now) / 1000 if first > now else LOOK_SECONDS):
                return await waiting.changed.get()
        except TimeoutError:
            return None

    async def _ask_again(self, turn_id: str, asked: Asked, again: AskAgain, resume: Resume) -> bool:
        committed = await self._store.ask_again(turn_id, asked, again.question)
        if committed and (turn := committed.taken):
            resume(turn, [_steps(turn, asked).asked(Asked(asked.call, again.question))])
        self.wake()
        return committed is not None

    async def _commit(
        self,
        turn_id: str,
        asked: Asked,
        judgement: RunCall | AnswerCall,
        resume: Resume | None = None,
        answer_key: AnswerKey | None = None,
    ) -> bool:
        outcome: ToolOutcome | None = None
        match judgement:
            case RunCall(decision, tool, arguments):

                def request(turn: Turn) -> ToolCallRequested:
                    by = decision.key_id or turn.subject or "user"
                    return self._calls.request(turn, asked.call, tool, arguments, by)

                committed = await self._store.decide(turn_id, asked, decision, request, None, answer_key)
            case AnswerCall(decision, outcome):
                outcome = timed(outcome, asked.call.correlation_id)
                committed = await self._store.decide(turn_id, asked, decision, None, outcome, answer_key)
        if committed and not asked.question.by_client:
            self._note(judgement.decision.status)
        if committed and resume and (turn := committed.taken):
            steps = _steps(turn, asked)
            finished = [] if outcome is None else [steps.finished(asked.call, outcome)]
            resume(turn, [steps.decided(asked.call, judgement.decision), *finished])
        self.wake()
        return committed is not None

    async def _look(self) -> None:
        """Queue what has changed in the store for the turns that wait for it."""
        for state in await self._store.states(list(self._waiting)):
            waiting = self._waiting.get(state.correlation_id)
            known = waiting.asked.get(state.correlation_id) if waiting else None
            if waiting is None or known is None:
                continue
            if state.decision is None and state.outcome is None:
                if state.question == known.question:
                    continue
            else:
                waiting.decided.add(state.correlation_id)
            waiting.changed.put_nowait(state)


def _steps(turn: Turn, asked: Asked) -> Steps:
    return Steps(turn, turn.rounds, {asked.call.correlation_id: asked.question.server})


def _decided(
    call: ToolCall, state: ApprovalState, steps: Steps, emit: Callable[[ChatEvent], None]
) -> Approved | CallResult:
    """Emit a committed decision, and return what follows from it. Of a client there is the result only."""
    if state.decision is not None and not state.question.by_client:
        emit(steps.decided(call, state.decision))
    if state.outcome is not None:
        emit(steps.finished(call, state.outcome))
        return CallResult(call, state.outcome)
    if state.request is None or state.decision is None:
        raise RuntimeError(f"call {call.correlation_id} was approved without a request")
    return Approved(call, state.request, state.decision.arguments)
