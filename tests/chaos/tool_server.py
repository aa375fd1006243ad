"""`python -m tests.chaos.tool_server PORT PORT NOTES`: an MCP server whose tools note what becomes of every call.

On the first port it speaks the protocol of today, where closing the connection cancels a call; on the second one that
of before, where `notifications/cancelled` does. A tool reports progress, and works for `work_ms`. `once` and
`repeatable` have their effect before that: what dies meanwhile loses the answer and not the effect. `obeys` and
`ignores` have it afterwards; `ignores` has it even if it was cancelled.
"""

import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.chaos.notes import Notes, What
from tests.chaos.tools import IGNORES, OBEYS, ONCE, REPEATABLE
from tests.integration.servers.scripted import LEGACY, MODERN, Behaviour, Request, ScriptedServer

HINTS = {REPEATABLE: {"readOnlyHint": True, "idempotentHint": True}}
SCHEMA = {
    "type": "object",
    "properties": {"token": {"type": "string"}, "work_ms": {"type": "integer"}},
    "required": ["token", "work_ms"],
}
RESULT = {"content": [{"type": "text", "text": "done"}], "resultType": "complete"}


class ToolServer:
    def __init__(self, era: str, port: int, notes: Notes) -> None:
        self._notes = notes
        self._running: dict[Any, tuple[str, asyncio.Event]] = {}
        tools: dict[str, Behaviour] = {name: self._tool(name) for name in (ONCE, REPEATABLE, OBEYS, IGNORES)}
        self.http = ScriptedServer(
            era,
            behaviours={**tools, "notifications/cancelled": self._notified},
            tools=[
                {"name": name, "description": name, "inputSchema": SCHEMA, "annotations": HINTS.get(name, {})}
                for name in tools
            ],
            port=port,
            keep_requests=False,
        )

    def _tool(self, name: str) -> Behaviour:
        async def run(request: Request) -> None:
            arguments = request.params["arguments"]
            token, stopped = arguments["token"], asyncio.Event()
            self._running[request.message["id"]] = (token, stopped)
            self._notes.add(What.CALLED, token)
            if name in (ONCE, REPEATABLE):
                self._notes.add(What.EFFECT, token)
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
        with suppress(ConnectionError):
            await _begin(request)
        if name == IGNORES:
            await asyncio.sleep(seconds)
        elif await _within(stopped, seconds):
            return
        if name in (OBEYS, IGNORES):
            self._notes.add(What.EFFECT, token)
        try:
            await request.event(request.envelope(result=RESULT))
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


async def main(today: int, before: int, notes: Notes) -> None:
    for era, port in ((MODERN, today), (LEGACY, before)):
        await ToolServer(era, port, notes).http.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), Notes(Path(sys.argv[3]))))
