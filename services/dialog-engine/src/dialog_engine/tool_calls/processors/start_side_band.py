"""Step 3, each round: ask the model; the user reads along."""

from dataclasses import replace

from dialog_engine.model import ChatRequest, TokensSpent
from dialog_engine.tool_calls.context import TurnContext


class StartSideBand:
    """Forks the model's stream: the side band shows the text, the pipeline gets the whole reply.

    After `max_rounds` rounds of tool calls no tools are offered any more, so that the user still gets an answer.
    """

    def __init__(self, max_rounds: int) -> None:
        self._max_rounds = max_rounds

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Adds the reply and its usage."""
        tools = ctx.tools if ctx.depth < self._max_rounds else ()
        reply = await ctx.band.fork(ctx.llm(ChatRequest(ctx.messages, ctx.turn, tools)))
        usage = ctx.usage + reply.usage
        ctx.band.emit(TokensSpent(usage))
        return replace(ctx, reply=reply, usage=usage)
