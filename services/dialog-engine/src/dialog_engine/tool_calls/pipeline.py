"""The story of a turn: prepare once, then rounds of model and tools until there is an answer.

`enhance` wraps a chat client in it: the same interface, and the calls happen underneath.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from dialog_engine.model import ChatEvent, ChatRequest, StreamEnd
from dialog_engine.sideband import SideBand
from dialog_engine.tool_calls.context import Answer, TurnContext
from dialog_engine.tool_calls.exposure import Exposure
from dialog_engine.tool_calls.local_tools import LocalTool, LocalTools
from dialog_engine.tool_calls.ports import StreamChat, ToolSource
from dialog_engine.tool_calls.processors.conversation import (
    ConversationEntry,
    Recursive,
    ResultFormatting,
    StartSideBand,
    ToolCallExtractor,
    ToolPreparation,
)
from dialog_engine.tool_calls.processors.tool_execution import ToolExecution
from dialog_engine.tool_calls.rounds import Rounds
from dialog_engine.tool_calls.tool_search import ToolSearch


class Processor(Protocol):
    """One step. It holds no state of a turn: everything is in the context."""

    async def process(self, ctx: TurnContext) -> TurnContext:
        """The context after this step."""
        ...


class Pipeline:
    """Processors in order."""

    def __init__(self, prepare: tuple[Processor, ...], rounds: tuple[Processor, ...]) -> None:
        self._prepare = prepare
        self._rounds = rounds

    async def run(self, ctx: TurnContext) -> Answer:
        """Take the turn to its answer.

        Raises:
            LLMError: the model could not be reached or refused.
            StorageUnavailableError: a round or a result could not be committed.
        """
        for processor in self._prepare:
            ctx = await processor.process(ctx)
        while ctx.answer is None:
            for processor in self._rounds:
                ctx = await processor.process(ctx)
        return ctx.answer


def standard_pipeline(
    *,
    source: ToolSource,
    rounds: Rounds,
    system_prompt: str,
    max_rounds: int,
    local: Sequence[LocalTool] = (),
    exposure: Exposure | None = None,
    reader: LocalTool | None = None,
) -> Pipeline:
    """The pipeline of the product. At most `max_rounds` rounds of tool calls, then a last answer without tools.

    `local` are tools that the engine answers itself; so is `reader`, which reads on in results that were cut.
    `exposure` says how the tools of `source` are offered, and is `auto` when it does not.
    """
    tools = LocalTools(source, (*local, ToolSearch(source), *((reader,) if reader else ())))
    return Pipeline(
        prepare=(ConversationEntry(system_prompt),),
        rounds=(
            ToolPreparation(
                source, exposure or Exposure(), [tool.entry for tool in local], reader.entry if reader else None
            ),
            StartSideBand(max_rounds),
            ToolCallExtractor(),
            ToolExecution(tools, rounds),
            ResultFormatting(),
            Recursive(),
        ),
    )


def enhance(llm: StreamChat, pipeline: Pipeline) -> StreamChat:
    """`llm` with tools. The stream also carries the steps of each call; it ends with the usage of all rounds, those
    of earlier lives of the turn included."""

    async def stream_chat(request: ChatRequest) -> AsyncGenerator[ChatEvent]:
        band = SideBand()
        turn, messages = request.turn, request.messages
        ctx = TurnContext(turn, llm, band, messages, depth=turn.rounds, usage=turn.usage, committed=request.committed)
        work = asyncio.create_task(pipeline.run(ctx), name=f"pipeline of turn {turn.turn_id}")
        async with aclosing(band.carry(work)) as events:
            async for event in events:
                yield event
        answer = work.result()
        yield StreamEnd(answer.finish_reason, answer.usage)

    return stream_chat
