"""`python -m tests.chaos.stopping.server PORT PORT NOTES`: an MCP server whose tools take a stop in different ways.

On the first port it speaks the protocol of today, where closing the connection cancels a call; on the second one that
of before, where `notifications/cancelled` does. Every tool reports progress once it is at its work.
"""

import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.chaos.stopping.notes import Notes, What
from tests.integration.servers.scripted import LEGACY, MODERN, Behaviour, Request, ScriptedServer

OBEYS, IGNORES, EFFECT_FIRST = "obeys", "ignores", "effect_first"
"""Stops without effect; goes on to its effect; has had its effect before it works."""
SCHEMA = {
    "type": "object",
    "properties": {"token": {"type": "string"}, "work_ms": {"type": "integer"}},
    "required": ["token", "work_ms"],
}


class StoppableServer:
    """The tools, in one era of the protocol."""

    def __init__(self, era: str, notes: Notes) -> None:
        self._notes = notes
        self._running: dict[Any, tuple[str, asyncio.Event]] = {}
        tools: dict[str, Behaviour] = {name: self._tool(name) for name in (OBEYS, IGNORES, EFFECT_FIRST)}
        self.http = ScriptedServer(
            era,
            behaviours={**tools, "notifications/cancelled": self._notified},
            tools=[{"name": name, "description": name, "inputSchema": SCHEMA} for name in tools],
        )

    def _tool(self, name: str) -> Behaviour:
        async def run(request: Request) -> None:
            arguments = request.params["arguments"]
            token, stopped = arguments["token"], asyncio.Event()
            self._running[request.message["id"]] = (token, stopped)
            self._notes.add(What.CALLED, token)
            closed = asyncio.create_task(self._closed(request, token, stopped))
            try:
                await self._work(name, request, token, arguments["work_ms"] / 1000, stopped)
            finally:
                closed.cancel()
                if request.gone.is_set():
                    self._cancel(token, stopped)
                self._notes.add(What.ENDED, token)
                self._running.pop(request.message["id"], None)

        return run

    async def _work(self, name: str, request: Request, token: str, seconds: float, stopped: asyncio.Event) -> None:
        if name == EFFECT_FIRST:
            self._notes.add(What.EFFECT, token)
        with suppress(ConnectionError):
            await _begin(request)
        if name == IGNORES:
            await asyncio.sleep(seconds)
        elif await _within(stopped, seconds):
            return
        if name != EFFECT_FIRST:
            self._notes.add(What.EFFECT, token)
        result = {"content": [{"type": "text", "text": "done"}], "resultType": "complete"}
        try:
            await request.event(request.envelope(result=result))
            self._notes.add(What.ANSWERED, token)
            await request.raw(b"0\r\n\r\n")
        except ConnectionError:
            self._cancel(token, stopped)  # closed while it answered

    async def _closed(self, request: Request, token: str, stopped: asyncio.Event) -> None:
        await request.gone.wait()
        self._cancel(token, stopped)

    async def _notified(self, request: Request) -> None:
        if running := self._running.get(request.params.get("requestId")):
            self._cancel(*running)
        await request.respond(202, kind="")

    def _cancel(self, token: str, stopped: asyncio.Event) -> None:
        if not stopped.is_set():
            self._notes.add(What.CANCELLED, token)
            stopped.set()


async def _begin(request: Request) -> None:
    """The head of the answer, and that it is being worked on."""
    await request.event_stream()
    params = {"progressToken": request.params["_meta"]["progressToken"], "progress": 0}
    await request.event(json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}).encode())


async def _within(event: asyncio.Event, seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


async def main(ports: list[int], notes: Notes) -> None:
    """Serve until the process ends."""
    servers = [StoppableServer(era, notes).http for era in (MODERN, LEGACY)]
    for server, port in zip(servers, ports, strict=True):
        server.port = port
        server.keep_requests = False
        await server.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main([int(sys.argv[1]), int(sys.argv[2])], Notes(Path(sys.argv[3]))))
