"""Step 7, each round: again, or is this the answer?"""

from dataclasses import replace

from dialog_engine.model import FinishReason, RoundComplete
from dialog_engine.tool_calls.context import Answer, TurnContext


class Recursive:
    """A reply without calls is the answer."""

    def __init__(self, max_rounds: int) -> None:
        self._max_rounds = max_rounds

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Adds the answer, or goes one round deeper."""
        if not ctx.calls:
            out_of_rounds = 0 < self._max_rounds <= ctx.depth
            reason = FinishReason.MAX_ROUNDS if out_of_rounds else ctx.reply.finish_reason
            return replace(ctx, answer=Answer(reason, ctx.usage))
        depth = ctx.depth + 1
        ctx.band.emit(RoundComplete(depth))
        return replace(ctx, depth=depth)
