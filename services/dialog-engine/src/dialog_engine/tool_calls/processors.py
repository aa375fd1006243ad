"""The seven steps of a turn, in the order in which the pipeline runs them.

1. conversation_entry, 2. tool_preparation, 3. start_side_band, 4. tool_call_extractor, 5. tool_execution (in
`execution`), 6. result_formatting, 7. recursive. The first runs once, the others in each round.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from callstream_runtime.long_texts import reading
from dialog_engine.context import characters_of, tokens_of_reply, within_sight
from dialog_engine.errors import LLMStreamEmptyError
from dialog_engine.model import (
    NOTHING_BROUGHT,
    AssistantMessage,
    ChatRequest,
    FinishReason,
    Message,
    Meter,
    RoundComplete,
    Sampling,
    StreamEnd,
    SystemMessage,
    TextDelta,
    TokensSpent,
    ToolCall,
    Usage,
)
from dialog_engine.sideband import Reply, fork
from dialog_engine.tool_calls.execution import Rounds, ToolExecution
from dialog_engine.tool_calls.exposure.exposure import Exposure
from dialog_engine.tool_calls.exposure.instructions import instructed
from dialog_engine.tool_calls.exposure.search import ToolSearch
from dialog_engine.tool_calls.local_tools import LocalTool
from dialog_engine.tool_calls.normalise import normalise
from dialog_engine.tool_calls.pipeline import Pipeline, TurnContext
from dialog_engine.tool_calls.planning import (
    DEFAULT_LIMITS,
    EMPTY_NOTE,
    CallLimits,
    Repeats,
    calls_of_turn,
    find_repeats,
    with_last_note,
    with_note,
)
from dialog_engine.tool_calls.ports import ToolSource
from dialog_engine.tool_calls.results.texts import tool_message
from plugins_contract.catalog import ToolEntry
from plugins_contract.messages import new_id

log = logging.getLogger(__name__)


def standard_pipeline(
    *,
    source: ToolSource,
    rounds: Rounds,
    system_prompt: str,
    max_rounds: int,
    local: Sequence[LocalTool] = (),
    exposure: Exposure | None = None,
    reader: LocalTool | None = None,
    resources: Sequence[LocalTool] = (),
    limits: CallLimits = DEFAULT_LIMITS,
) -> Pipeline:
    """The pipeline of the product: at most `max_rounds` rounds of tool calls, then a last answer without tools.

    `local` are tools that the engine answers itself. `reader` is one more, which reads the rest of shortened results,
    and `resources` are those that are offered where there are resources. `exposure` says how the tools of `source` are
    offered; the default is `auto`.
    """
    answered_here = (*local, *resources, ToolSearch(source), *((reader,) if reader else ()))
    reading = [tool.entry for tool in resources]
    own, reader_entry = [tool.entry for tool in local], reader.entry if reader else None
    return Pipeline(
        prepare=(ConversationEntry(system_prompt),),
        rounds=(
            ToolPreparation(source, exposure or Exposure(), own, reader_entry, reading),
            StartSideBand(max_rounds, limits),
            ToolCallExtractor(limits.per_turn),
            ToolExecution(source, answered_here, rounds, limits),
            ResultFormatting(),
            Recursive(),
        ),
    )


class ConversationEntry:
    """Step 1, once: puts the system prompt in front of the history, and behind it the instructions of the conversation
    and of the sender."""

    def __init__(self, system_prompt: str) -> None:
        self._system_prompt = system_prompt

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Adds the system message; an empty prompt and no instructions add none."""
        brought = ctx.turn.brought or NOTHING_BROUGHT
        parts = [each for each in (self._system_prompt, brought.standing, brought.instructions) if each]
        if not parts:
            return ctx
        return replace(ctx, messages=(SystemMessage("\n\n".join(parts)), *ctx.messages))


class ToolPreparation:
    """Step 2: chooses the tools that the model is offered, from the published catalog and the engine's own."""

    def __init__(
        self,
        source: ToolSource,
        exposure: Exposure,
        own: Sequence[ToolEntry] = (),
        reader: ToolEntry | None = None,
        reading: Sequence[ToolEntry] = (),
    ) -> None:
        """`reading` is offered beside `own` where there are resources. `reader` reads the rest of shortened results; it
        is offered once the conversation has one."""
        self._source = source
        self._exposure = exposure
        self._own = tuple(own)
        self._reader = reader
        self._reading = tuple(reading)

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Sets the tools, and adds what their servers say about them. The catalog stays the same for the whole turn, so
        that no tool disappears between rounds; a search may add tools."""
        catalog, of_client = ctx.catalog, ctx.turn.client_tools()
        if catalog is None:
            visible = self._source.visible_to(ctx.turn.subject, ctx.turn.roles, ctx.turn.choice.tools)
            catalog, ctx = visible.tools(), replace(ctx, reads=visible.has_resources())
            if any(tool.name in of_client for tool in catalog):  # it came after the client's tools were accepted
                catalog = tuple(tool for tool in catalog if tool.name not in of_client)
            if said := self._source.instructions():
                messages = instructed(ctx.messages, said, catalog, self._exposure.instructions_tokens)
                ctx = replace(ctx, messages=messages)
        await self._exposure.prepare(catalog)
        own = (*self._own, *self._reading) if ctx.reads else self._own
        tools = self._exposure.offered(catalog, ctx.messages, own, self._reader, [*of_client.values()])
        return replace(ctx, catalog=catalog, tools=tools)


class StartSideBand:
    """Step 3: sends the request and forks the model's stream. Text goes to the user, the whole reply to the pipeline.

    The conversation is normalised before every request, not only before the first, because a provider may use the id
    of an earlier round's call again. Results that repeat too often get a note.

    When the turn may make no more calls, the model is asked for its last answer with the tools declared and forbidden.
    If it calls one all the same and writes no text, it is asked again without tools.

    A reply with neither text for the user nor a call is asked for once more, with a note. Nothing explains it to the
    user, such as a limit would, and nothing of it is stored.
    """

    def __init__(self, max_rounds: int, limits: CallLimits = DEFAULT_LIMITS) -> None:
        self._max_rounds = max_rounds
        self._limits = limits

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Adds the reply, its usage, and what the turn has repeated up to this round.

        Raises:
            LLMStreamEmptyError: the model had nothing for the user twice.
        """
        repeats, messages = await reading(characters_of(ctx.messages), _normalised, ctx.messages)
        last = repeats.last_answer(ctx.depth, self._max_rounds)
        if last is None and calls_of_turn(ctx.messages) >= self._limits.per_turn:
            last = FinishReason.MAX_CALLS
        if last is not None:
            messages = with_last_note(messages)
        sampling = ctx.turn.brought.sampling if ctx.turn.brought else Sampling()
        must_call = "" if ctx.depth or last else sampling.must_call
        asked = within_sight(messages), ctx.turn, ctx.tools, last is not None, sampling.stop, must_call
        request = ChatRequest(*asked, left_out=ctx.left_out)
        ctx, reply = await self._ask(ctx, request)
        if last and reply.tool_calls and not reply.text.strip():
            request = replace(request, tools=())
            ctx, reply = await self._ask(ctx, request)
        if _is_empty(reply):
            log.warning("the model's reply has nothing for the user: it is asked once more")
            first = reply.usage
            ctx, reply = await self._ask(ctx, replace(request, messages=with_note(request.messages, EMPTY_NOTE)))
            if _is_empty(reply):
                raise LLMStreamEmptyError(
                    "the model's reply had nothing to read in it and no tool call, and so had its reply when it was"
                    " asked once more"
                )
            reply = replace(reply, usage=first + reply.usage)
        return replace(ctx, reply=reply, last=last, repeats=repeats)

    async def _ask(self, ctx: TurnContext, request: ChatRequest) -> tuple[TurnContext, Reply]:
        """The reply, and the context with its cost.

        A reply that was stopped or broke off has a cost too, and so has one of which the provider reports none. A
        request that failed before its reply began has none.
        """
        request = replace(request, meter=Meter())
        try:
            reply = await fork(await ctx.llm(request), ctx.band, self._limits.reply_bytes, request.meter)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) or request.meter.begun:
                ctx.band.emit(TokensSpent(ctx.usage + tokens_of_reply(request)))
            raise
        if reply.usage == Usage():
            reply = replace(reply, usage=tokens_of_reply(request))
        usage = ctx.usage + reply.usage
        ctx.band.emit(TokensSpent(usage))
        return replace(ctx, usage=usage), reply


def _normalised(messages: Sequence[Message]) -> tuple[Repeats, tuple[Message, ...]]:
    return find_repeats(normalise(messages))


def _is_empty(reply: Reply) -> bool:
    """Whether the user gets nothing of a reply, and no limit or filter explains that."""
    explained = reply.finish_reason in (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)
    return not (explained or reply.tool_calls or reply.text.strip())


OUT_OF_ROUNDS = "I have used up the tool calls that I may make for one answer, and could not finish."
TOO_LONG = "I could not finish: each time, the limit of my reply cut off the tool call that I was writing."


class ToolCallExtractor:
    """Step 4: takes the calls from the reply, and gives each a correlation id: ids of providers may repeat.

    Calls in a last answer are not run. A reply that was cut off before any of its calls was complete is made once
    more, and the model reads why; when that is cut off too, it is the answer. Of more than `most` calls the others are
    left out: those that are kept and not run say how many may be.
    """

    def __init__(self, most: int = DEFAULT_LIMITS.per_turn) -> None:
        self._most = most

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Adds the calls of the reply, whatever its finish reason is."""
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
            for event in ctx.reply.tool_calls[: self._most]
        ]
        problems = {call.correlation_id: problem for call, problem in calls if problem}
        return replace(ctx, calls=tuple(call for call, _ in calls), problems=problems, cut=cut)


def _cut_before_any_call(reply: Reply) -> bool:
    """Whether a limit or a filter ended the reply and left no call that can be run."""
    cut = reply.finish_reason in (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)
    return cut and bool(reply.tool_calls) and all(call.problem for call in reply.tool_calls)


class ResultFormatting:
    """Step 6: appends the assistant's message to the conversation, and behind it one result per call."""

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Adds the messages of this round."""
        if not ctx.calls:
            return ctx
        message = AssistantMessage(ctx.reply.text, ctx.calls, ctx.reply.reasoning)
        results = (tool_message(result.call, result.outcome, result.edited) for result in ctx.results)
        return replace(ctx, messages=(*ctx.messages, message, *results))


class Recursive:
    """Step 7: ends the turn when the reply has no calls, and otherwise starts the next round."""

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Sets the answer, or increments the depth."""
        if not ctx.calls:
            cut = ctx.reply.finish_reason in (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)
            reason = ctx.reply.finish_reason if cut or ctx.last is None else ctx.last
            return replace(ctx, answer=StreamEnd(reason, ctx.usage))
        depth = ctx.depth + 1
        ctx.band.emit(RoundComplete(depth))
        return replace(ctx, depth=depth)
