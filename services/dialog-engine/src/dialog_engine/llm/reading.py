"""How one answer of a provider is read, whatever protocol it speaks: its bytes as they come, decoded here."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Protocol

import httpx2

from dialog_engine.errors import LLMRequestError, LLMStreamBrokenError
from dialog_engine.llm.failures import Failures, SdkErrors
from dialog_engine.llm.waits import Patience, Waits
from dialog_engine.model import LLMEvent

_DRAIN_SECONDS = 0.1


class Answer(Protocol):
    """What the SDKs' streaming responses have in common."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The header fields."""
        ...

    async def read(self) -> bytes:
        """The whole body."""
        ...

    def iter_bytes(self, chunk_size: int | None = None) -> AsyncIterator[bytes]:
        """The body as it comes."""
        ...


class Decoder(Protocol):
    """Reads one answer: feed it until it is `done`, then `finish`, which raises LLMError for what was reported."""

    @property
    def done(self) -> bool:
        """Nothing more will come."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the message is whole, even if the connection breaks off now."""
        ...

    @property
    def heard(self) -> int:
        """How many pieces of the answer have come, 0 until it begins. What only keeps the connection open is none."""
        raise NotImplementedError

    def feed(self, read: bytes) -> list[LLMEvent]:
        """The events of one network read of an event stream."""
        ...

    def feed_whole(self, body: bytes) -> list[LLMEvent]:
        """The events of an answer that is one JSON document."""
        ...

    def finish(self) -> list[LLMEvent]:
        """The events at the end."""
        ...


async def stream_answer(
    open_answer: Callable[[AsyncExitStack], Awaitable[Answer]],
    decoder: Decoder,
    failures: Failures,
    errors: SdkErrors,
    waits: Waits,
) -> AsyncGenerator[LLMEvent]:
    """The events of the answer that `open_answer` gets; what it enters into the stack is closed with this generator.

    Raises:
        LLMError: the provider cannot be reached, refuses, breaks off, falls silent, or answers nothing.
    """
    patience = Patience(waits)
    async with AsyncExitStack() as stack:
        try:
            async with patience.limit():
                with failures.translated(errors):
                    answer = await open_answer(stack)
                    kind = _media_type(answer)
                    whole = await answer.read() if kind == "application/json" else None
        except TimeoutError as error:
            raise patience.at_an_end() from error
        if kind == "text/html":
            raise LLMRequestError("the model's provider answered with a web page: is its base URL right?")
        if whole is not None:
            for event in decoder.feed_whole(whole):
                yield event
        reads = answer.iter_bytes()
        while not decoder.done and (read := await _read(reads, decoder, patience)) is not None:
            events = decoder.feed(read)
            patience.heard(decoder.heard)
            for event in events:
                yield event
        for event in decoder.finish():
            yield event
        if whole is None:
            await _drain(reads)


async def _read(reads: AsyncIterator[bytes], decoder: Decoder, patience: Patience) -> bytes | None:
    """The next bytes, None at the end. A connection that breaks once the message is whole has simply ended."""
    try:
        async with patience.limit():
            return await anext(reads, None)
    except (httpx2.HTTPError, TimeoutError) as error:
        if decoder.complete:
            return None
        if isinstance(error, httpx2.TimeoutException | TimeoutError):
            raise patience.at_an_end() from error
        raise LLMStreamBrokenError("the model's stream broke off before its end") from error


async def _drain(reads: AsyncIterator[bytes]) -> None:
    """Read to the end of the response, if it is near: only then can the connection be used again."""
    with suppress(TimeoutError, httpx2.HTTPError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in reads:
                pass


def _media_type(answer: Answer) -> str:
    return answer.headers.get("content-type", "").partition(";")[0].strip().lower()
