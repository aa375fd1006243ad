"""Starts and ends a server that is a child process. `stdio_lines` reads and writes its standard streams.

Replaces the SDK's transport, which holds lines of any length in memory, copies a line with each chunk that arrives, and
leaves a call unanswered when its answer cannot be read (ADR 0025).
"""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TextIO, cast

import anyio
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from callstream_runtime.visible import visible
from plugins_mcp.mcp.content import MAX_ANSWER_BYTES
from plugins_mcp.mcp.dispatcher import Connection, Negotiated, TransportListener
from plugins_mcp.mcp.spec import ServerSpec, without_credentials
from plugins_mcp.mcp.stdio_lines import LineDispatcher, read_lines, write_lines
from plugins_mcp.mcp.transport_options import Stdio

log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.5
"""How long messages that were handed over may take to be written before the child's input is closed."""
REAP_SECONDS = 0.5
"""How long after the end of its output the exit of a child is waited for, to learn its exit code."""
TERMINATE_SECONDS = 2.0
"""How long a child may take to exit after its input was closed, and again after SIGTERM."""
_POLL_SECONDS = 0.01
_CHUNK_BYTES = 64 * 1024


class ChildDiagnostics:
    """What is known of one child process after it failed: its last lines on standard error, and its exit code.

    `other_text` is the beginning of what it wrote to its standard output that is not MCP. `exit_code` is set
    when the child exited by itself, and negative for a signal. Used for one start of the child.
    """

    def __init__(self, limit: int = 2048) -> None:
        self.exit_code: int | None = None
        self.other_text = ""
        self._limit = limit
        self._tail = b""

    def stderr(self) -> str:
        """The end of standard error, in one printable line without credentials; empty when there was none."""
        lines = self._tail.decode("utf-8", "replace").split("\n")
        if len(self._tail) == self._limit:
            del lines[0]  # its beginning is missing
        text = " | ".join(visible(line.strip()) for line in lines[-6:] if line.strip())
        return without_credentials(text)

    def note_other_text(self, text: str) -> None:
        """Keep text that the child wrote instead of MCP, for the reason that the catalog shows."""
        self.other_text = visible(text)

    @contextmanager
    def stderr_file(self) -> Generator[TextIO]:
        """A file for the child's standard error. It is read all the time, so that the child never blocks on it."""
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe()
        os.set_blocking(reading, False)

        def drain() -> None:
            with suppress(BlockingIOError):
                chunk = os.read(reading, _CHUNK_BYTES)
                self._tail = (self._tail + chunk)[-self._limit :]
                if not chunk:
                    loop.remove_reader(reading)

        loop.add_reader(reading, drain)
        try:
            with open(writing, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor, not a path
                yield file
        finally:
            drain()
            loop.remove_reader(reading)
            os.close(reading)


@asynccontextmanager
async def open_child(
    command: Stdio, diagnostics: ChildDiagnostics, spec: ServerSpec, listener: TransportListener
) -> AsyncGenerator[Connection]:
    """Start the child process. `spec` is for logs.

    Both ways to it end when the child closes its output or its input, or sends a line of more than MAX_ANSWER_BYTES.

    On exit the child and every process it started have ended, and `diagnostics` has its exit code and its last errors.

    Raises:
        OSError: the child cannot be started; the text names its command.
    """
    with diagnostics.stderr_file() as errors:
        process = await _start(command, errors)
        output, child_input = cast("asyncio.StreamReader", process.stdout), cast("asyncio.StreamWriter", process.stdin)
        received, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, to_send = anyio.create_memory_object_stream[SessionMessage](0)
        lines = LineDispatcher(child_input, listener)
        pipe_closed, all_written = anyio.Event(), anyio.Event()

        def direct(_: Negotiated) -> LineDispatcher:
            return lines

        async with anyio.create_task_group() as group:
            group.start_soon(
                read_lines, output, received, lines, pipe_closed, spec, diagnostics.note_other_text,
                lambda: to_send.statistics().tasks_waiting_send,
            )  # fmt: skip
            group.start_soon(write_lines, child_input, to_send, received, lines, pipe_closed, all_written)
            try:
                yield Connection((incoming, outgoing), direct)
            finally:
                incoming.close()
                outgoing.close()
                reaped = diagnostics if pipe_closed.is_set() else None
                await _to_the_end(_close(process, child_input, all_written, reaped))
                group.cancel_scope.cancel()


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await `work`, which takes a bounded time, also when this is cancelled before or meanwhile, by a scope or not."""
    with anyio.CancelScope(shield=True):
        task = asyncio.create_task(work, name=work.__qualname__)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise


async def _close(
    process: asyncio.subprocess.Process,
    child_input: asyncio.StreamWriter,
    all_written: anyio.Event,
    reaped: ChildDiagnostics | None,
) -> None:
    """End the child once it was sent everything. `reaped` gets the exit code of one that has ended by itself."""
    if reaped and await _exits(REAP_SECONDS, process, alone=True):
        reaped.exit_code = process.returncode
    with anyio.move_on_after(FLUSH_SECONDS):
        await all_written.wait()
    child_input.close()
    await _end(process)


async def _start(command: Stdio, errors: TextIO) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            command.command,
            *command.args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env=get_default_environment() | dict(command.env),
            cwd=command.cwd,
            limit=MAX_ANSWER_BYTES,
            start_new_session=True,  # makes the child the leader of a process group, which can be killed as a whole
        )
    except OSError as error:
        # uvloop's errors name no file, and asyncio's name the folder or the command.
        where = f" in the folder (cwd) {command.cwd!r}" if command.cwd is not None else ""
        reason = error.strerror or str(error)
        raise OSError(f"the command {command.command!r} cannot be started{where}: {reason}") from error


async def _end(process: asyncio.subprocess.Process) -> None:
    """Wait for the child, whose input is closed, to exit; otherwise terminate its process group, then kill it."""
    if not await _exits(TERMINATE_SECONDS, process, alone=True):
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
            if await _exits(TERMINATE_SECONDS, process, alone=False):
                break
        else:
            log.warning("process %d is still running after SIGKILL and is given up", process.pid)
    # A grandchild that is still running may hold the pipes open. asyncio has no public method to close them.
    transport = getattr(process, "_transport", None)
    if transport is not None:
        with suppress(PermissionError):
            transport.close()


async def _exits(seconds: float, process: asyncio.subprocess.Process, *, alone: bool) -> bool:
    """Whether the child (`alone`) or its whole process group exits in time. Other processes may keep its pipes open."""
    with anyio.move_on_after(seconds):
        # Nothing signals the end of a process group, so it is polled.
        while process.returncode is None or not (alone or _group_is_gone(process.pid)):  # noqa: ASYNC110
            await anyio.sleep(_POLL_SECONDS)
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
