"""The owner of a connection always ends when it is told to."""

import asyncio
from collections.abc import Callable
from typing import Any, Self

import pytest

from plugins_contract.catalog import ServerState
from plugins_mcp.mcp.listing import Offers
from plugins_mcp.mcp.pace import Pace
from plugins_mcp.mcp.server import McpServer
from plugins_mcp.mcp.spec import Http, ServerSpec
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


class LosesCancellation:
    """A connection whose transport fails while it is being left, which is how a cancellation gets lost."""

    protocol_version = "2026-07-28"

    def __init__(self, *arguments: Any) -> None:
        self.client = self
        self.ended = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        raise ExceptionGroup("transport", [OSError("broken while closing")])

    async def offers(self) -> Offers:
        return Offers()

    async def listen(self) -> None:
        await asyncio.Event().wait()


def by_stopping(server: McpServer, run: asyncio.Task[None]) -> None:
    server.stop()


def by_cancelling(server: McpServer, run: asyncio.Task[None]) -> None:
    run.cancel()


@pytest.mark.parametrize("end", [by_stopping, by_cancelling])
async def test_an_owner_ends_even_when_its_cancellation_is_lost(
    end: Callable[[McpServer, asyncio.Task[None]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plugins_mcp.mcp.server.Connection", LosesCancellation)
    server = McpServer(ServerSpec("s", Http("http://h")), pace=Pace(first_delay=60))
    run = asyncio.create_task(server.run())
    await wait_until(lambda: server.state is ServerState.READY)
    end(server, run)
    done, _ = await asyncio.wait({run}, timeout=5)
    assert done
