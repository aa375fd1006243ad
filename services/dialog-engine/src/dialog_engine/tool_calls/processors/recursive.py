"""Step 7, each round: again, or is this the answer?"""

from dataclasses import replace

from dialog_engine.model import FinishReason, RoundComplete
from dialog_engine.tool_calls.context import Answer, TurnContext


class Recursive:
    """A reply without calls is the answer."""

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Adds the answer, or goes one round deeper."""
        if not ctx.calls:
            cut = ctx.reply.finish_reason in (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)
            reason = ctx.reply.finish_reason if cut or ctx.last is None else ctx.last
            return replace(ctx, answer=Answer(reason, ctx.usage))
        depth = ctx.depth + 1
        ctx.band.emit(RoundComplete(depth))
        return replace(ctx, depth=depth)
