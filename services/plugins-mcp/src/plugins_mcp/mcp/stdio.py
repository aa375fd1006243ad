"""A server that is a child process, and the lines on its standard streams.

In the place of the SDK's transport, which holds as much of a line as a server cares to say, copies all of it with every
piece that comes, and leaves a call without an answer when it cannot read the one that came.
"""

import asyncio
import json
import logging
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, TextIO, cast

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp.types import PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

from plugins_mcp.mcp.content import MAX_ANSWER_BYTES
from plugins_mcp.mcp.spec import ServerSpec, Stdio
from plugins_mcp.mcp.verdict import FAILED_TO_PARSE

log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.5
"""How long what was handed over may take to be written before the child's input is closed."""
LEAVE_SECONDS = 2.0
"""How long a child may take to end by itself when its input ends, and once more after SIGTERM."""
_LOOK_SECONDS = 0.01
_PIECE = 64 * 1024

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
Outgoing = MemoryObjectSendStream[SessionMessage]


@asynccontextmanager
async def child_streams(child: Stdio, errors: TextIO, spec: ServerSpec) -> AsyncGenerator[tuple[Incoming, Outgoing]]:
    """Start the child; the messages from it and to it. It has ended, with what it started, when the block has.

    `errors` is its standard error; `spec` is for logs. What comes in ends when the child does, and when it says more
    than MAX_ANSWER_BYTES on one line.

    Raises:
        OSError: it cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        child.command,
        *child.args,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=errors,
        env=get_default_environment() | dict(child.env),
        cwd=child.cwd,
        limit=MAX_ANSWER_BYTES,
        start_new_session=True,  # so that it is the leader of a process group
    )
    heard, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, to_say = anyio.create_memory_object_stream[SessionMessage](0)
    said = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(_listen, cast("asyncio.StreamReader", process.stdout), heard, spec)
        group.start_soon(_speak, cast("asyncio.StreamWriter", process.stdin), to_say, heard, said)
        try:
            yield incoming, outgoing
        finally:
            # The child must not outlive us because somebody is in a hurry; every wait in here is bounded.
            with anyio.CancelScope(shield=True):
                incoming.close()
                outgoing.close()
                with anyio.move_on_after(FLUSH_SECONDS):
                    await said.wait()
                cast("asyncio.StreamWriter", process.stdin).close()
                await _end(process)
            group.cancel_scope.cancel()


async def _listen(
    output: asyncio.StreamReader, heard: MemoryObjectSendStream[SessionMessage | Exception], spec: ServerSpec
) -> None:
    noted = False
    with suppress(asyncio.IncompleteReadError, ConnectionError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        async with heard:
            while line := await _line(output, spec):
                message = read_line(line)
                if message is not None:
                    await heard.send(message)
                elif not noted and line.strip():
                    noted = True
                    shown = spec.redact(line.decode("utf-8", "replace"))[:80]
                    log.warning(
                        "server %r: what is not MCP belongs on standard error, not on standard output: %r",
                        spec.name,
                        shown,
                    )
    # Nobody listens any more, and a child that cannot write what it has to say cannot end either.
    with suppress(ConnectionError):
        while await output.read(_PIECE):
            pass


async def _line(output: asyncio.StreamReader, spec: ServerSpec) -> bytes:
    """The next line; nothing when it is too long to be held."""
    try:
        return await output.readuntil(b"\n")
    except asyncio.LimitOverrunError:
        log.warning("server %r: left, because a line of it has more than %d bytes", spec.name, MAX_ANSWER_BYTES)
        return b""


async def _speak(
    its_input: asyncio.StreamWriter,
    to_say: MemoryObjectReceiveStream[SessionMessage],
    heard: MemoryObjectSendStream[SessionMessage | Exception],
    said: anyio.Event,
) -> None:
    try:
        async with to_say:
            async for item in to_say:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                its_input.write(f"{text}\n".encode(errors="replace"))
                await its_input.drain()
    except OSError:
        heard.close()  # whoever waits for an answer would wait for ever: the child may be alive
    finally:
        said.set()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Let the child, whose input has ended, end; or make it, with all that it has started."""
    if not await _within(LEAVE_SECONDS, process, alone=True):
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
            if await _within(LEAVE_SECONDS, process, alone=False):
                break
        else:
            log.warning("process %d is still there after SIGKILL, and is left", process.pid)
    # A grandchild that lives on may hold the pipes open. asyncio has no public way to let go of them.
    transport = getattr(process, "_transport", None)
    if transport is not None:
        with suppress(PermissionError):
            transport.close()


async def _within(seconds: float, process: asyncio.subprocess.Process, *, alone: bool) -> bool:
    """Whether it ends in time, or the whole of its group does. Its pipes say nothing: others may have them open."""
    with anyio.move_on_after(seconds):
        while process.returncode is None or not (alone or _group_is_gone(process.pid)):  # noqa: ASYNC110 -- nobody tells
            await anyio.sleep(_LOOK_SECONDS)
        return True
    return False


def _group_is_gone(leader: int) -> bool:
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def read_line(line: bytes) -> SessionMessage | None:
    """The message on a line; None for what is none.

    Text that is not UTF-8, or half a character (`\\ud83d`, where a server cut a text between the two), is mended. In
    the place of an answer that cannot be read there is an error: its call would wait to its deadline for another.
    """
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        pass
    try:
        said: Any = json.loads(line.decode("utf-8", "replace"))
        mended = json.dumps(said, ensure_ascii=False).encode("utf-8", "replace")
    except (ValueError, RecursionError):
        return None
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(mended, by_name=False))
    except ValueError:
        return _unreadable(said)


def _unreadable(said: Any) -> SessionMessage | None:
    if not isinstance(said, dict) or "jsonrpc" not in said or "method" in said:
        return None
    number = cast("dict[str, Any]", said).get("id")
    if isinstance(number, bool) or not isinstance(number, int | str):
        return None
    error = ErrorData(code=PARSE_ERROR, message=f"{FAILED_TO_PARSE} the answer: it is not valid JSON-RPC")
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=error))
