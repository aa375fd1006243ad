"""A client that reads nothing of a turn's events, as a real connection."""

import asyncio
import logging
import socket

import pytest

from dialog_engine.http.streams import StreamTimes
from dialog_engine.wiring.times import EngineTimes
from tests.integration.engines import Engine, Model, with_times
from tests.marks import promise
from tests.support.waiting import wait_until

pytestmark = with_times(EngineTimes(streams=StreamTimes(unread=0.5)))

PIECES, PIECE = 70, "x" * 50_000
"""More than the kernel keeps for a client."""


@promise("a frozen client is dropped and affects no other")
async def test_it_is_dropped_and_counted_and_its_turn_ends_completely(
    engine: Engine, model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    model.replies = [[{"content": PIECE}] * PIECES]
    model.held.clear()
    turn = await engine.begin()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", int(engine.url.rpartition(":")[2])))
        await loop.sock_sendall(client, f"GET {turn['eventsUrl']} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        model.held.set()
        await wait_until(lambda: engine.metric("dialog_clients_dropped_total 1.0"), what="a dropped client")

    await wait_until(lambda: ended(engine, turn["turnId"]), what="the end of the turn")
    [*_, answer] = (await engine.client.get(f"/v1/sessions/{turn['sessionId']}/messages")).json()["messages"]
    assert answer["content"] == PIECES * PIECE
    assert [each.message for each in caplog.records if each.levelno >= logging.ERROR] == []


async def ended(engine: Engine, turn_id: str) -> bool:
    return (await engine.client.get(f"/v1/turns/{turn_id}")).json()["status"] == "done"
