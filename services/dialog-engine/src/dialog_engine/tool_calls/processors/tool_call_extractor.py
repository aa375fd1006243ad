"""Step 4, each round: which tool calls the reply asks for."""

from dataclasses import replace

from dialog_engine.model import TextDelta, ToolCall
from dialog_engine.tool_calls.context import TurnContext
from plugins_contract.ids import new_id

OUT_OF_ROUNDS = "I have used up the tool calls that I may make for one answer, and could not finish."


class ToolCallExtractor:
    """Gives every call a correlation id of our own; the provider's ids may repeat from round to round.

    Calls in a last answer, which may make none, are not run.
    """

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Adds the calls. What decides is the calls that are there, not the finish reason."""
        if ctx.last is not None:
            if ctx.reply.tool_calls and not ctx.reply.text.strip():
                ctx.band.emit(TextDelta(OUT_OF_ROUNDS))
            return replace(ctx, calls=())
        calls = [
            (ToolCall(event.tool_call_id, new_id(), event.name, event.arguments, event.extra), event.problem)
            for event in ctx.reply.tool_calls
        ]
        problems = {call.correlation_id: problem for call, problem in calls if problem}
        return replace(ctx, calls=tuple(call for call, _ in calls), problems=problems)
