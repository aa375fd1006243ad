"""Step 5, each round: commit the calls, see them through, commit what came of each."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dialog_engine.model import AssistantMessage, MessageFinished, ToolCall
from dialog_engine.tool_calls.commits import to_its_end
from dialog_engine.tool_calls.context import CallResult, TurnContext
from dialog_engine.tool_calls.local_tools import LocalTools
from dialog_engine.tool_calls.normalise import normalise
from dialog_engine.tool_calls.planning import Runnable, Unrunnable, invalid, plan
from dialog_engine.tool_calls.questions import Asked
from dialog_engine.tool_calls.repeats import Repeats, repeats
from dialog_engine.tool_calls.rounds import OpenCall, Rounds
from dialog_engine.tool_calls.steps import Steps


@dataclass(frozen=True, slots=True)
class _Plan:
    """What becomes of the calls of one round: every call is in one of the three."""

    calls: Sequence[Runnable | Unrunnable]
    open_calls: Sequence[OpenCall]
    asked: Sequence[Asked]

    @property
    def answered(self) -> Sequence[Unrunnable]:
        """Those that are answered before anything is committed."""
        return [p for p in self.calls if isinstance(p, Unrunnable)]

    @property
    def ran_here(self) -> dict[str, str]:
        """By correlation id: who ran those of them that were run."""
        return {each.call.correlation_id: each.tool.server for each in self.answered if each.tool}


class ToolExecution:
    """All calls of a round run at the same time. A tool's failure is a result like any other.

    A call that needs approval is committed without a request: there is nothing that could be relayed.
    """

    def __init__(self, tools: LocalTools, rounds: Rounds) -> None:
        self._tools = tools
        self._rounds = rounds

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Adds one result per call, in the order of the calls, each of which now names the tool that it means."""
        if not ctx.calls:
            return ctx
        if ctx.committed is not None:
            await ctx.committed.wait()
        planned = await self._planned(ctx)
        servers = planned.ran_here
        servers |= {each.call.correlation_id: each.request.server for each in planned.open_calls}
        servers |= {each.call.correlation_id: each.question.server for each in planned.asked}
        steps = Steps(ctx.turn, ctx.depth + 1, servers)
        await to_its_end(self._commit(ctx, planned, steps))
        results = await self._rounds.see_through(
            ctx.turn, planned.open_calls, planned.asked, steps=steps, emit=ctx.band.emit
        )
        results |= {each.call.correlation_id: CallResult(each.call, each.outcome) for each in planned.answered}
        calls = tuple(each.call for each in planned.calls)
        return replace(ctx, calls=calls, results=tuple(results[call.correlation_id] for call in calls))

    async def _planned(self, ctx: TurnContext) -> _Plan:
        repeated = repeats(normalise(ctx.messages))
        plans = await asyncio.gather(*(self._plan(ctx, call, repeated) for call in ctx.calls))
        open_calls: list[OpenCall] = []
        asked: list[Asked] = []
        for p in plans:
            if not isinstance(p, Runnable):
                continue
            if question := self._rounds.approvals.question(p.tool, p.arguments):
                asked.append(Asked(p.call, question))
            else:
                request = self._rounds.calls.request(ctx.turn, p.call, p.tool, p.arguments)
                open_calls.append(OpenCall(p.call, request))
        return _Plan(plans, open_calls, asked)

    async def _plan(self, ctx: TurnContext, call: ToolCall, repeated: Repeats) -> Runnable | Unrunnable:
        planned = plan(call, self._tools)
        if refusal := repeated.refusal(call):
            return Unrunnable(planned.call, refusal)
        if problem := ctx.problems.get(call.correlation_id):
            return invalid(planned.call, problem)
        if isinstance(planned, Unrunnable):
            return planned
        return await self._tools.answered(ctx.turn, planned) or planned

    async def _commit(self, ctx: TurnContext, planned: _Plan, steps: Steps) -> None:
        """Commit the round, then show it: nothing is shown that is not stored."""
        message = AssistantMessage(ctx.reply.text, tuple(p.call for p in planned.calls), ctx.reply.reasoning)
        questions = {each.call.correlation_id: each for each in planned.asked}
        message_id = await self._rounds.store.add_round(
            ctx.turn,
            message,
            [each.request for each in planned.open_calls],
            {each.call.correlation_id: each.outcome for each in planned.answered},
            {correlation_id: each.question for correlation_id, each in questions.items()},
            planned.ran_here,
            cost=ctx.reply.usage,
        )
        ctx.band.emit(MessageFinished(message_id, message))
        for p in planned.calls:
            ctx.band.emit(steps.pending(p.call, p.tool.title if p.tool else None))
            if isinstance(p, Unrunnable):
                ctx.band.emit(steps.finished(p.call, p.outcome))
            elif each := questions.get(p.call.correlation_id):
                ctx.band.emit(steps.asked(each))
