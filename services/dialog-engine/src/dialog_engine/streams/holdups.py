"""What keeps tool calls from going on, as far as an engine can know: Redis is away, or no worker is there for them."""

import asyncio
import contextlib
from collections.abc import Callable, Generator, Sequence

from dialog_engine.model import CallHeld, WaitsFor
from dialog_engine.tool_calls.directory import ToolDirectory
from plugins_contract.catalog import HEARTBEAT_SECONDS
from plugins_contract.clock import RedisWatch
from plugins_contract.messages import ToolCallRequested

LOOK_SECONDS = 0.5
SETTLED_SECONDS = 2 * HEARTBEAT_SECONDS
"""How long Redis must have been steady before the silence of workers means anything: those that live have reported."""

Deliver = Callable[[CallHeld], None]
"""Takes word of what a call waits for. It must not wait."""


class Holdups:
    """Looks at what other parts of the engine know, and tells those who wait for calls when it is another."""

    def __init__(self, watch: RedisWatch, tools: ToolDirectory) -> None:
        self._watch = watch
        self._tools = tools
        self._redis_away = False
        self._deserted: frozenset[str] = frozenset()
        """The servers that no worker reports of."""
        self._waiting: set[_Waiting] = set()

    def waits_for(self, server: str) -> WaitsFor | None:
        """What a call to that MCP server waits for which is not there; None when it goes on as ever."""
        if self._redis_away:
            return WaitsFor.REDIS
        return WaitsFor.WORKER if server in self._deserted else None

    @contextlib.contextmanager
    def subscribed(self, requests: Sequence[ToolCallRequested], deliver: Deliver) -> Generator[None]:
        """While the context is open, deliver what each of these calls waits for, as soon as that is not nothing."""
        waiting = _Waiting(requests, deliver)
        waiting.tell(self.waits_for)
        self._waiting.add(waiting)
        try:
            yield
        finally:
            self._waiting.discard(waiting)

    async def run(self) -> None:
        """Look, for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Look once."""
        before = self._redis_away, self._deserted
        self._redis_away = not self._watch.available
        settled = self._watch.steady_for() >= SETTLED_SECONDS
        views = self._tools.servers if settled else ()
        self._deserted = frozenset(view.catalog.server for view in views if not view.workers)
        if (self._redis_away, self._deserted) != before:
            for waiting in self._waiting:
                waiting.tell(self.waits_for)


class _Waiting:
    """Calls that are waited for together, and what was told of each."""

    def __init__(self, requests: Sequence[ToolCallRequested], deliver: Deliver) -> None:
        self._told: dict[str, WaitsFor | None] = {}
        self._requests = requests
        self._deliver = deliver

    def tell(self, waits_for: Callable[[str], WaitsFor | None]) -> None:
        for request in self._requests:
            now = waits_for(request.server)
            if now is not self._told.get(request.correlation_id):
                self._told[request.correlation_id] = now
                self._deliver(CallHeld(request.correlation_id, now))
