"""Step 3, each round: ask the model; the user reads along."""

from dataclasses import replace

from dialog_engine.model import ChatRequest, TokensSpent
from dialog_engine.tool_calls.context import TurnContext
from dialog_engine.tool_calls.normalise import normalise


class StartSideBand:
    """Forks the model's stream: the side band shows the text, the pipeline gets the whole reply.

    The conversation is made acceptable to every provider before each request, not only before the first: a provider
    may use a call id of an earlier round again.

    After `max_rounds` rounds of tool calls no tools are offered any more, so that the user still gets an answer.
    """

    def __init__(self, max_rounds: int) -> None:
        self._max_rounds = max_rounds

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Adds the reply and its usage."""
        tools = ctx.tools if ctx.depth < self._max_rounds else ()
        reply = await ctx.band.fork(ctx.llm(ChatRequest(normalise(ctx.messages), ctx.turn, tools)))
        usage = ctx.usage + reply.usage
        ctx.band.emit(TokensSpent(usage))
        return replace(ctx, reply=reply, usage=usage)
