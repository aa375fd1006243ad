"""Wrap a chat client, so that it can call tools: the same interface, and the calls happen underneath."""

import asyncio
from collections.abc import AsyncGenerator

from dialog_engine.model import ChatEvent, ChatRequest, StreamEnd
from dialog_engine.sideband import SideBand
from dialog_engine.tool_calls.context import TurnContext
from dialog_engine.tool_calls.pipeline import Pipeline
from dialog_engine.tool_calls.ports import StreamChat


def enhance(llm: StreamChat, pipeline: Pipeline) -> StreamChat:
    """`llm` with tools. The stream also carries the steps of each call; it ends with the usage of all rounds."""

    async def stream_chat(request: ChatRequest) -> AsyncGenerator[ChatEvent]:
        band = SideBand()
        ctx = TurnContext(turn=request.turn, llm=llm, band=band, messages=request.messages, depth=request.turn.rounds)
        work = asyncio.create_task(pipeline.run(ctx), name=f"pipeline of turn {request.turn.turn_id}")
        work.add_done_callback(lambda _: band.close())
        try:
            async for event in band:
                yield event
            answer = await work
            yield StreamEnd(answer.finish_reason, answer.usage)
        finally:
            work.cancel()
            await asyncio.wait([work])

    return stream_chat
