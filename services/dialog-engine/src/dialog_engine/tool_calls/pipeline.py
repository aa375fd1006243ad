"""The pipeline of a turn: prepare once, then rounds of model and tools until there is an answer.

`enhance` wraps a chat client in it. The wrapped client has the same interface, and calls tools underneath.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dialog_engine.model import ChatEvent, ChatRequest, FinishReason, Message, StreamEnd, ToolCall, Turn, Usage
from dialog_engine.sideband import ModelStream, Reply, SideBand
from dialog_engine.tool_calls.planning import Repeats
from dialog_engine.tool_calls.ports import OpenChat
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
class TurnContext:
    """The state of one turn between two processors. Each processor returns the next one.

    None of it is stored: an engine that takes the turn up again begins with the committed messages.
    """

    turn: Turn
    llm: OpenChat
    band: SideBand
    messages: tuple[Message, ...]
    catalog: tuple[ToolEntry, ...] | None = None
    """All tools there are, as they were when the turn began."""
    tools: tuple[ToolEntry, ...] = ()
    """The tools that the model is offered in this round."""
    reads: bool = False
    """Whether it is offered the tools that read resources."""
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
    answer: StreamEnd | None = None
    """How the conversation with the model ended."""
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

    async def run(self, ctx: TurnContext) -> StreamEnd:
        """Run the turn until it has its answer, whose usage is that of all rounds, also of those before an adoption.

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


class EnhancedChat:
    """A chat model with tools: `answer` is for a turn that has a side band, and the call for everyone else."""

    def __init__(self, llm: OpenChat, pipeline: Pipeline) -> None:
        self._llm = llm
        self._pipeline = pipeline

    async def answer(self, request: ChatRequest, band: SideBand) -> StreamEnd:
        """Emit the reply to `request` and the steps of its calls into `band`. Returns and raises what the pipeline
        does."""
        turn, messages = request.turn, request.messages
        depth, usage, left_out = turn.rounds, turn.usage, request.left_out
        ctx = TurnContext(turn, self._llm, band, messages, depth=depth, usage=usage, left_out=left_out)
        return await self._pipeline.run(ctx)

    async def __call__(self, request: ChatRequest) -> ModelStream:
        """The same as a stream, as from any chat model."""
        return await ModelStream.begun(self._events(request))

    async def _events(self, request: ChatRequest) -> AsyncGenerator[ChatEvent]:
        band = _Queue()
        work = asyncio.create_task(self.answer(request, band), name=f"pipeline of turn {request.turn.turn_id}")
        work.add_done_callback(lambda _: band.events.put_nowait(None))
        try:
            while (event := await band.events.get()) is not None:
                yield event
            yield await work
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


class _Queue(SideBand):
    """A side band that is read as a stream. None is its end."""

    def __init__(self) -> None:
        self.events = asyncio.Queue[ChatEvent | None]()

    def emit(self, event: ChatEvent) -> None:
        self.events.put_nowait(event)

    async def ready(self) -> None:
        """The caller has a turn that is committed."""


def enhance(llm: OpenChat, pipeline: Pipeline) -> EnhancedChat:
    """Return `llm` with tools. Its stream also carries the steps of each call."""
    return EnhancedChat(llm, pipeline)
