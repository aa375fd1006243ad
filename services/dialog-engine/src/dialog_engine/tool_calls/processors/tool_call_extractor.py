"""Step 4, each round: which tool calls the reply asks for."""

from dataclasses import replace

from dialog_engine.model import FinishReason, TextDelta, ToolCall
from dialog_engine.sideband import Reply
from dialog_engine.tool_calls.context import TurnContext
from plugins_contract.ids import new_id

OUT_OF_ROUNDS = "I have used up the tool calls that I may make for one answer, and could not finish."
TOO_LONG = "I could not finish: each time, the limit of my reply cut off the tool call that I was writing."


class ToolCallExtractor:
    """Gives every call a correlation id of our own; the provider's ids may repeat from round to round.

    Calls in a last answer, which may make none, are not run. A reply that was cut off before any of its calls was
    complete is tried once more, and the model is told why; cut again it is the answer, because a limit does not move.
    """

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Adds the calls. What decides is the calls that are there, not the finish reason."""
        if ctx.last is not None:
            if ctx.reply.tool_calls and not ctx.reply.text.strip():
                ctx.band.emit(TextDelta(OUT_OF_ROUNDS))
            return replace(ctx, calls=())
        cut = _cut_before_any_call(ctx.reply)
        if cut and ctx.cut:
            if not ctx.reply.text.strip():
                ctx.band.emit(TextDelta(TOO_LONG))
            return replace(ctx, calls=())
        calls = [
            (ToolCall(event.tool_call_id, new_id(), event.name, event.arguments, event.extra), event.problem)
            for event in ctx.reply.tool_calls
        ]
        problems = {call.correlation_id: problem for call, problem in calls if problem}
        return replace(ctx, calls=tuple(call for call, _ in calls), problems=problems, cut=cut)


def _cut_before_any_call(reply: Reply) -> bool:
    """A limit or a filter ended the reply, and left no call that could be run."""
    cut = reply.finish_reason in (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)
    return cut and bool(reply.tool_calls) and all(call.problem for call in reply.tool_calls)
