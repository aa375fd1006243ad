"""How much faster this project decodes a model's stream than the OpenAI SDK's own iteration over the same bytes.

    python -m benchmarks.llm_decode

Prints ratios only: they are comparable between machines, absolute numbers are not.
"""

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import httpx2
from openai import AsyncOpenAI, AsyncStream
from openai.types.chat import ChatCompletionChunk

from dialog_engine.llm.error_classification import ErrorClassifier
from dialog_engine.llm.openai_decoding import OpenAIDecoder
from dialog_engine.model import TextDelta

TOKENS = 2000
ROUNDS = 5


class Body(httpx2.AsyncByteStream):
    """A response body in the given network reads."""

    def __init__(self, reads: Sequence[bytes]) -> None:
        self._reads = reads

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for read in self._reads:
            yield read


def answer(tokens_per_read: int) -> list[bytes]:
    """An answer in OpenAI's format, in network reads of `tokens_per_read` chunks each."""
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "service_tier": None}
    deltas = [{"role": "assistant", "content": ""}, *({"content": f" word{at}"} for at in range(TOKENS)), {}]
    reasons = [None] * (TOKENS + 1) + ["stop"]
    events = [
        chunk | {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}], "usage": None}
        for delta, reason in zip(deltas, reasons, strict=True)
    ]
    lines = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events] + [b"data: [DONE]\n\n"]
    return [b"".join(lines[at : at + tokens_per_read]) for at in range(0, len(lines), tokens_per_read)]


def response(reads: Sequence[bytes]) -> httpx2.Response:
    return httpx2.Response(200, stream=Body(reads), request=httpx2.Request("POST", "http://localhost"))


async def with_the_sdk(reads: Sequence[bytes]) -> int:
    client = AsyncOpenAI(api_key="none", base_url="http://localhost")
    stream = AsyncStream(cast_to=ChatCompletionChunk, response=response(reads), client=client)
    length = 0
    async for chunk in stream:
        length += len(chunk.choices[0].delta.content or "")
    await client.close()
    return length


async def with_callstream(reads: Sequence[bytes]) -> int:
    decoder = OpenAIDecoder(ErrorClassifier())
    length = 0
    async for read in response(reads).aiter_bytes():
        length += sum(len(event.text) for event in decoder.feed(read) if isinstance(event, TextDelta))
    decoder.finish()
    return length


async def cpu_seconds(run: Callable[[Sequence[bytes]], Awaitable[int]], reads: Sequence[bytes]) -> float:
    """Processor time, which other work on the machine affects less than wall-clock time."""
    began = time.process_time()
    await run(reads)
    return time.process_time() - began


async def ratio(reads: Sequence[bytes]) -> float:
    """The median ratio of `ROUNDS` pairs of runs."""
    assert await with_the_sdk(reads) == await with_callstream(reads)
    pairs = [(await cpu_seconds(with_the_sdk, reads), await cpu_seconds(with_callstream, reads)) for _ in range(ROUNDS)]
    return statistics.median(sdk / callstream for sdk, callstream in pairs)


async def main() -> None:
    for tokens_per_read in (1, 8, 64):
        times = await ratio(answer(tokens_per_read))
        print(f"{tokens_per_read:3} tokens per network read: {times:.0f} times the SDK's speed")


if __name__ == "__main__":
    asyncio.run(main())
