"""Step 5, each round: commit the calls, see them through, commit what came of each."""

from collections.abc import Sequence
from dataclasses import replace

from dialog_engine.model import AssistantMessage, MessageFinished
from dialog_engine.tool_calls.commits import to_its_end
from dialog_engine.tool_calls.context import CallResult, TurnContext
from dialog_engine.tool_calls.planning import Runnable, Unrunnable, plan
from dialog_engine.tool_calls.ports import CallStore, ToolCalls, ToolSource
from dialog_engine.tool_calls.rounds import OpenCall, see_through
from dialog_engine.tool_calls.steps import Steps


class ToolExecution:
    """All calls of a round run at the same time. A tool's failure is a result like any other."""

    def __init__(self, source: ToolSource, store: CallStore, calls: ToolCalls) -> None:
        self._source = source
        self._store = store
        self._calls = calls

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Adds one result per call, in the order of the calls."""
        if not ctx.calls:
            return ctx
        plans = [plan(call, self._source) for call in ctx.calls]
        open_calls = [
            OpenCall(p.call, self._calls.request(ctx.turn, p.call, p.tool, p.arguments))
            for p in plans
            if isinstance(p, Runnable)
        ]
        steps = Steps(ctx.turn, ctx.depth + 1, {o.call.correlation_id: o.request.server for o in open_calls})
        await to_its_end(self._commit(ctx, plans, open_calls, steps))
        outcomes = await see_through(
            ctx.turn, open_calls, steps=steps, store=self._store, calls=self._calls, emit=ctx.band.emit
        )
        outcomes |= {p.call.correlation_id: p.outcome for p in plans if isinstance(p, Unrunnable)}
        return replace(ctx, results=tuple(CallResult(call, outcomes[call.correlation_id]) for call in ctx.calls))

    async def _commit(
        self, ctx: TurnContext, plans: Sequence[Runnable | Unrunnable], open_calls: Sequence[OpenCall], steps: Steps
    ) -> None:
        """Commit the round, then show it: nothing is shown that is not stored."""
        message = AssistantMessage(ctx.reply.text, ctx.calls, ctx.reply.reasoning)
        unrunnable = {p.call.correlation_id: p.outcome for p in plans if isinstance(p, Unrunnable)}
        message_id = await self._store.add_round(ctx.turn, message, [o.request for o in open_calls], unrunnable)
        ctx.band.emit(MessageFinished(message_id, message))
        for p in plans:
            ctx.band.emit(steps.pending(p.call, p.tool.title if isinstance(p, Runnable) else None))
            if isinstance(p, Unrunnable):
                ctx.band.emit(steps.finished(p.call, p.outcome))
