"""See the committed calls of one round through, in this life of the turn or the next."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from dialog_engine.model import CallAnswered, ChatEvent, ToolCall, Turn
from dialog_engine.tool_calls.commits import to_its_end
from dialog_engine.tool_calls.context import CallResult
from dialog_engine.tool_calls.pending_approvals import Approved, PendingApprovals
from dialog_engine.tool_calls.ports import CallStore, ToolCalls
from dialog_engine.tool_calls.questions import Asked
from dialog_engine.tool_calls.steps import Steps
from dialog_engine.tool_calls.texts import shorten
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import ToolOutcome


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call that is committed with its request and has no outcome yet."""

    call: ToolCall
    request: ToolCallRequested


RESULT_MAX_CHARS = 16_000

Results = dict[str, CallResult]
"""By correlation id."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """Sees calls through. What waits for a person does not hold up what does not."""

    store: CallStore
    calls: ToolCalls
    approvals: PendingApprovals
    result_max_chars: int = RESULT_MAX_CHARS
    """How much of the text of a result is shown to the model; the rest is kept."""

    async def add_result(self, turn: Turn, call: ToolCall, outcome: ToolOutcome) -> ToolOutcome:
        """Commit what came of a call. Returns it as it is shown: see `shorten`."""
        shown, whole = shorten(outcome, call.correlation_id, self.result_max_chars)
        await self.store.add_result(turn, call, shown, whole)
        return shown

    async def see_through(
        self,
        turn: Turn,
        open_calls: Sequence[OpenCall],
        asked: Sequence[Asked],
        *,
        steps: Steps,
        emit: Callable[[ChatEvent], None],
        late: bool = False,
    ) -> Results:
        """Wait for every call and commit its outcome before the user hears of it. `late`: see `ToolCalls.run`.

        An outcome, or a decision, that is being committed when this is cancelled is committed and told all the same.
        """
        if not asked:
            return await self._run(turn, open_calls, steps, emit, late=late)
        try:
            async with asyncio.TaskGroup() as tasks:
                work = self._run(turn, open_calls, steps, emit, late=late)
                running = [tasks.create_task(work, name="calls of the round")]
                results: Results = {}
                async with aclosing(self.approvals.decisions(turn, asked, steps, emit)) as decisions:
                    async for decided in decisions:
                        match decided:
                            case CallResult():
                                results[decided.call.correlation_id] = decided
                            case Approved():
                                name = f"approved call {decided.call.correlation_id}"
                                running.append(
                                    tasks.create_task(self._run_approved(turn, decided, steps, emit), name=name)
                                )
        except ExceptionGroup as group:
            raise group.exceptions[0] from group  # the first: the others followed from it
        for task in running:
            results |= task.result()
        return results

    async def _run_approved(
        self, turn: Turn, approved: Approved, steps: Steps, emit: Callable[[ChatEvent], None]
    ) -> Results:
        # Any engine may have committed the decision.
        results = await self._run(turn, [OpenCall(approved.call, approved.request)], steps, emit, late=True)
        return {i: replace(result, edited=approved.edited) for i, result in results.items()}

    async def _run(
        self,
        turn: Turn,
        open_calls: Sequence[OpenCall],
        steps: Steps,
        emit: Callable[[ChatEvent], None],
        *,
        late: bool,
    ) -> Results:
        by_id = {open_call.call.correlation_id: open_call.call for open_call in open_calls}
        results: Results = {}

        async def answered(call: ToolCall, update: CallAnswered) -> None:
            shown = await self.add_result(turn, call, update.outcome)
            results[call.correlation_id] = CallResult(call, shown)
            emit(steps.finished(call, shown))

        requests = [open_call.request for open_call in open_calls]
        async with aclosing(self.calls.run(requests, late=late)) as updates:
            async for update in updates:
                call = by_id[update.correlation_id]
                if isinstance(update, CallAnswered):
                    await to_its_end(answered(call, update))
                else:
                    emit(steps.update(call, update))
        return results
