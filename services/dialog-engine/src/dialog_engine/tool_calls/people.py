"""The calls of a round of which some wait for people: approvals, answers to questions of their servers, and results of
tools that the client runs."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from dialog_engine.model import Turn, WaitingForUser
from dialog_engine.sideband import SideBand
from dialog_engine.tool_calls.approvals.pending import Approved, PendingApprovals, Waiting
from dialog_engine.tool_calls.pipeline import CallResult
from dialog_engine.tool_calls.questions.pending import PendingQuestions
from dialog_engine.tool_calls.questions.values import AskedRound
from dialog_engine.tool_calls.results.steps import Steps
from dialog_engine.tool_calls.values import Asked, OpenCall
from plugins_contract.outcomes import ToolOutcome

Results = dict[str, CallResult]
"""By correlation id."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of calls: the results of those that have ended, the rounds that ended with questions, and the rest,
    which is still open."""

    results: Results
    rounds: Sequence[AskedRound] = ()
    rest: Sequence[OpenCall] = ()


Run = Callable[[Sequence[OpenCall], bool], Awaitable[Ran]]
"""Waits for calls; the flag is `late` of `ToolCalls.run`."""


class WaitingForPeople:
    """The open calls of one round. A call is open for a worker, which has its request, or for a person: those do not
    delay the others, and the turn is parked when there are no others."""

    def __init__(
        self,
        turn: Turn,
        steps: Steps,
        band: SideBand,
        run: Run,
        approvals: PendingApprovals,
        questions: PendingQuestions,
    ) -> None:
        self._turn = turn
        self._steps = steps
        self._band = band
        self._run = run
        self._approvals = approvals
        self._questions = questions
        self._waiting = Waiting(turn, {})
        self._rounds: dict[str, AskedRound] = {}
        self._running = 0
        self._results: Results = {}
        self._done = asyncio.Event()

    async def results(
        self, open_calls: Sequence[OpenCall], asked: Sequence[Asked], rounds: Sequence[AskedRound], *, late: bool
    ) -> Results:
        """Wait for all of them. Raises TurnParkedError, and what its parts raise."""
        self._waiting.asked.update({each.call.correlation_id: each for each in asked})
        try:
            async with asyncio.TaskGroup() as self._tasks:
                if asked:
                    self._tasks.create_task(self._decisions(), name="approvals of the round")
                for each in rounds:
                    self._await_answers(each)
                self._start(open_calls, late=late)
                # Not in the end of the group: a task that fails there leaves this one marked as cancelled.
                await self._done.wait()
        except ExceptionGroup as group:
            raise group.exceptions[0] from group  # the first one cancelled the other tasks
        return self._results

    def _start(self, open_calls: Sequence[OpenCall], *, late: bool, edited: Mapping[str, Any] | None = None) -> None:
        self._running += 1
        self._tasks.create_task(self._run_calls(open_calls, late, edited), name="calls of the round")

    async def _run_calls(self, open_calls: Sequence[OpenCall], late: bool, edited: Mapping[str, Any] | None) -> None:
        ran = await self._run(open_calls, late)
        for correlation_id, result in ran.results.items():
            self._results[correlation_id] = replace(result, edited=edited) if edited is not None else result
        for each in ran.rounds:
            self._await_answers(each)
        self._running -= 1
        if ran.rest:
            self._start(ran.rest, late=True)
        self._wait_for_user()

    async def _decisions(self) -> None:
        async with aclosing(self._approvals.decisions(self._waiting, self._steps, self._band.emit)) as decisions:
            async for decided in decisions:
                match decided:
                    case CallResult():
                        self._results[decided.call.correlation_id] = decided
                        if not self._waiting.decided:  # results that were sent together end one wait
                            self._wait_for_user()
                    case Approved(call, request, edited):
                        # Another engine may have committed the decision, some time ago.
                        self._start([OpenCall(call, request)], late=True, edited=edited)

    def _await_answers(self, asked: AskedRound) -> None:
        self._rounds[asked.id] = asked
        self._tasks.create_task(self._answers(asked), name=f"questions of {asked.id}")

    async def _answers(self, asked: AskedRound) -> None:
        follows = await self._questions.answered(self._turn, asked, self._steps, self._band.emit)
        del self._rounds[asked.id]
        if isinstance(follows, ToolOutcome):
            self._band.emit(self._steps.finished(asked.call, follows))
            self._results[asked.call.correlation_id] = CallResult(asked.call, follows)
            self._wait_for_user()
        else:
            self._start([OpenCall(asked.call, follows)], late=True)

    def _wait_for_user(self) -> None:
        """Park the turn, if nothing of it is open for a worker."""
        approvals = self._waiting.asked
        if self._running:
            return
        if not approvals and not self._rounds:
            self._done.set()
            return
        calls = (*approvals, *(each.call.correlation_id for each in self._rounds.values()))
        open_questions = tuple(question for each in self._rounds.values() for question in each.open_questions)
        by_client = sum(each.question.by_client for each in approvals.values())
        hashes = {i: each.question.hash for i, each in approvals.items() if not each.question.by_client}
        self._band.emit(WaitingForUser(len(hashes), open_questions, calls, by_client, hashes=hashes))
        shown = {i: each.question.hash for i, each in approvals.items()}
        shown |= {each.id: str(len(each.answers)) for each in self._rounds.values()}
        self._tasks.create_task(self._band.park(shown), name="park the turn")
