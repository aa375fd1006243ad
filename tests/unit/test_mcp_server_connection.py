"""Slots of a server, the end of the task that owns its connection, and what is recorded of calls and children."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self, cast

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp.types import CallToolResult, JSONRPCNotification, JSONRPCRequest

from plugins_contract.catalog import ServerState
from plugins_mcp.mcp import Answered, CallResult, ConnectionPolicy, Http, McpServer, NotSent, SendState, ServerSpec
from plugins_mcp.mcp.calls import Outbound, current_call, outbound_message
from plugins_mcp.mcp.listing import Listing
from plugins_mcp.mcp.observed_streams import ObservedWriter
from plugins_mcp.mcp.server_connection import ServerConnection
from plugins_mcp.mcp.session import Session
from plugins_mcp.mcp.spec import ServerOptions
from plugins_mcp.mcp.stdio import ChildDiagnostics
from tests.support.waiting import wait_until

POLICY = ConnectionPolicy(first_delay=60, longest_delay=60, failure_threshold=1)


class FakeSession:
    """Records the tools it is called with, and answers once `answer` is set."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.answer = asyncio.Event()

    async def call(self, tool: str, *arguments: Any) -> CallResult:
        self.called.append(tool)
        await self.answer.wait()
        return Answered(CallToolResult(content=[]))


class Bench:
    """A connection with a fake session, and calls through it."""

    def __init__(self, concurrency: int) -> None:
        spec = ServerSpec("s", Http("http://h"), ServerOptions(concurrency=concurrency))
        self.session = FakeSession()
        self.begun: list[str] = []
        self.known = asyncio.Event()
        self.known.set()
        self.connection = ServerConnection(spec, POLICY, on_change=lambda: None)
        self.connection.session_opened(cast("Session", self.session))
        self.connection.listed(changed=False)

    def call(self, tool: str) -> asyncio.Task[CallResult]:
        return asyncio.create_task(
            self.connection.call(
                tool,
                {},
                known=self.known,
                timeout_s=20,
                granted_s=20,
                on_begin=lambda: self.begun.append(tool),
                on_progress=lambda progress: None,
                meta=None,
                send_state=SendState(),
            )
        )


@asynccontextmanager
async def calling(concurrency: int, *tools: str) -> AsyncGenerator[tuple[Bench, list[asyncio.Task[CallResult]]]]:
    """Calls that were all made, of which as many run as there are slots."""
    bench = Bench(concurrency)
    calls = [bench.call(tool) for tool in tools]
    await anyio.wait_all_tasks_blocked()
    yield bench, calls
    bench.session.answer.set()
    await asyncio.wait(calls, timeout=5)


async def test_calls_get_slots_in_order_and_no_more_begin_than_there_are_slots() -> None:
    async with calling(2, "1", "2", "3", "4", "5") as (bench, calls):
        assert bench.begun == bench.session.called == ["1", "2"]
    assert bench.begun == bench.session.called == ["1", "2", "3", "4", "5"]
    assert all(isinstance(call.result(), Answered) for call in calls)


async def test_calls_that_wait_for_a_slot_are_refused_when_the_circuit_opens_and_running_ones_continue() -> None:
    async with calling(1, "running", "waiting", "waiting") as (bench, (running, *waiting)):
        bench.connection.failed("gone")
        bench.connection.failed("gone")
        await asyncio.wait(waiting, timeout=5)
        assert all(isinstance(call.result(), NotSent) for call in waiting)
        assert not running.done()
    assert isinstance(running.result(), Answered)
    assert bench.session.called == ["running"]
    assert isinstance(await bench.call("next"), Answered)  # the answer closed the circuit, and the slot is free


async def test_a_cancelled_call_gives_up_its_place_and_its_slot() -> None:
    async with calling(1, "running", "cancelled", "next") as (bench, (running, cancelled, _)):
        cancelled.cancel()
        await asyncio.wait([cancelled], timeout=5)
        running.cancel()
        await wait_until(lambda: bench.session.called == ["running", "next"])


async def test_a_slot_that_was_handed_to_a_call_cancelled_in_that_moment_goes_to_the_next_call() -> None:
    bench = Bench(1)
    async with asyncio.timeout(None) as total, bench.connection._slot(total):  # pyright: ignore[reportPrivateUsage]
        cancelled, following = bench.call("cancelled"), bench.call("next")
        await anyio.wait_all_tasks_blocked()
    cancelled.cancel()  # the slot is handed over, and the call has not run yet
    await wait_until(lambda: bench.session.called == ["next"])
    bench.session.answer.set()
    await following


class FailingOnExit:
    """A session whose transport fails while it is closed, which swallows a cancellation."""

    protocol_version = "2026-07-28"

    def __init__(self, *arguments: Any) -> None:
        self.client = self
        self.opened = lambda: self
        self.ended = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        raise ExceptionGroup("transport", [OSError("broken while closing")])

    async def list_all(self) -> Listing:
        return Listing()

    async def subscribe(self) -> None:
        await asyncio.Event().wait()


def by_stopping(server: McpServer, run: asyncio.Task[None]) -> None:
    server.stop()


def by_cancelling(server: McpServer, run: asyncio.Task[None]) -> None:
    run.cancel()


@pytest.mark.parametrize("end", [by_stopping, by_cancelling])
async def test_the_owner_ends_although_its_transport_swallows_the_cancellation(
    end: Callable[[McpServer, asyncio.Task[None]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plugins_mcp.mcp.server.Session", FailingOnExit)
    server = McpServer(ServerSpec("s", Http("http://h")), policy=POLICY)
    run = asyncio.create_task(server.run())
    await wait_until(lambda: server.state is ServerState.READY)
    end(server, run)
    done, _ = await asyncio.wait({run}, timeout=5)
    assert done


async def test_the_address_of_a_server_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    reason = "Connect call failed ('10.0.0.5', 8080) at mcp.internal"
    connection = ServerConnection(ServerSpec("s", Http("http://mcp.internal")), POLICY, on_change=lambda: None)
    connection.failed(reason)
    connection.attempt_started()
    assert connection.status.error == "Connect call failed *** at ***"
    assert reason in caplog.text


# --- What is recorded about a call when it is sent, and about the standard error of a child ---


class Outlet:
    """A transport that records how each message was marked."""

    def __init__(self) -> None:
        self.seen: list[Outbound] = []

    async def send(self, item: SessionMessage, /) -> None:
        self.seen.append(outbound_message.get())

    async def aclose(self) -> None:
        pass


def request(method: str) -> SessionMessage:
    return SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=1, method=method))


NOTICE = SessionMessage(JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled"))


async def send(writer: ObservedWriter, send_state: SendState | None, *items: SessionMessage) -> None:
    token = current_call.set(send_state)
    try:
        for item in items:
            await writer.send(item)
    finally:
        current_call.reset(token)


async def test_only_the_call_itself_is_marked_with_its_send_state() -> None:
    outlet, send_state = Outlet(), SendState()
    await send(ObservedWriter(outlet), send_state, request("tools/call"), NOTICE, request("tools/list"))
    assert outlet.seen == [Outbound(send_state), Outbound(expects_answer=False), Outbound()]
    assert (send_state.sent, send_state.rounds, send_state.answered) == (False, 1, True)
    assert outbound_message.get() == Outbound()


async def test_requests_outside_of_a_call_are_not_marked() -> None:
    outlet = Outlet()
    await send(ObservedWriter(outlet), None, request("tools/list"), request("tools/call"))
    assert outlet.seen == [Outbound(), Outbound()]


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (b"", ""),
        (b"one\n\ntwo\n", "one | two"),
        (b"x" * 30 + b"\nthe end \xff\n", "the end \ufffd"),
        (b"\x1b]0;title\a\r", r"\x1b]0;title\x07"),
        (b"ghp_abcdefghijkl", "***"),
        ("\u202egnol".encode(), r"\u202egnol"),
    ],
)
async def test_the_end_of_standard_error_is_kept(written: bytes, kept: str) -> None:
    child = ChildDiagnostics(limit=20)
    with child.stderr_file() as file:
        os.write(file.fileno(), written)
    assert child.stderr() == kept


async def test_standard_error_is_drained_while_the_child_writes() -> None:
    child = ChildDiagnostics()
    written: Any = None
    with child.stderr_file() as file:
        written = await anyio.to_thread.run_sync(lambda: sum(os.write(file.fileno(), b"e" * 60_000) for _ in range(20)))
        os.write(file.fileno(), b"\nlast\n")
        await wait_until(lambda: child.stderr().endswith("last"))
    assert written == 1_200_000
