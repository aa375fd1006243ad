"""Bounds on the HTTP responses that the clients of both services read: httpx2, and aiohttp below it.

A compressed response is unpacked in steps: a few bytes of one may become a thousand times as many. Of interim responses
aiohttp discards any number. Of 10,000 that have arrived together it makes as many responses, between two turns of the
loop: in a fifth of a second.
"""

import asyncio
import zlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from typing import Any, cast

import aiohttp.connector
import httpx2
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError

ACCEPT = {"accept-encoding": "gzip"}
"""The header field of requests whose responses `unpack_in_steps` unpacks."""
STEP_BYTES = 64 * 1024
"""How much is unpacked between two turns of the loop."""
MAX_INTERIM = 100
"""The most interim responses (`100 Continue`, `103 Early Hints`) to one request; servers send one or two."""
TOO_MANY_INTERIM = f"the server sent more than {MAX_INTERIM} interim responses"
READ_BYTES = 16 * 1024
"""How much of what has arrived for an aiohttp client is parsed at once."""


async def unpack_in_steps(response: httpx2.Response) -> None:
    """An HTTP event hook: has the body of the response unpacked as it is read. httpx2 unpacks all that has arrived.

    Raises:
        DecodingError: it is compressed as was not asked for.
    """
    encoding = response.headers.pop("content-encoding", "identity").strip().lower()
    if encoding == "gzip":
        response.stream = _Unpacked(cast("httpx2.AsyncByteStream", response.stream))
    elif encoding != "identity":
        raise httpx2.DecodingError("the response is compressed as was not asked for", request=response.request)


async def unpacked(packed: AsyncIterable[bytes]) -> AsyncGenerator[bytes]:
    """What a gzip body holds, in parts of at most STEP_BYTES. Raises ValueError for a body that is not gzip."""
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    async for part in packed:
        step, rest = b"", part
        while rest or len(step) == STEP_BYTES:
            try:
                step = unpacker.decompress(rest, STEP_BYTES)
            except zlib.error as error:
                raise ValueError(f"the response is not gzip: {error}") from error
            yield step
            rest = unpacker.unconsumed_tail
            await asyncio.sleep(0)


class _Unpacked(httpx2.AsyncByteStream):
    def __init__(self, packed: httpx2.AsyncByteStream) -> None:
        self._packed = packed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in unpacked(self._packed):
                yield part
        except ValueError as error:
            raise httpx2.DecodingError(str(error)) from error

    async def aclose(self) -> None:
        await self._packed.aclose()


class BoundedResponses(ResponseHandler):
    """A connection that ends, with an error for its request, after MAX_INTERIM interim responses."""

    _interim = 0

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived, in parts."""
        for at in range(0, len(data) or 1, READ_BYTES):
            if self._interim <= MAX_INTERIM:
                super().data_received(data[at : at + READ_BYTES])

    def feed_data(self, data: tuple[Any, Any], size: int = 0) -> None:
        """Take the head of a response."""
        code: int = data[0].code
        self._interim = self._interim + 1 if code < 200 and code != 101 else 0
        if self._interim <= MAX_INTERIM:
            super().feed_data(data, size)
        elif self._interim == MAX_INTERIM + 1 and self.transport is not None:
            self.set_exception(HttpProcessingError(code=code, message=TOO_MANY_INTERIM))
            self.transport.close()


def bound_interim_responses() -> None:
    """Bound them in every client of aiohttp that is created from now on."""
    cast("Any", aiohttp.connector).ResponseHandler = BoundedResponses
