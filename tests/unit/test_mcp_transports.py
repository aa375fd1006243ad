"""What is recorded about a call when it is sent, and about the standard error of a child."""

import os
from typing import Any

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCNotification, JSONRPCRequest

from plugins_mcp.mcp.calls import Outbound, SendState, current_call, outbound_message
from plugins_mcp.mcp.observed_streams import ObservedWriter
from plugins_mcp.mcp.stdio import ChildDiagnostics
from tests.support.waiting import wait_until


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
