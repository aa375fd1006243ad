"""`python -m benchmarks.relay.naive PORT PROVIDER_URL`: a straightforward relay, written with care.

It uses the official SDK's own iteration, one event per chunk, sse-starlette, FastAPI and uvloop. It stores nothing: a
turn whose connection breaks is lost.
"""

import json
import sys
from collections.abc import AsyncGenerator

import uvicorn
from fastapi import FastAPI
from openai import AsyncOpenAI
from pydantic import BaseModel
from sse_starlette import EventSourceResponse, ServerSentEvent

from benchmarks.relay.answers import MODEL


class Question(BaseModel):
    """The body of a request."""

    message: str


def naive_relay(provider_url: str) -> FastAPI:
    """The ASGI application."""
    app = FastAPI()
    client = AsyncOpenAI(base_url=provider_url, api_key="none")

    async def events(message: str) -> AsyncGenerator[ServerSentEvent]:
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": message}], stream=True
        )
        async for chunk in stream:
            if chunk.choices and (delta := chunk.choices[0].delta.content):
                yield ServerSentEvent(json.dumps({"delta": delta}), event="text")
        yield ServerSentEvent("{}", event="done")

    @app.post("/v1/chat")
    async def chat(question: Question) -> EventSourceResponse:  # pyright: ignore[reportUnusedFunction]
        return EventSourceResponse(events(question.message))

    return app


if __name__ == "__main__":
    uvicorn.run(naive_relay(sys.argv[2]), host="127.0.0.1", port=int(sys.argv[1]), access_log=False, log_level="error")
