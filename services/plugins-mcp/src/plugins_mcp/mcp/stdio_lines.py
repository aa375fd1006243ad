"""The messages from and to a child process: lines on its standard streams.

The child has two sessions: the one of the SDK's client, and that of the `LineDispatcher` for calls and listings.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import count

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import MCPError
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.message import SessionMessage
from mcp.types import (
    CONNECTION_CLOSED,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)

from callstream_runtime.long_texts import LOOP_CHARACTERS, reading
from plugins_mcp.mcp.content import MAX_ANSWER_BYTES
from plugins_mcp.mcp.dispatcher import (
    DirectDispatcher,
    DirectRequest,
    Progress,
    TransportListener,
    encoded,
    parse_line,
    progress_of,
    room_for_request,
    updated_resource,
)
from plugins_mcp.mcp.spec import ServerSpec, without_credentials

log = logging.getLogger(__name__)

MAX_SHOWN = 80
"""Characters of a line that is not MCP that are shown."""

LINES_PER_TURN = 10
"""Lines that are read between two turns of the loop."""

_CHUNK_BYTES = 64 * 1024
FIRST_ID = 2**30
"""The SDK's session counts its requests to the same child from 1. Some servers take ids of 32 bits only."""


class LineDispatcher(DirectDispatcher):
    """Sends requests as lines.

    The reader of the child's output gives each message to `take` first. What happens to a tool call is recorded in its
    `SendState`. While the child does not read its input, a request waits before it is written, and counts as not sent.
    """

    def __init__(self, child_input: asyncio.StreamWriter, listener: TransportListener) -> None:
        super().__init__(listener, first_id=FIRST_ID)
        self._input = child_input
        self._waiting: dict[RequestId, asyncio.Queue[Progress | JSONRPCResponse | JSONRPCError | None]] = {}
        """What came for each request; None at the end of the connection."""
        self._closed = False

    async def exchange(self, request: DirectRequest) -> JSONRPCResponse | JSONRPCError:
        """Write a request, and wait for its answer."""
        try:
            await self._input.drain()
        except (OSError, RuntimeError):
            self.close()
        if self._closed:
            raise MCPError(CONNECTION_CLOSED, "Connection closed")
        incoming = self._waiting[request.id] = asyncio.Queue()
        request.send_state.sent = True
        self._write(request.message)
        try:
            while True:
                match await incoming.get():
                    case None:
                        raise MCPError(CONNECTION_CLOSED, "Connection closed")
                    case Progress(_, progress, total, text):
                        if request.report is not None:
                            await request.report(progress, total, text)
                    case answer:
                        return answer
        except asyncio.CancelledError:
            params = {"requestId": request.id, "reason": "caller cancelled"}
            self._write(encoded({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}))
            raise
        finally:
            del self._waiting[request.id]

    def take(self, message: JSONRPCMessage) -> bool:
        """Whether a message from the child is for a request that was sent here; that request gets it then."""
        match message:
            case JSONRPCResponse() | JSONRPCError():
                received, key = message, message.id
            case JSONRPCNotification(method="notifications/progress", params=params):
                received = progress_of(params)
                key = received.token if received else None
            case _:
                return False
        waiting = self._waiting.get(coerce_request_id(key)) if key is not None else None
        if waiting is None:
            return False
        waiting.put_nowait(received)
        return True

    def close(self) -> None:
        """End the requests that wait for an answer; later ones are not sent. For the end of the child's output."""
        self._closed = True
        self.listener.lost()
        for waiting in self._waiting.values():
            waiting.put_nowait(None)

    def _write(self, message: bytes) -> None:
        try:
            self._input.writelines((message, b"\n"))
            failed = self._input.is_closing()
        except (OSError, RuntimeError):  # uvloop raises RuntimeError for a pipe that it has closed
            failed = True
        if failed:
            self.close()


async def read_lines(
    output: asyncio.StreamReader,
    received: MemoryObjectSendStream[SessionMessage | Exception],
    lines: LineDispatcher,
    pipe_closed: anyio.Event,
    spec: ServerSpec,
    on_other_text: Callable[[str], None],
    unanswered: Callable[[], int],
) -> None:
    """Read the child's output until its end, or a line of more than MAX_ANSWER_BYTES. `spec` is for logs.

    `unanswered` returns how many answers to requests of the child wait to be written.

    `on_other_text` gets the beginning of the first line that is not MCP, without secrets. Messages that
    are not for a request of `lines` go to `received`. `pipe_closed` is set at the end of the output.
    """
    warned = False
    with (
        closing(lines),
        suppress(asyncio.IncompleteReadError, ConnectionError, anyio.BrokenResourceError, anyio.ClosedResourceError),
    ):
        async with received:
            for number in count(1):
                if number % LINES_PER_TURN == 0:  # any number of them may have arrived already
                    await asyncio.sleep(0)
                if not (line := await _read_line(output, spec, pipe_closed)):
                    break
                message = await reading(len(line), parse_line, line)
                if message is not None:
                    if uri := updated_resource(message):
                        lines.listener.updated(uri)
                    elif not lines.take(message):
                        match message:
                            case JSONRPCRequest():
                                await room_for_request(unanswered)
                            case JSONRPCResponse(result=result):
                                await lines.listener.result(result)
                            case _:
                                pass
                        await received.send(SessionMessage(message))
                elif not warned and line.strip():
                    warned = True
                    shown = without_credentials(spec.redact(line[:LOOP_CHARACTERS].decode("utf-8", "replace")))[
                        :MAX_SHOWN
                    ]
                    on_other_text(shown.strip())
                    log.warning(
                        "MCP server %r writes what is not MCP to standard output instead of standard error: %r",
                        spec.name,
                        shown,
                    )
    # The messages are not wanted any more, but a child that cannot write its output cannot exit either.
    with suppress(ConnectionError):
        while await output.read(_CHUNK_BYTES):
            pass


async def _read_line(output: asyncio.StreamReader, spec: ServerSpec, pipe_closed: anyio.Event) -> bytes:
    """The next line; empty when it is longer than MAX_ANSWER_BYTES.

    Raises:
        IncompleteReadError: the child has closed its output; `pipe_closed` is set then.
    """
    try:
        return await output.readuntil(b"\n")
    except asyncio.LimitOverrunError:
        log.warning(
            "MCP server %r: the connection is closed, because it sent a line of more than %d bytes",
            spec.name,
            MAX_ANSWER_BYTES,
        )
        return b""
    except (asyncio.IncompleteReadError, ConnectionError):
        pipe_closed.set()
        raise


async def write_lines(
    child_input: asyncio.StreamWriter,
    to_send: MemoryObjectReceiveStream[SessionMessage],
    received: MemoryObjectSendStream[SessionMessage | Exception],
    lines: LineDispatcher,
    pipe_closed: anyio.Event,
    all_written: anyio.Event,
) -> None:
    """Write the messages of `to_send`. `pipe_closed` is set when the child takes no more, `all_written` at the end."""
    try:
        async with to_send:
            async for item in to_send:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                if not await _write_line(child_input, f"{text}\n".encode(errors="replace")):
                    pipe_closed.set()
                    # A child without input may live on, and the requests would wait for its answers.
                    received.close()
                    lines.close()
                    return
    finally:
        all_written.set()


async def _write_line(child_input: asyncio.StreamWriter, line: bytes) -> bool:
    """Whether the line was written; False when the child has closed its input."""
    try:
        child_input.write(line)
        await child_input.drain()
    except (OSError, RuntimeError):  # uvloop raises RuntimeError for a pipe that it has closed
        return False
    return True
