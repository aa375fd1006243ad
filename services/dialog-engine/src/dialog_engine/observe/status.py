"""Whether the engine can serve requests, and the state of its parts."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from callstream_runtime.clock import RedisWatch
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.http.services import Readiness
from dialog_engine.storage.database import Database
from dialog_engine.storage.outbox import SqlOutbox
from dialog_engine.tool_calls.ports import ServerView, ToolDirectory
from plugins_contract.catalog import ServerState

FIRST_WORKER_SECONDS = 10.0
"""How long an engine that has started waits for Redis and for a first worker."""


class StartGate:
    """Whether the start is complete: every configured MCP server has listed its tools, or has had time enough.

    Only workers know the configuration, and each publishes all of its servers at once. Once open, the gate stays open.
    """

    def __init__(self, wait_seconds: float, *, now: Callable[[], float] = time.monotonic) -> None:
        """`wait_seconds`: how long servers may take to be listed for the first time, from now on."""
        self._wait_seconds = wait_seconds
        self._now = now
        self._began_at = now()
        self._open = False

    def opened(self, servers: Sequence[ServerView], *, workers: int | None, redis: bool) -> bool:
        """Whether it is open. `workers` is None where tools are switched off."""
        waited = self._now() - self._began_at
        if workers is None:
            self._open = True
        elif redis and workers:
            self._open |= not any(server.starting for server in servers) or waited >= self._wait_seconds
        else:
            self._open |= waited >= min(FIRST_WORKER_SECONDS, self._wait_seconds)
        return self._open


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Reads the parts of one engine. `has_workers` is False when tools are switched off."""

    database: Database
    outbox: SqlOutbox
    watch: RedisWatch
    tools: ToolDirectory
    has_workers: bool
    gate: StartGate

    async def readiness(self) -> Readiness:
        """Whether requests can be served, and the state of each part."""
        try:
            await self.database.check()
            waiting, oldest_ms = await self.outbox.backlog()
            storage = "ok"
        except StorageUnavailableError as error:
            waiting, oldest_ms, storage = 0, 0, str(error)
        workers = self.tools.workers if self.has_workers else None
        servers, redis = self.tools.servers, self.watch.available
        parts = {
            "storage": storage,
            "redis": "ok" if redis else "unavailable",
            "workers": workers,
            "tools": len(self.tools.tools()),
            "serversNotReady": {
                each.catalog.server: each.state for each in servers if each.state is not ServerState.READY
            },
            "outbox": {"waiting": waiting, "oldestMs": oldest_ms},
        }
        opened = self.gate.opened(servers, workers=workers, redis=redis)
        if storage != "ok":
            return Readiness("unready", parts)
        if not opened:
            return Readiness("starting", parts)
        whole = redis and workers != 0 and not any(each.starting for each in servers)
        return Readiness("ready" if whole else "degraded", parts)
