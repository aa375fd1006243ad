"""Clients that send a request, receive the response as fast as possible, and parse it only afterwards."""

import asyncio
import json
import time

END = b"0\r\n\r\n"
"""The last bytes of a response."""


class Reader(asyncio.Protocol):
    """One connection, for one request after the other. Created by `connection`."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._received: list[bytes] = []
        self._mark = b""
        self._expect()

    def _expect(self) -> None:
        loop = asyncio.get_running_loop()
        self.marked: asyncio.Future[float] = loop.create_future()
        """When the mark was received, on the clock of `time.perf_counter`."""
        self.ended: asyncio.Future[float] = loop.create_future()
        """When the response ended, on the same clock."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Store the transport."""
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail whatever still waits."""
        for awaited in (self.marked, self.ended):
            if not awaited.done():
                awaited.set_exception(ConnectionError(f"the connection was closed: {exc}: {self.received[-300:]!r}"))
                awaited.exception()  # marks it as retrieved: it may not be awaited

    def ask(self, request: bytes, mark: bytes) -> None:
        """Send a request. The previous one must have ended."""
        self._received.clear()
        self._mark = mark
        self._expect()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Store the data, and note when the mark and the end arrived."""
        now = time.perf_counter()
        self._received.append(data)
        if not self.marked.done() and self._mark in self.received:
            self.marked.set_result(now)
        if data.endswith(END) or (len(data) < len(END) and self.received.endswith(END)):
            self.ended.set_result(now)

    @property
    def received(self) -> bytes:
        """The part of the response that has been received."""
        return b"".join(self._received)

    def field(self, name: str) -> str:
        """A header field of the response, or "" if it is missing."""
        head = self.received.partition(b"\r\n\r\n")[0].decode().split("\r\n")
        return next((value for line in head for key, _, value in [line.partition(": ")] if key.lower() == name), "")


def get(port: int, path: str) -> bytes:
    """The bytes of a GET request."""
    return f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode()


def post(port: int, path: str, body: object, key: str = "") -> bytes:
    """The bytes of a POST request with a JSON body."""
    data = json.dumps(body).encode()
    bearer = f"authorization: Bearer {key}\r\n" if key else ""
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    return f"{head}{bearer}content-length: {len(data)}\r\n\r\n".encode() + data


async def connection(port: int) -> Reader:
    """A connected reader."""
    _, reader = await asyncio.get_running_loop().create_connection(Reader, "127.0.0.1", port)
    return reader
