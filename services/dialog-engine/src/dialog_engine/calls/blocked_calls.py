"""Which tool calls are blocked, as far as an engine can know: Redis is unavailable, or their server has no worker."""

import asyncio
import contextlib
from collections.abc import Callable, Generator, Sequence

from dialog_engine.model import CallHeld, WaitsFor
from dialog_engine.tool_calls.ports import ToolDirectory
from plugins_contract.catalog import HEARTBEAT_SECONDS
from plugins_contract.clock import RedisWatch
from plugins_contract.messages import ToolCallRequested

LOOK_SECONDS = 0.5
SETTLED_SECONDS = 2 * HEARTBEAT_SECONDS
"""How long Redis must have been steady before a missing heartbeat means anything: living workers have sent one then."""

Deliver = Callable[[CallHeld], None]
"""Takes what a call waits for. It must not block."""


class BlockedCalls:
    """Polls the availability of Redis and of workers, and notifies subscribers when it changes."""

    def __init__(self, watch: RedisWatch, tools: ToolDirectory) -> None:
        self._watch = watch
        self._tools = tools
        self._redis_unavailable = False
        self._without_worker: frozenset[str] = frozenset()
        """The MCP servers that no worker reports."""
        self._subscribers: set[_Subscriber] = set()

    def waits_for(self, server: str) -> WaitsFor | None:
        """What a call to that MCP server waits for; None when nothing blocks it."""
        if self._redis_unavailable:
            return WaitsFor.REDIS
        return WaitsFor.WORKER if server in self._without_worker else None

    @contextlib.contextmanager
    def subscribed(self, requests: Sequence[ToolCallRequested], deliver: Deliver) -> Generator[None]:
        """Deliver what each of these calls waits for at every change, while the context is open."""
        subscriber = _Subscriber(requests, deliver)
        subscriber.update(self.waits_for)
        self._subscribers.add(subscriber)
        try:
            yield
        finally:
            self._subscribers.discard(subscriber)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Look once, and notify."""
        before = self._redis_unavailable, self._without_worker
        self._redis_unavailable = not self._watch.available
        settled = self._watch.steady_for() >= SETTLED_SECONDS
        views = self._tools.servers if settled else ()
        self._without_worker = frozenset(view.catalog.server for view in views if not view.workers)
        if (self._redis_unavailable, self._without_worker) != before:
            for subscriber in self._subscribers:
                subscriber.update(self.waits_for)


class _Subscriber:
    """Calls that are waited for together, and what was last delivered for each."""

    def __init__(self, requests: Sequence[ToolCallRequested], deliver: Deliver) -> None:
        self._delivered: dict[str, WaitsFor | None] = {}
        self._requests = requests
        self._deliver = deliver

    def update(self, waits_for: Callable[[str], WaitsFor | None]) -> None:
        for request in self._requests:
            now = waits_for(request.server)
            if now is not self._delivered.get(request.correlation_id):
                self._delivered[request.correlation_id] = now
                self._deliver(CallHeld(request.correlation_id, now))
