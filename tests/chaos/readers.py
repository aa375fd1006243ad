"""Clients of event streams, cheap enough to be many: one protocol object per connection, no task per stream."""

import asyncio
import json
import socket
from collections.abc import Callable
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
    transcript: Transcript = field(default_factory=Transcript)
    turn_id: str = ""
    resumes: list[float] = field(default_factory=list[float])
    cuts: int = 0
    refusals: list[str] = field(default_factory=list[str])
    """Answers that were no event stream."""
    delays: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """For every piece of text with a stamp: when it came, and how long it took from the model to here, in seconds."""
    receive_buffer: int = 0
    """How much the kernel keeps for this client, in bytes; 0: as much as it likes."""
    connection: "Connection | None" = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        cut_at = None
        while self.transcript.done is None:
            connection = self.connection = Connection(self, loop, cut_at)
            try:
                await self._connect(loop, connection)
            except OSError as error:
                self.refusals.append(str(error))
                await asyncio.sleep(RETRY_SECONDS)
                continue
            await connection.closed
            if not connection.streamed:
                self.refusals.append(connection.status)
                await asyncio.sleep(RETRY_SECONDS)
            elif connection.cut:
                self.cuts += 1
            cut_at = loop.time()

    async def _connect(self, loop: asyncio.AbstractEventLoop, connection: "Connection") -> None:
        plain = socket.socket()
        try:
            plain.setblocking(False)
            if self.receive_buffer:
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer)
            await loop.sock_connect(plain, ("127.0.0.1", self.port))
        except OSError:
            plain.close()
            raise
        await loop.create_connection(lambda: connection, sock=plain)

    def request(self) -> bytes:
        """What to ask now: the question, or to go on after the last event."""
        if not self.turn_id:
            body = json.dumps({"message": self.question}).encode()
            kind = "content-type: application/json\r\n"
            return (
                f"POST /v1/chat HTTP/1.1\r\nhost: 127.0.0.1\r\n{kind}content-length: {len(body)}\r\n\r\n".encode()
                + body
            )
        seen = f"last-event-id: {self.transcript.last_id}\r\n" if self.transcript.last_id else ""
        return f"GET /v1/turns/{self.turn_id}/events HTTP/1.1\r\nhost: 127.0.0.1\r\n{seen}\r\n".encode()

    def take(self, block: bytes, at: float) -> None:
        fields: dict[str, str] = {}
        for line in block.decode().split("\n"):
            name, _, value = line.partition(": ")
            fields[name] = value
        if "data" in fields:
            data = json.loads(fields["data"])
            self.transcript.take(fields["id"], fields["event"], data)
            stamp, found, _ = data.get("delta", "").partition("@")
            if found:
                self.delays.append((at, at - int(stamp) / 1e6))


class Connection(asyncio.Protocol):
    """One connection of a reader: the head of the answer, its chunks, the events in them."""

    def __init__(self, reader: Reader, loop: asyncio.AbstractEventLoop, since: float | None) -> None:
        self._reader, self._loop, self._since = reader, loop, since
        self._data, self._rest = bytearray(), b""
        self._transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = loop.create_future()
        self.status = ""
        self.streamed = self.cut = self._alive = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._reader.request())

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self.cut:
            return  # what comes after the cut does not come
        self._data += data
        if not self.status and not self._read_head():
            return
        self._read_chunks()

    def _read_head(self) -> bool:
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return False
        status, *lines = self._data[:end].decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        self.status = status
        self._reader.turn_id = headers.get("x-turn-id", self._reader.turn_id)
        del self._data[: end + 4]
        self.streamed = headers.get("content-type", "").startswith("text/event-stream")
        if not self.streamed:
            self._close()
        return self.streamed

    def _read_chunks(self) -> None:
        now = self._loop.time()
        while (line := self._data.find(b"\r\n")) >= 0:
            size = int(self._data[:line], 16)
            if len(self._data) < line + size + 4:
                return
            body = self._rest + self._data[line + 2 : line + 2 + size]
            del self._data[: line + size + 4]
            if not size:
                self._close()
                return
            self._came(now)
            *blocks, self._rest = bytes(body).split(b"\n\n")
            for block in blocks:
                self._reader.take(block, now)
            if self._reader.transcript.done is not None:
                self._close()
                return

    def _came(self, now: float) -> None:
        """The first bytes of the stream are here: from now on it may be cut."""
        if self._alive:
            return
        self._alive = True
        if self._since is not None:
            self._reader.resumes.append(now - self._since)
        if self._reader.life is not None:
            self._loop.call_later(self._reader.life(), self._cut)

    def freeze(self) -> None:
        """Read nothing more, and do not go away."""
        if self._transport is not None:
            self._transport.pause_reading()

    @property
    def port(self) -> int:
        """The client's port; 0 when it is not connected."""
        return self._transport.get_extra_info("sockname")[1] if self._transport is not None else 0

    def leave(self) -> None:
        """Close it, and go on with another one."""
        self._close()

    def _cut(self) -> None:
        self.cut = True
        self._close()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
