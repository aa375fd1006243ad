"""The gauges that are measured at the time of a scrape, each from its part."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

from redis.asyncio import Redis

from callstream_runtime.clock import RedisWatch
from callstream_runtime.pool_directory import PoolDirectory
from callstream_runtime.redis_errors import RedisUnavailable
from dialog_engine.chat.session_changes import SessionFeed
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.http.streams import Streams
from dialog_engine.observe.metrics import Metrics
from dialog_engine.peers.catalog import CatalogReader
from dialog_engine.relay.relay import Relay
from dialog_engine.storage.audit_chain import AuditChain
from dialog_engine.storage.erasures import SqlErasures
from dialog_engine.storage.outbox import SqlOutbox
from dialog_engine.storage.parked import SqlParked
from dialog_engine.storage.waiting import SqlWaiting
from dialog_engine.tool_calls.ports import ToolDirectory
from plugins_contract.keys import Keys
from plugins_contract.ledger.group import Backlog, read_backlogs

SCRAPE_SECONDS = 2.0
"""How long a scrape waits for Redis; without it only the engine's own metrics are returned."""
STORE_SECONDS = 1.0
"""How long a scrape waits for the store; until the store answers, its gauges stay what they were."""


class StoreGauges:
    """The gauges of what is in the store. A scrape waits for their measurement for STORE_SECONDS at most."""

    def __init__(
        self,
        outbox: SqlOutbox,
        erasures: SqlErasures,
        waiting: SqlWaiting,
        parked: SqlParked,
        chain: AuditChain,
        metrics: Metrics,
    ) -> None:
        self._outbox, self._erasures, self._waiting, self._chain = outbox, erasures, waiting, chain
        self._parked, self._metrics = parked, metrics
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
            messages = await self._waiting.count()
            parked = await self._parked.backlog()
            unsealed_ms = await self._chain.unsealed_ms()
        except StorageUnavailableError:
            metrics.store_up.set(False)
            return
        metrics.store_up.set(True)
        metrics.outbox_rows.set(waiting)
        metrics.outbox_oldest.set(oldest_ms / 1000)
        metrics.erasures.set(erasures)
        metrics.messages_queued.set(messages)
        metrics.turns_parked.set(parked.turns)
        metrics.turns_overdue.set(parked.overdue_ms / 1000)
        metrics.approvals_waiting.set(parked.approvals)
        metrics.questions_open.set(parked.questions)
        metrics.erasures_oldest.set(oldest_erasure_ms / 1000)
        metrics.audit_unsealed.set(unsealed_ms / 1000)
        self._measured_at = time.monotonic()


@dataclass(frozen=True, slots=True)
class Gauges:
    """Measures the parts of one engine. `accepts_unsigned` is ACCEPT_UNSIGNED_CATALOGS."""

    metrics: Metrics
    store: StoreGauges
    relay: Relay
    streams: Streams
    feed: SessionFeed
    watch: RedisWatch
    tools: ToolDirectory
    catalog: CatalogReader
    redis: Redis
    keys: Keys
    pools: PoolDirectory
    accepts_unsigned: bool

    async def scrape(self, accept: str = "") -> tuple[bytes, str]:
        """The metrics and their content type, with what is measured now.

        `accept` is the `Accept` field of the request.
        """
        metrics = self.metrics
        await self.store.measure()
        metrics.calls_held.set(self.relay.held)
        metrics.event_streams.set(len(self.streams.open))
        metrics.session_readers.set(self.feed.readers)
        metrics.unsigned_catalogs.set(self.accepts_unsigned)
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
