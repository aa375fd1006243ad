"""Step 5, each round: commit the calls, see them through, commit what came of each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dialog_engine.model import AssistantMessage, MessageFinished
from dialog_engine.tool_calls.commits import to_its_end
from dialog_engine.tool_calls.context import CallResult, TurnContext
from dialog_engine.tool_calls.planning import Runnable, Unrunnable, plan
from dialog_engine.tool_calls.ports import ToolSource
from dialog_engine.tool_calls.questions import Asked
from dialog_engine.tool_calls.rounds import OpenCall, Rounds
from dialog_engine.tool_calls.steps import Steps


@dataclass(frozen=True, slots=True)
class _Plan:
    """What becomes of the calls of one round: every call is in one of the three."""

    calls: Sequence[Runnable | Unrunnable]
    open_calls: Sequence[OpenCall]
    asked: Sequence[Asked]


class ToolExecution:
    """All calls of a round run at the same time. A tool's failure is a result like any other.

    A call that needs approval is committed without a request: there is nothing that could be relayed.
    """

    def __init__(self, source: ToolSource, rounds: Rounds) -> None:
        self._source = source
        self._rounds = rounds

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Adds one result per call, in the order of the calls."""
        if not ctx.calls:
            return ctx
        planned = self._planned(ctx)
        servers = {each.call.correlation_id: each.request.server for each in planned.open_calls}
        servers |= {each.call.correlation_id: each.question.server for each in planned.asked}
        steps = Steps(ctx.turn, ctx.depth + 1, servers)
        await to_its_end(self._commit(ctx, planned, steps))
        results = await self._rounds.see_through(
            ctx.turn, planned.open_calls, planned.asked, steps=steps, emit=ctx.band.emit
        )
        results |= {
            p.call.correlation_id: CallResult(p.call, p.outcome) for p in planned.calls if isinstance(p, Unrunnable)
        }
        return replace(ctx, results=tuple(results[call.correlation_id] for call in ctx.calls))

    def _planned(self, ctx: TurnContext) -> _Plan:
        plans = [plan(call, self._source) for call in ctx.calls]
        open_calls: list[OpenCall] = []
        asked: list[Asked] = []
        for p in plans:
            if not isinstance(p, Runnable):
                continue
            if question := self._rounds.desk.question(p.tool, p.arguments):
                asked.append(Asked(p.call, question))
            else:
                request = self._rounds.calls.request(ctx.turn, p.call, p.tool, p.arguments)
                open_calls.append(OpenCall(p.call, request))
        return _Plan(plans, open_calls, asked)

    async def _commit(self, ctx: TurnContext, planned: _Plan, steps: Steps) -> None:
        """Commit the round, then show it: nothing is shown that is not stored."""
        message = AssistantMessage(ctx.reply.text, ctx.calls, ctx.reply.reasoning)
        questions = {each.call.correlation_id: each for each in planned.asked}
        message_id = await self._rounds.store.add_round(
            ctx.turn,
            message,
            [each.request for each in planned.open_calls],
            {p.call.correlation_id: p.outcome for p in planned.calls if isinstance(p, Unrunnable)},
            {correlation_id: each.question for correlation_id, each in questions.items()},
        )
        ctx.band.emit(MessageFinished(message_id, message))
        for p in planned.calls:
            ctx.band.emit(steps.pending(p.call, p.tool.title if isinstance(p, Runnable) else None))
            if isinstance(p, Unrunnable):
                ctx.band.emit(steps.finished(p.call, p.outcome))
            elif each := questions.get(p.call.correlation_id):
                ctx.band.emit(steps.asked(each))
