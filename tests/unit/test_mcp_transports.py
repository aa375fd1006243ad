"""What is noted about a call on its way out, and about a child's standard error."""

import os
from typing import Any

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCNotification, JSONRPCRequest

from plugins_mcp.mcp.flight import Cargo, Flight, cargo, flying
from plugins_mcp.mcp.stderr import StderrTail
from plugins_mcp.mcp.transports import WatchedWriter
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


class Outlet:
    """Where messages go; notes what each one carried."""

    def __init__(self, broken: bool = False) -> None:
        self.seen: list[Cargo] = []
        self._broken = broken

    async def send(self, item: SessionMessage, /) -> None:
        if self._broken:
            raise anyio.BrokenResourceError
        self.seen.append(cargo.get())

    async def aclose(self) -> None:
        pass


def request(method: str) -> SessionMessage:
    return SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=1, method=method))


NOTICE = SessionMessage(JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled"))


async def send(writer: WatchedWriter, flight: Flight | None, *items: SessionMessage) -> None:
    token = flying.set(flight)
    try:
        for item in items:
            await writer.send(item)
    finally:
        flying.reset(token)


async def test_only_the_call_itself_carries_its_flight() -> None:
    outlet, flight = Outlet(), Flight()
    await send(WatchedWriter(outlet, leaves_here=True), flight, request("tools/call"), NOTICE, request("tools/list"))
    assert outlet.seen == [Cargo(flight), Cargo(expects_answer=False), Cargo()]
    assert (flight.sent, flight.rounds, flight.answered) == (True, 1, True)
    assert cargo.get() == Cargo()


@pytest.mark.parametrize("leaves_here", [True, False])
async def test_handing_over_is_sending_only_where_the_bytes_leave_at_once(leaves_here: bool) -> None:
    flight = Flight()
    await send(WatchedWriter(Outlet(), leaves_here=leaves_here), flight, request("tools/call"))
    assert flight.sent is leaves_here


async def test_a_call_that_nobody_took_over_was_not_sent() -> None:
    flight = Flight()
    with pytest.raises(anyio.BrokenResourceError):
        await send(WatchedWriter(Outlet(broken=True), leaves_here=True), flight, request("tools/call"))
    assert not flight.sent


async def test_requests_that_belong_to_no_call_pass_unmarked() -> None:
    outlet = Outlet()
    await send(WatchedWriter(outlet, leaves_here=True), None, request("tools/list"), request("tools/call"))
    assert outlet.seen == [Cargo(), Cargo()]


@pytest.mark.parametrize(
    ("written", "kept"),
    [(b"", ""), (b"one\n\ntwo\n", "one | two"), (b"x" * 30 + b"\nthe end \xff\n", "the end \ufffd")],
)
async def test_the_end_of_standard_error_is_kept(written: bytes, kept: str) -> None:
    tail = StderrTail(limit=20)
    with tail.opened() as file:
        os.write(file.fileno(), written)
    assert tail.text() == kept


async def test_standard_error_is_drained_while_the_child_writes() -> None:
    tail = StderrTail()
    written: Any = None
    with tail.opened() as file:
        written = await anyio.to_thread.run_sync(lambda: sum(os.write(file.fileno(), b"e" * 60_000) for _ in range(20)))
        os.write(file.fileno(), b"\nlast\n")
        await wait_until(lambda: tail.text().endswith("last"))
    assert written == 1_200_000
