"""Clients of event streams over bare sockets: many of them can be cut, or stop reading."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.transcript import Transcript

RETRY_SECONDS = 0.2
ESTABLISHED = "01"
"""The state of an open TCP connection in /proc/net/tcp."""


def clients_of(port: int) -> set[int]:
    """The ports of all clients that the server at `port` on this machine has an open connection to."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    ends = ([int(end.rpartition(":")[2], 16) for end in line.split()[1:3]] for line in lines if _is_open(line))
    return {remote for local, remote in ends if local == port}


def _is_open(line: str) -> bool:
    return line.split()[3] == ESTABLISHED


@dataclass
class Reader:
    """One turn, followed over any number of connections. `resumes`: the seconds from each cut to the next bytes."""

    port: int
    question: str
    life: Callable[[], float] | None = None
    """How long a connection lives before this client cuts it; None: until the server ends it."""
    receive_buffer: int = 0
    """How much is kept for this client, in bytes; 0: as much as the kernel likes."""
    transcript: Transcript = field(default_factory=Transcript)
    turn_id: str = ""
    resumes: list[float] = field(default_factory=list[float])
    cuts: int = 0
    refusals: list[str] = field(default_factory=list[str])
    """Answers that were no event stream."""
    delays: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """For every piece of text with a stamp: when it came, and how long it took from the model to here, in seconds."""
    local_port: int = 0
    """Of the last connection."""
    awake: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared: it reads nothing more, and does not go away. Set again, it asks again."""

    def __post_init__(self) -> None:
        self.awake.set()

    async def run(self) -> None:
        """Ask, and follow the answer to its end."""
        cut_at = None
        while self.transcript.done is None:
            try:
                await self._connect(cut_at)
            except (OSError, EOFError) as error:
                self.refusals.append(repr(error))
                await asyncio.sleep(RETRY_SECONDS)
            cut_at = asyncio.get_running_loop().time()

    async def _connect(self, cut_at: float | None) -> None:
        """One connection, to its end, its cut or the end of the turn."""
        loop = asyncio.get_running_loop()
        with socket.socket() as plain:
            plain.setblocking(False)
            if self.receive_buffer:
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer)
            await loop.sock_connect(plain, ("127.0.0.1", self.port))
            self.local_port = plain.getsockname()[1]
            reader, writer = await asyncio.open_connection(sock=plain.dup(), limit=self.receive_buffer or 1 << 16)
        try:
            writer.write(self._request())
            await self._read_head(reader)
            chunks = _chunks(reader)
            data = await anext(chunks, b"")
            if cut_at is not None:
                self.resumes.append(loop.time() - cut_at)
            try:
                async with asyncio.timeout(self.life() if self.life else None):
                    await self._read(data, chunks)
            except TimeoutError:
                self.cuts += 1
        finally:
            writer.transport.abort()

    def _request(self) -> bytes:
        """The question, or to go on after the last event."""
        if not self.turn_id:
            body = json.dumps({"message": self.question})
            kind = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            return f"POST /v1/chat HTTP/1.1\r\nhost: 127.0.0.1\r\n{kind}\r\n{body}".encode()
        seen = f"last-event-id: {self.transcript.last_id}\r\n" if self.transcript.last_id else ""
        return f"GET /v1/turns/{self.turn_id}/events HTTP/1.1\r\nhost: 127.0.0.1\r\n{seen}\r\n".encode()

    async def _read_head(self, reader: asyncio.StreamReader) -> None:
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        self.turn_id = headers.get("x-turn-id", self.turn_id)
        if not headers.get("content-type", "").startswith("text/event-stream"):
            raise EOFError(status)

    async def _read(self, data: bytes, chunks: AsyncGenerator[bytes]) -> None:
        """Take the events, until the turn or the connection ends or this client has been asleep."""
        while data and self.transcript.done is None:
            *blocks, rest = data.split(b"\n\n")
            for block in blocks:
                self._take(block, asyncio.get_running_loop().time())
            if not self.awake.is_set():
                await self.awake.wait()
                return
            more = await anext(chunks, b"")
            data = more and rest + more

    def _take(self, block: bytes, at: float) -> None:
        """One block of the event stream."""
        fields = {name: value for name, _, value in (line.partition(": ") for line in block.decode().split("\n"))}
        if "data" in fields:
            data = json.loads(fields["data"])
            self.transcript.take(fields["id"], fields["event"], data)
            stamp, found, _ = data.get("delta", "").partition("@")
            if found:
                self.delays.append((at, at - int(stamp) / 1e6))


async def _chunks(reader: asyncio.StreamReader) -> AsyncGenerator[bytes]:
    """The chunks of an answer whose head was read."""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)
