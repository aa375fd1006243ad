"""A client's connection: how many there may be, how large and slow a request may be, and how much waits for a client.

These limits hold before anything is known about the client. Uvicorn has settings for none of them.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from dialog_engine.http.problems import RETRY_AFTER_SECONDS, problem

log = logging.getLogger(__name__)

UNSENT_BYTES = 8_192
"""How much may wait for one client, in the server and once more in the kernel, before its stream has to wait.

The defaults are 64 KiB and, as Linux sizes its buffers, megabytes.
"""
LINGER_SECONDS = 1.0
"""How long what a refused client still sends is read and discarded: otherwise TCP may discard the refusal."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`head_bytes` bounds the head of a request, and any run of bytes that is neither head nor body, such as trailers.

    `head_seconds` counts from the first byte of a request, or from the beginning of the connection; `body_seconds` from
    the end of the head.
    """

    connections: int = 10_000
    connections_per_address: int = 1_000
    head_bytes: int = 65_536
    head_seconds: float = 10.0
    body_seconds: float = 30.0


def connections_within(limits: ConnectionLimits) -> Callable[..., "Connection"]:
    """What makes the connections of one server, which are counted together."""
    return partial(Connection, limits=limits, addresses=Counter())


class Connection(HttpToolsProtocol):
    """A connection within `limits`. `addresses` has the number of open connections of each address."""

    # Slots: with more attributes Python would give each connection a larger kind of dictionary, of its own.
    __slots__ = ("_address", "_addresses", "_deadline", "_head_size", "_limits", "_refused", "_unfinished_bytes")

    def __init__(self, *args: Any, limits: ConnectionLimits, addresses: Counter[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._addresses = addresses
        self._address = ""
        self._refused = False
        self._unfinished_bytes = 0
        """Bytes since the last one of a whole head or of a body."""
        self._head_size = 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Bound what waits for this client, and count it."""
        super().connection_made(transport)
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
        self._addresses[self._address] -= 1
        if not self._addresses[self._address]:
            del self._addresses[self._address]

    def data_received(self, data: bytes) -> None:
        """Read on, unless the client was refused."""
        if self._refused:
            return
        self._unfinished_bytes += len(data)
        super().data_received(data)
        if self._unfinished_bytes > self._limits.head_bytes:
            self._refuse_head()

    # What the parser finds.

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._head_size = 0
        self._set_deadline(self._limits.head_seconds, "head")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer after the body."""
        self._head_size += len(name) + len(value)
        if self._head_size <= self._limits.head_bytes:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete, and the body follows."""
        self._unfinished_bytes = 0
        if self._head_size + len(self.url) > self._limits.head_bytes:
            self._refuse_head()
        if self._refused:
            return
        super().on_headers_complete()
        # The body of a request behind another one (pipelining) is read after the answer to that.
        if not self.pipeline:
            self._set_deadline(self._limits.body_seconds, "body")

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._unfinished_bytes = 0
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._unfinished_bytes = 0
        self._clear_deadline()
        if not self._refused:
            super().on_message_complete()

    # Refusals.

    def _set_deadline(self, seconds: float, part: str) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(seconds, self._refuse_slow, part, seconds)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse_connection(self, whose: str) -> None:
        log.warning("a connection is refused: there are too many %s", whose)
        detail = f"there are too many connections {whose}: close some, or try again later"
        self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "TOO_MANY_CONNECTIONS", detail)

    def _refuse_head(self) -> None:
        detail = f"the head of the request has more than {self._limits.head_bytes} bytes: send fewer or shorter headers"
        self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "HEAD_TOO_LARGE", detail)

    def _refuse_slow(self, part: str, seconds: float) -> None:
        detail = f"the {part} of the request was not complete after {seconds:g} seconds: send it again"
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, "REQUEST_TOO_SLOW", detail)

    def _refuse(self, status: HTTPStatus, code: str, detail: str) -> None:
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
            headers = {"Connection": "close"}
            if status is HTTPStatus.SERVICE_UNAVAILABLE:
                headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
            answer = problem(status, code, detail, headers=headers)
            lines = [b"HTTP/1.1 %d %s" % (status, status.phrase.encode())]
            lines += [b"%s: %s" % field for field in answer.raw_headers]
            self.transport.write(b"\r\n".join([*lines, b"", bytes(answer.body)]))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_SECONDS, self.transport.abort)
