"""The steps that deal with the model: what it is asked, and what becomes of its reply.

The calls of the reply are run between the two, by `tool_execution`.
"""

from collections.abc import Sequence
from dataclasses import replace

from dialog_engine.model import (
    AssistantMessage,
    ChatRequest,
    FinishReason,
    RoundComplete,
    SystemMessage,
    TextDelta,
    TokensSpent,
    ToolCall,
)
from dialog_engine.sideband import Reply
from dialog_engine.tool_calls import views
from dialog_engine.tool_calls.context import Answer, TurnContext
from dialog_engine.tool_calls.exposure import Exposure
from dialog_engine.tool_calls.normalise import normalise, within_sight
from dialog_engine.tool_calls.ports import ToolSource
from dialog_engine.tool_calls.repeats import LAST_NOTE, last_answer, noted, with_last_note
from plugins_contract.catalog import ToolEntry
from plugins_contract.ids import new_id

# Step 1, once: the conversation as the model is to see it.


class ConversationEntry:
    """Puts the system prompt in front of the history."""

    def __init__(self, system_prompt: str) -> None:
        self._system_prompt = system_prompt

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Adds the system message; an empty prompt adds none."""
        if not self._system_prompt:
            return ctx
        return replace(ctx, messages=(SystemMessage(self._system_prompt), *ctx.messages))


# Step 2, each round: which tools the model is offered.


class ToolPreparation:
    """Offers the tools of the published catalog, as the exposure has it, and the engine's own."""

    def __init__(
        self,
        source: ToolSource,
        exposure: Exposure,
        own: Sequence[ToolEntry] = (),
        reader: ToolEntry | None = None,
    ) -> None:
        """`reader` reads the rest of a result, and is offered to a model that has seen a part of one."""
        self._source = source
        self._exposure = exposure
        self._own = tuple(own)
        self._reader = reader

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Sets the tools. The catalog stays the same for the whole turn, so that a model never loses a tool between
        rounds; it may find more of them."""
        catalog = self._source.tools() if ctx.catalog is None else ctx.catalog
        await self._exposure.prepare(catalog)
        tools = self._exposure.offered(catalog, ctx.messages, self._own, self._reader)
        return replace(ctx, catalog=catalog, tools=tools)


# Step 3, each round: ask the model; the user reads along.


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


# Step 4, each round: which tool calls the reply asks for.

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


# Step 6, each round: the results in the words the model reads.


class ResultFormatting:
    """Puts the assistant's message and, right behind it, one result per call into the conversation."""

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Adds the messages of this round."""
        if not ctx.calls:
            return ctx
        said = AssistantMessage(ctx.reply.text, ctx.calls, ctx.reply.reasoning)
        results = (views.tool_message(result.call, result.outcome, result.edited) for result in ctx.results)
        return replace(ctx, messages=(*ctx.messages, said, *results))


# Step 7, each round: again, or is this the answer?


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
