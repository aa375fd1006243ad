"""The status of the engine: readiness, and metrics that are measured at the time of a scrape."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from redis.asyncio import Redis

from callstream_runtime.clock import RedisWatch
from callstream_runtime.pool_directory import PoolDirectory
from callstream_runtime.redis_errors import RedisUnavailable
from dialog_engine.chat.turns import SessionQueue
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.http.services import Readiness
from dialog_engine.http.sse import Streams
from dialog_engine.observe.metrics import Metrics
from dialog_engine.peers.catalog import CatalogReader
from dialog_engine.relay.relay import Relay
from dialog_engine.storage.audit_chain import AuditChain
from dialog_engine.storage.database import Database
from dialog_engine.storage.erasures import SqlErasures
from dialog_engine.storage.outbox import SqlOutbox
from dialog_engine.tool_calls.approvals.pending import PendingApprovals
from dialog_engine.tool_calls.ports import ServerView, ToolDirectory
from plugins_contract.catalog import ServerState
from plugins_contract.keys import Keys
from plugins_contract.ledger.group import Backlog, read_backlogs

log = logging.getLogger(__name__)

SCRAPE_SECONDS = 2.0
"""How long a scrape waits for Redis; without it only the engine's own metrics are returned."""
STORE_SECONDS = 1.0
"""How long a scrape waits for the store; until the store answers, its gauges stay what they were."""
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


class StoreGauges:
    """The gauges of what is in the store. A scrape waits for their measurement for STORE_SECONDS at most."""

    def __init__(self, outbox: SqlOutbox, erasures: SqlErasures, chain: AuditChain, metrics: Metrics) -> None:
        self._outbox, self._erasures, self._chain, self._metrics = outbox, erasures, chain, metrics
        self._measurement: asyncio.Task[None] | None = None
        self._measured_at = time.monotonic()

    async def measure(self) -> None:
        """Measure, or wait for the measurement that an earlier scrape has begun."""
        measurement = self._measurement or asyncio.create_task(self._measure(), name="store gauges")
        self._measurement = measurement
        await asyncio.wait([measurement], timeout=STORE_SECONDS)
        self._metrics.store_age.set(time.monotonic() - self._measured_at)
        if measurement.done():
            self._measurement = None
            measurement.result()

    async def close(self) -> None:
        """Cancel a measurement that no scrape will wait for."""
        if self._measurement is not None:
            self._measurement.cancel()
            await asyncio.wait([self._measurement])

    async def _measure(self) -> None:
        metrics = self._metrics
        try:
            waiting, oldest_ms = await self._outbox.backlog()
            erasures, oldest_erasure_ms = await self._erasures.backlog()
            unsealed_ms = await self._chain.unsealed_ms()
        except StorageUnavailableError:
            metrics.store_up.set(False)
            return
        metrics.store_up.set(True)
        metrics.outbox_rows.set(waiting)
        metrics.outbox_oldest.set(oldest_ms / 1000)
        metrics.erasures.set(erasures)
        metrics.erasures_oldest.set(oldest_erasure_ms / 1000)
        metrics.audit_unsealed.set(unsealed_ms / 1000)
        self._measured_at = time.monotonic()


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Reads the parts of one engine. `has_workers` is False when tools are switched off."""

    database: Database
    outbox: SqlOutbox
    store: StoreGauges
    relay: Relay
    approvals: PendingApprovals
    queue: SessionQueue
    streams: Streams
    watch: RedisWatch
    tools: ToolDirectory
    catalog: CatalogReader
    redis: Redis
    keys: Keys
    pools: PoolDirectory
    metrics: Metrics
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

    async def scrape(self, accept: str = "") -> tuple[bytes, str]:
        """The metrics and their content type, with what is measured at the time of the scrape.

        `accept` is the `Accept` field of the request.
        """
        metrics = self.metrics
        await self.store.measure()
        metrics.calls_held.set(self.relay.held)
        metrics.messages_queued.set(len(self.queue))
        metrics.event_streams.set(len(self.streams.open))
        metrics.approvals_waiting.set(self.approvals.waiting)
        metrics.redis_up.set(self.watch.available)
        metrics.workers.set(self.tools.workers)
        metrics.catalogs_refused.set(self.catalog.refused)
        metrics.stream.backlogs = await self._backlogs()
        return metrics.text(accept)

    async def _backlogs(self) -> Mapping[str, Backlog]:
        try:
            async with asyncio.timeout(SCRAPE_SECONDS):
                return await read_backlogs(self.redis, self.keys, await self.pools.streams())
        except (RedisUnavailable, TimeoutError):
            return {}
