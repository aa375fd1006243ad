"""Step 4, each round: which tool calls the reply asks for."""

from dataclasses import replace

from dialog_engine.model import TextDelta, ToolCall
from dialog_engine.tool_calls.context import TurnContext
from plugins_contract.ids import new_id

OUT_OF_ROUNDS = "I have used up the tool calls that I may make for one answer, and could not finish."


class ToolCallExtractor:
    """Gives every call a correlation id of our own; the provider's ids may repeat from round to round.

    Calls made after the last round, when no tools were offered, are not run.
    """

    def __init__(self, max_rounds: int) -> None:
        self._max_rounds = max_rounds

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Adds the calls. What decides is the calls that are there, not the finish reason."""
        if ctx.depth >= self._max_rounds:
            if not ctx.reply.text.strip():
                ctx.band.emit(TextDelta(OUT_OF_ROUNDS))
            return replace(ctx, calls=())
        calls = tuple(
            ToolCall(event.tool_call_id, new_id(), event.name, event.arguments, event.extra)
            for event in ctx.reply.tool_calls
        )
        return replace(ctx, calls=calls)
