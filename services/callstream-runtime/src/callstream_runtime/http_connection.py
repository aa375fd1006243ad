"""A client's connection within `connection_limits`, and with a bound on how much waits for the client.

These limits hold before anything is known about the client. Uvicorn has settings for none of them.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from callstream_runtime.connection_limits import (
    HEADER_OBJECTS,
    INVALID_REQUEST,
    UPGRADE_WITH_BODY,
    ConnectionLimits,
    Refusal,
    head_too_large,
    too_many_connections,
    too_slow,
)

UNSENT_BYTES = 8_192
"""How much may wait for one client, in the server and once more in the kernel, before its stream has to wait.

The defaults are 64 KiB and, as Linux sizes its buffers, megabytes.
"""
READ_BYTES = 16_384
"""How much is read at once, and so how much is kept of what a client sends behind a request that is not answered."""
LINGER_SECONDS = 1.0
"""How long what a refused client still sends is read and discarded: otherwise TCP may discard the refusal."""
_BLANK_LINES = re.compile(rb"(?:\r?\n)+")
_BLANK_LINE = re.compile(rb"\n\r?\n")


def connections_within(limits: ConnectionLimits) -> Callable[..., "ClientConnection"]:
    """What makes the connections of one server, which are counted together."""
    return partial(ClientConnection, limits=limits, addresses=Counter(), buffer=memoryview(bytearray(READ_BYTES)))


class ClientConnection(HttpToolsProtocol):
    """A connection within `limits`. `addresses` has the number of open connections of each address.

    A request is parsed when the one before it is answered. What was read behind that one is kept as it is, and nothing
    is read meanwhile.
    """

    # Slots: with more attributes Python would give each connection a larger kind of dictionary, of its own.
    __slots__ = (
        "_address",
        "_addresses",
        "_behind",
        "_body_left",
        "_buffer",
        "_complete",
        "_deadline",
        "_head_size",
        "_headers",
        "_limits",
        "_refused",
        "_unfinished_bytes",
    )

    def __init__(
        self, *args: Any, limits: ConnectionLimits, addresses: Counter[str], buffer: memoryview, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._addresses = addresses
        self._buffer = buffer
        self._address = ""
        self._refused = False
        self._behind = b""
        """What was read behind a request that is not answered."""
        self._complete = False
        """Whether the request was read to its end."""
        self._body_left = 0
        """How much is missing of a body of known length."""
        self._unfinished_bytes = 0
        """Bytes since the last one of a whole head or of a body."""
        self._head_size = self._headers = 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Bound what waits for this client, and count it."""
        super().connection_made(transport)
        transport.set_protocol(_InParts(self, self._buffer))
        transport.set_write_buffer_limits(high=UNSENT_BYTES)
        self._address = self.client[0] if self.client else ""
        self._addresses[self._address] += 1
        if len(self.connections) > self._limits.connections:
            self._refuse_connection("in all")
        elif self._addresses[self._address] > self._limits.connections_per_address:
            self._refuse_connection(f"from {self._address}")
        else:
            self._set_deadline(self._limits.head_seconds, "head")

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it no longer."""
        super().connection_lost(exc)
        self._clear_deadline()
        self._behind = b""
        self._addresses[self._address] -= 1
        if not self._addresses[self._address]:
            del self._addresses[self._address]

    # What is read.

    def data_received(self, data: bytes) -> None:
        """Read on, unless the client was refused."""
        if not self._refused:
            data, self._behind = self._behind + data, b""
            self._read(data)

    def on_response_complete(self) -> None:
        """The request is answered: go on with what was read behind it."""
        super().on_response_complete()
        if self._complete:
            self._await_next()
        if self._behind and not self._refused and not self.transport.is_closing():
            behind, self._behind = self._behind, b""
            if not self.flow.read_paused:
                self.transport.resume_reading()
            self._read(behind)

    def _read(self, data: bytes) -> None:
        """Parse `data` up to the end of a request that is not answered yet, and keep what is behind it."""
        at = 0
        while at < len(data) and not self._refused and not self.transport.is_closing():
            if self._complete and self.cycle and not self.cycle.response_complete:
                self._behind = data[at:]
                self.transport.pause_reading()
                return
            end = self._possible_end(data, at)
            piece = data[at:end] if at or end < len(data) else data
            self._unfinished_bytes += len(piece)
            super().data_received(piece)
            if self._unfinished_bytes > self._limits.head_bytes:
                self._refuse_head()
            at = end

    def _possible_end(self, data: bytes, at: int) -> int:
        """Before where in `data` no request can end that does not end before `at`.

        The parser cannot be stopped behind a request. A body of known length ends with its last byte, and everything
        else with a blank line, of which the beginning may have been parsed already.
        """
        if self._body_left:
            return min(at + self._body_left, len(data))
        found = _BLANK_LINES.match(data, at) or _BLANK_LINE.search(data, at)
        return found.end() if found else len(data)

    # What the parser finds.

    def on_message_begin(self) -> None:
        """A request begins. The one before it, which was answered, is forgotten with its head."""
        if self.cycle and self.cycle.response_complete:
            self.cycle = None  # pyright: ignore[reportAttributeAccessIssue] -- as before the first request
        super().on_message_begin()
        self._complete = False
        self._head_size = self._headers = 0
        self._set_deadline(self._limits.head_seconds, "head")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer after the body."""
        self._headers += 1
        self._head_size += len(name) + len(value) + HEADER_OBJECTS
        if self._head_size > self._limits.head_bytes or self._headers > self._limits.headers:
            self._refuse_head()
        elif not self._refused:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete, and the body follows."""
        self._unfinished_bytes = 0
        # The path is kept as bytes and as text, of which each character may take four bytes.
        path = self.url.partition(b"?")[0]
        self._head_size += len(self.url) + 4 * len(path)
        if self._head_size > self._limits.head_bytes:
            self._refuse_head()
        if self._refused:
            return
        self._body_left = next((int(value) for name, value in self.headers if name == b"content-length"), 0)
        chunked = any(name == b"transfer-encoding" for name, _ in self.headers)
        if self.parser and self.parser.should_upgrade() and (self._body_left or chunked):
            # The parser would take the body for another request: somebody else's, where a proxy shares connections.
            self._refuse(UPGRADE_WITH_BODY)
            return
        super().on_headers_complete()
        self.url = b""
        self.headers = []  # for trailers, which nobody reads: the application must not take them for headers
        self._set_deadline(self._limits.body_seconds, "body")

    def on_body(self, body: bytes) -> None:
        """A part of the body. The next one is read when the application asks for it."""
        self._unfinished_bytes = 0
        self._body_left = max(0, self._body_left - len(body))
        if not self._refused and not self.cycle.response_complete:
            super().on_body(body)
            self.flow.pause_reading()

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._unfinished_bytes = self._body_left = 0
        self._complete = True
        self._clear_deadline()
        if not self._refused:
            self.flow.resume_reading()
            super().on_message_complete()
            if self.cycle.response_complete:
                self._await_next()

    def _unsupported_upgrade_warning(self) -> None:
        """Upgrade is ignored. Uvicorn would advise, for each such request, to install a library."""

    # Refusals.

    def _set_deadline(self, seconds: float, part: str) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(seconds, self._refuse_slow, part, seconds)

    def _await_next(self) -> None:
        """Close the connection unless a request begins in time. Uvicorn does not after the rest of an unread body."""
        self._clear_deadline()
        if not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse_connection(self, whose: str) -> None:
        self._refuse(too_many_connections(whose))

    def _refuse_head(self) -> None:
        self._refuse(head_too_large(self._limits))

    def send_400_response(self, msg: str) -> None:
        """The parser cannot go on. Uvicorn would also write into an answer that has begun, or behind a refusal."""
        self._refuse(INVALID_REQUEST)

    def _refuse_slow(self, part: str, seconds: float) -> None:
        self._refuse(too_slow(part, seconds))

    def _refuse(self, refusal: Refusal) -> None:
        """Answer, unless an answer has begun, and close the connection."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._clear_deadline()
        self._unset_keepalive_if_required()
        cycle = cast("RequestResponseCycle | None", self.cycle)
        answering = cycle is not None and not cycle.response_complete
        if cycle is not None and answering:
            cycle.disconnected = True
            cycle.message_event.set()
        if cycle is None or not (answering and cycle.response_started):
            read = cycle.scope["headers"] if cycle else self.headers or ()
            self.transport.write(refusal.answer(self._limits.also_answer(read)))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_SECONDS, self.transport.abort)


class _InParts(asyncio.BufferedProtocol):
    """Reads for a connection as much at once as `buffer` takes: 256 KiB are read for a protocol that has none.

    All connections have the same buffer: what was read is taken out of it at once.
    """

    __slots__ = ("_buffer", "_connection")

    def __init__(self, connection: ClientConnection, buffer: memoryview) -> None:
        self._connection = connection
        self._buffer = buffer

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.data_received(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> None:
        self._connection.eof_received()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)
