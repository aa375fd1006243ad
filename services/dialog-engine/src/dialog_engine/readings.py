"""What the engine says about itself when it is asked: whether it can serve, and its numbers at this moment."""

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from redis.asyncio import Redis

from dialog_engine.chat.session_queue import SessionQueue
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.http.services import Readiness
from dialog_engine.http.sse import Streams
from dialog_engine.observe.metrics import Metrics
from dialog_engine.storage.database import Database
from dialog_engine.storage.outbox import SqlOutbox
from dialog_engine.streams.relay import Relay
from dialog_engine.streams.watch import RedisWatch
from dialog_engine.tool_calls.directory import ToolDirectory
from dialog_engine.tool_calls.pending_approvals import PendingApprovals
from plugins_contract.backlog import read_backlog
from plugins_contract.connections import is_outage
from plugins_contract.keys import GROUP, Keys

log = logging.getLogger(__name__)

SCRAPE_SECONDS = 2.0
"""How long a scrape waits for Redis; without it the engine's own numbers are told."""


@dataclass(frozen=True, slots=True)
class Readings:
    """Reads the parts of one engine. `has_workers` says whether it needs any: without MCP it does not."""

    database: Database
    outbox: SqlOutbox
    relay: Relay
    approvals: PendingApprovals
    queue: SessionQueue
    streams: Streams
    watch: RedisWatch
    tools: ToolDirectory
    redis: Redis
    keys: Keys
    metrics: Metrics
    has_workers: bool

    async def readiness(self) -> Readiness:
        """Whether requests can be served, and how each part is."""
        try:
            await self.database.check()
            waiting, oldest_ms = await self.outbox.backlog()
            storage = "ok"
        except StorageUnavailableError as error:
            waiting, oldest_ms, storage = 0, 0, str(error)
        workers = self.tools.workers if self.has_workers else None
        parts = {
            "storage": storage,
            "redis": "ok" if self.watch.available else "unavailable",
            "workers": workers,
            "tools": len(self.tools.tools()),
            "outbox": {"waiting": waiting, "oldestMs": oldest_ms},
        }
        return Readiness(storage == "ok", not self.watch.available or workers == 0, parts)

    async def scrape(self) -> bytes:
        """The metrics, with what is measured at the time of the scrape."""
        metrics = self.metrics
        with contextlib.suppress(StorageUnavailableError):
            waiting, oldest_ms = await self.outbox.backlog()
            metrics.outbox_rows.set(waiting)
            metrics.outbox_oldest.set(oldest_ms / 1000)
        metrics.calls_held.set(self.relay.held)
        metrics.messages_queued.set(len(self.queue))
        metrics.event_streams.set(self.streams.open)
        metrics.approvals_waiting.set(self.approvals.waiting)
        metrics.redis_up.set(self.watch.available)
        try:
            async with asyncio.timeout(SCRAPE_SECONDS):
                backlog = await read_backlog(self.redis, self.keys)
        except Exception as error:
            if not is_outage(error):
                log.exception("the request stream cannot be measured")
            return metrics.text()
        metrics.lag.labels(self.keys.requests, GROUP).set(backlog.lag)
        metrics.pending.labels(self.keys.requests, GROUP).set(backlog.pending)
        metrics.oldest_pending.labels(self.keys.requests, GROUP).set(backlog.oldest_pending_seconds)
        metrics.dead_letters.set(backlog.dead)
        return metrics.text()
