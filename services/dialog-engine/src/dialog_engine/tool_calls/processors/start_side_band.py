"""Step 3, each round: ask the model; the user reads along."""

from dataclasses import replace

from dialog_engine.model import ChatRequest, TokensSpent
from dialog_engine.sideband import Reply
from dialog_engine.tool_calls.context import TurnContext
from dialog_engine.tool_calls.limits import LAST_NOTE, last_answer
from dialog_engine.tool_calls.media import within_sight
from dialog_engine.tool_calls.normalise import normalise
from dialog_engine.tool_calls.repeats import noted, with_last_note


class StartSideBand:
    """Forks the model's stream: the side band shows the text, the pipeline gets the whole reply.

    The conversation is made acceptable to every provider before each request, not only before the first: a provider
    may use a call id of an earlier round again. Results that repeat too often are noted as such.

    When the turn may make no more calls the model is asked for its last answer: with the tools declared and forbidden
    and, if it calls one all the same and says nothing, without them.
    """

    def __init__(self, max_rounds: int) -> None:
        self._max_rounds = max_rounds

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Adds the reply and its usage."""
        messages = normalise(ctx.messages)
        last = last_answer(messages, ctx.depth, self._max_rounds)
        told = noted(messages) if last is None else with_last_note(noted(messages), LAST_NOTE)
        request = ChatRequest(within_sight(told), ctx.turn, ctx.tools, answer_only=last is not None)
        ctx, reply = await self._ask(ctx, request)
        if last and reply.tool_calls and not reply.text.strip():
            ctx, reply = await self._ask(ctx, replace(request, tools=()))
        return replace(ctx, reply=reply, last=last)

    async def _ask(self, ctx: TurnContext, request: ChatRequest) -> tuple[TurnContext, Reply]:
        reply = await ctx.band.fork(ctx.llm(request))
        usage = ctx.usage + reply.usage
        ctx.band.emit(TokensSpent(usage))
        return replace(ctx, usage=usage), reply
