"""Reads the responses of providers in bounded time and size."""

import asyncio
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager, suppress
from typing import Any, cast

import httpx2
from aiohttp import ClientError

from dialog_engine.errors import LLMError, LLMRequestError, LLMStreamBrokenError, LLMUnavailableError
from dialog_engine.llm.decoding import Decoder
from dialog_engine.llm.error_classification import retry_after_seconds
from dialog_engine.llm.provider import Timeouts

MAX_RETRY_AFTER_SECONDS = 20.0
"""The longest `retry-after` that is waited for; the SDKs wait for two minutes. A longer one is returned as an error."""
MAX_ERROR_BYTES = 64 * 1024
"""How much of the body of an error response is read, and for how long: the SDKs read it to its end."""
ERROR_BODY_SECONDS = 5.0
MAX_ANSWER_BYTES = 64_000_000
"""The bytes of one answer that are read, with everything that the protocol adds to its text."""


async def bound_error(response: httpx2.Response, seconds: float = ERROR_BODY_SECONDS) -> None:
    """An HTTP event hook: bounds what the SDK reads of an error response, and how long it waits before a retry."""
    if response.is_success:
        return
    if (retry_after_seconds(response.headers) or 0) > MAX_RETRY_AFTER_SECONDS:
        response.headers["x-should-retry"] = "false"
    stream, read = cast("httpx2.AsyncByteStream", response.stream), b""
    with suppress(TimeoutError, httpx2.HTTPError):
        async with asyncio.timeout(seconds):
            async for part in stream:
                read += part
                if len(read) >= MAX_ERROR_BYTES:
                    break
    await stream.aclose()
    response.stream = httpx2.ByteStream(read)


def checked_size(size: int) -> int:
    """`size`. Raises LLMRequestError when an answer has more bytes than are read."""
    if size > MAX_ANSWER_BYTES:
        raise LLMRequestError(f"the model's provider sent more than {MAX_ANSWER_BYTES // 1_000_000} MB in one answer")
    return size


async def whole(reads: AsyncIterator[bytes]) -> bytes:
    """All bytes of a response. Raises LLMRequestError: see `checked_size`."""
    body = bytearray()
    async for read in reads:
        body += read
        checked_size(len(body))
    return bytes(body)


class Deadline:
    """When the next piece of one answer must have arrived: each wait for one is a `with` block. Starts when it is made.

    One timer serves all waits of an answer, of which there is one for each token. It is set again only when it fires
    too early.
    """

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time() + timeouts.first_token
        self._pieces = 0
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: asyncio.Task[Any] | None = None
        self._cancelled_before = 0
        self._is_exceeded = False

    def __enter__(self) -> None:
        """Begin to wait for the next piece."""
        self._waiting = asyncio.current_task()
        self._cancelled_before = self._waiting.cancelling() if self._waiting else 0
        if self._timer is None:
            self._timer = self._loop.call_at(self._at, self._fired)

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        """Raises TimeoutError where this cancelled the wait, by the same rule as `asyncio.timeout`."""
        task, self._waiting = self._waiting, None
        if task is not None and self._is_exceeded and isinstance(error, asyncio.CancelledError):
            self._is_exceeded = task.uncancel() <= self._cancelled_before
            if self._is_exceeded:
                raise TimeoutError from error

    def _fired(self) -> None:
        self._timer = None
        if self._loop.time() < self._at:
            self._timer = self._loop.call_at(self._at, self._fired)
        elif self._waiting is not None:
            self._is_exceeded = True
            self._waiting.cancel()

    def extend(self, pieces: int) -> None:
        """`pieces` of the answer have arrived in total."""
        if pieces != self._pieces:
            self._pieces = pieces
            self._at = self._loop.time() + self._timeouts.silence
            if self._timer is not None and self._timer.when() > self._at:  # `silence` is shorter than `first_token`
                self._timer.cancel()
                self._timer = None

    def close(self) -> None:
        """Nothing is waited for any more."""
        if self._timer is not None:
            self._timer.cancel()

    @contextmanager
    def translated(self) -> Generator[None]:
        """Raises LLMError when the limit is exceeded."""
        try:
            yield
        except TimeoutError:
            raise self.exceeded() from None

    def exceeded(self) -> LLMError:
        """The error for an exceeded limit."""
        if self._pieces:
            return LLMStreamBrokenError(f"the model's stream was silent for {self._timeouts.silence:g} seconds")
        return LLMUnavailableError(
            f"the model's provider did not answer in time: nothing came for {self._timeouts.first_token:g} seconds"
        )


async def next_read(reads: AsyncIterator[bytes], decoder: Decoder, deadline: Deadline) -> bytes:
    """The next bytes, none at the end. A connection that breaks after a complete message has simply ended."""
    try:
        with deadline:
            return await anext(reads, b"")
    except (httpx2.HTTPError, ClientError, TimeoutError) as error:
        if decoder.complete:
            return b""
        if isinstance(error, TimeoutError):
            raise deadline.exceeded() from error
        raise LLMStreamBrokenError("the model's stream broke off before its end") from error


async def drain(reads: AsyncIterator[bytes], seconds: float) -> None:
    """Read the end of a response, as far as it comes in time."""
    with suppress(TimeoutError, httpx2.HTTPError, ClientError):
        async with asyncio.timeout(seconds):
            async for _ in reads:
                pass
