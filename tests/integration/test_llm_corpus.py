"""Every stream of `tests/corpus` on a real connection: a provider that sends it, and the client that must read it."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path

import pytest

from dialog_engine.errors import LLMError
from dialog_engine.model import ChatRequest, Turn, UserMessage
from tests.marks import promise
from tests.support.corpus import MODEL, as_written, read_stream, stream_bytes, stream_files
from tests.support.fakes import read_all
from tests.support.llm_clients import OpenAIModel
from tests.support.tags import merged

pytestmark = pytest.mark.anyio

REQUEST = ChatRequest((UserMessage("Hi"),), Turn("turn", "session", "subject"))
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Replay:
    """A provider that answers every request with `body`, in pieces of any size."""

    def __init__(self, seed: str) -> None:
        self.body = b""
        self.url = ""
        self._sizes = random.Random(seed)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0]))
                writer.write(HEAD)
                rest = self.body
                while rest:
                    size = self._sizes.randint(1, 60)
                    piece, rest = rest[:size], rest[size:]
                    writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                    await writer.drain()
                writer.write(b"0\r\n\r\n")
                await writer.drain()
        writer.close()


@pytest.fixture
async def replay(request: pytest.FixtureRequest) -> AsyncGenerator[Replay]:
    replay = Replay(request.node.name)
    async with await asyncio.start_server(replay.connected, "127.0.0.1", 0) as server:
        replay.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        yield replay


@promise("every known habit of providers is understood")
@pytest.mark.parametrize("path", stream_files(), ids=lambda path: path.stem)
async def test_the_client_reads_what_the_provider_sends(replay: Replay, path: Path) -> None:
    expected = read_stream(path).events
    replay.body = stream_bytes(path)
    client = OpenAIModel(replay.url, "key", MODEL, max_retries=0)
    events, error = await read_all(client.open(REQUEST))
    await client.aclose()

    assert error is None or isinstance(error, LLMError)
    assert as_written([*merged(events), *([error] if error else [])], expected) == expected
