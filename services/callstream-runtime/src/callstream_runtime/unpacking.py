"""Unpacks compressed responses in steps: a few bytes of one may become a thousand times as many.

The bound of interim responses is here too, for the clients of both services.
"""

import asyncio
import zlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from typing import cast

import httpx2

ACCEPT = {"accept-encoding": "gzip"}
"""The header field of requests whose responses `unpack_in_steps` unpacks."""
STEP_BYTES = 64 * 1024
"""How much is unpacked between two turns of the loop."""
MAX_INTERIM = 100
"""The most interim responses (`100 Continue`, `103 Early Hints`) to one request; servers send one or two."""
TOO_MANY_INTERIM = f"the server sent more than {MAX_INTERIM} interim responses"


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
