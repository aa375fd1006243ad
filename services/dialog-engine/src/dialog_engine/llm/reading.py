"""How one answer of a provider is read, whatever protocol it speaks: its bytes as they come, decoded here.

How long it is waited for is part of that.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from aiohttp import ClientError, ClientResponse, StreamReader

from dialog_engine.errors import LLMError, LLMRequestError, LLMStreamBrokenError, LLMUnavailableError
from dialog_engine.llm.failures import Failures
from dialog_engine.model import LLMEvent


@dataclass(frozen=True, slots=True)
class Waits:
    """How long a provider is waited for, in seconds.

    `connect` is for each attempt to connect. `first_token` is from the request to the first piece of the answer, with
    all retries: models that think are silent for long. `silence` is between two pieces after that. What a provider
    sends only to keep the connection open counts as silence.
    """

    connect: float = 10.0
    first_token: float = 300.0
    silence: float = 120.0


DEFAULT_WAITS = Waits()


class Patience:
    """With one answer: it begins when this is made."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + waits.first_token
        self._heard = 0

    def heard(self, pieces: int) -> None:
        """So many pieces of the answer have come, all in all."""
        if pieces != self._heard:
            self._heard = pieces
            self._deadline = self._loop.time() + self._waits.silence

    def limit(self) -> asyncio.Timeout:
        """The limit that holds now, for one wait. It raises TimeoutError."""
        return asyncio.timeout_at(self._deadline)

    def at_an_end(self) -> LLMError:
        """What it means that a limit was reached."""
        if self._heard:
            return LLMStreamBrokenError(f"the model's stream fell silent for {self._waits.silence:g} seconds")
        return LLMUnavailableError(
            f"the model's provider did not answer in time: nothing came for {self._waits.first_token:g} seconds"
        )


DRAIN_SECONDS = 0.1
"""So long the end of an answer is waited for once it is whole."""


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
    open_answer: Callable[[], Awaitable[ClientResponse]], decoder: Decoder, failures: Failures, waits: Waits
) -> AsyncGenerator[LLMEvent]:
    """The events of the answer that `open_answer` gets; closing this generator closes it.

    Raises:
        LLMError: the provider cannot be reached, refuses, breaks off, falls silent, or answers nothing.
    """
    patience = Patience(waits)
    try:
        async with patience.limit():
            with failures.translated():
                answer = await open_answer()
    except TimeoutError as error:
        raise patience.at_an_end() from error
    # The question, which may be long, need not live as long as its answer is read.
    del open_answer
    try:
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "text/html":
            raise LLMRequestError("the model's provider answered with a web page: is its base URL right?")
        if kind == "application/json":
            for event in decoder.feed_whole(await _whole(answer, failures, patience)):
                yield event
        content = answer.content
        while not decoder.done and (read := await _read(content, decoder, patience)):
            events = decoder.feed(read)
            patience.heard(decoder.heard)
            for event in events:
                yield event
        for event in decoder.finish():
            yield event
        await _drain(content)
    finally:
        answer.close()


async def _whole(answer: ClientResponse, failures: Failures, patience: Patience) -> bytes:
    """All of an answer that does not come as a stream."""
    try:
        async with patience.limit():
            with failures.translated():
                return await answer.read()
    except TimeoutError as error:
        raise patience.at_an_end() from error


async def _read(content: StreamReader, decoder: Decoder, patience: Patience) -> bytes:
    """As much as has come, nothing at the end. A connection that breaks once the message is whole has simply ended."""
    try:
        async with patience.limit():
            return await content.readany()
    except (ClientError, TimeoutError) as error:
        if decoder.complete:
            return b""
        if isinstance(error, TimeoutError):
            raise patience.at_an_end() from error
        raise LLMStreamBrokenError("the model's stream broke off before its end") from error


async def _drain(content: StreamReader) -> None:
    """Read to the end of the answer, if it is near: only then can the connection be used again."""
    with suppress(TimeoutError, ClientError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while await content.readany():
                pass
