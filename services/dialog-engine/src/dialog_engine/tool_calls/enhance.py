"""Wrap a chat client, so that it can call tools: the same interface, and the calls happen underneath."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from dialog_engine.model import ChatEvent, ChatRequest, StreamEnd
from dialog_engine.sideband import SideBand
from dialog_engine.tool_calls.context import TurnContext
from dialog_engine.tool_calls.pipeline import Pipeline
from dialog_engine.tool_calls.ports import StreamChat


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
