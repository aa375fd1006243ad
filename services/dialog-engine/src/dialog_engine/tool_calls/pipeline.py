"""The pipeline of a turn: prepare once, then rounds of model and tools until there is an answer.

`enhance` wraps a chat client in it. The wrapped client has the same interface, and calls tools underneath.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from dialog_engine.model import ChatEvent, ChatRequest, FinishReason, Message, StreamEnd, ToolCall, Turn, Usage
from dialog_engine.sideband import Reply, SideBand
from dialog_engine.tool_calls.ports import StreamChat
from dialog_engine.tool_calls.repeats import Repeats
from plugins_contract.catalog import ToolEntry
from plugins_contract.outcomes import ToolOutcome


@dataclass(frozen=True, slots=True)
class CallResult:
    """A tool call of this round with its terminal outcome.

    `edited` holds the arguments that the call was run with, if the person who approved it changed them.
    """

    call: ToolCall
    outcome: ToolOutcome
    edited: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """How the conversation with the model ended."""

    finish_reason: FinishReason
    usage: Usage


@dataclass(frozen=True, slots=True)
class TurnContext:
    """The state of one turn between two processors. Each processor returns the next one.

    None of it is stored: an engine that takes the turn up again begins with the committed messages.
    """

    turn: Turn
    llm: StreamChat
    band: SideBand
    messages: tuple[Message, ...]
    catalog: tuple[ToolEntry, ...] | None = None
    """All tools there are, as they were when the turn began."""
    tools: tuple[ToolEntry, ...] = ()
    """The tools that the model is offered in this round."""
    depth: int = 0
    """The number of finished rounds of tool calls."""
    last: FinishReason | None = None
    """Why this reply is the answer, when no more calls may be made."""
    repeats: Repeats = field(default_factory=Repeats)
    """The calls that the turn has repeated up to this round."""
    reply: Reply = Reply()
    calls: tuple[ToolCall, ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why calls of the reply cannot be run as they are written, by correlation id."""
    cut: bool = False
    """Whether the reply was cut off before any of its calls was complete."""
    results: tuple[CallResult, ...] = ()
    usage: Usage = Usage()
    answer: Answer | None = None
    committed: asyncio.Future[None] | None = None
    """Set when the beginning of the turn is committed; nothing is written before that. None when it was before."""
    left_out: int = 0
    """How many messages of the session are not among `messages`."""


class Processor(Protocol):
    """One step. It holds no state of a turn: all of that is in the context."""

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Return the context after this step."""
        ...


class Pipeline:
    """Processors in order: those of `prepare` run once, those of `rounds` until one of them sets the answer."""

    def __init__(self, prepare: tuple[Processor, ...], rounds: tuple[Processor, ...]) -> None:
        self._prepare = prepare
        self._rounds = rounds

    async def run(self, ctx: TurnContext) -> Answer:
        """Run the turn until it has its answer.

        Raises:
            LLMError: the model could not be reached, or refused.
            StorageUnavailableError: a round or a result could not be committed.
        """
        for processor in self._prepare:
            ctx = await processor.process(ctx)
        while ctx.answer is None:
            for processor in self._rounds:
                ctx = await processor.process(ctx)
        return ctx.answer


def enhance(llm: StreamChat, pipeline: Pipeline) -> StreamChat:
    """Return `llm` with tools.

    The stream also carries the steps of each call. It ends with the usage of all rounds, including those that the turn
    made before it was taken up again.
    """

    async def stream_chat(request: ChatRequest) -> AsyncGenerator[ChatEvent]:
        band = SideBand()
        turn, messages = request.turn, request.messages
        ctx = TurnContext(
            turn,
            llm,
            band,
            messages,
            depth=turn.rounds,
            usage=turn.usage,
            committed=request.committed,
            left_out=request.left_out,
        )
        work = asyncio.create_task(pipeline.run(ctx), name=f"pipeline of turn {turn.turn_id}")
        async with aclosing(band.carry(work)) as events:
            async for event in events:
                yield event
        answer = work.result()
        yield StreamEnd(answer.finish_reason, answer.usage)

    return stream_chat
