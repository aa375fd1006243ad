"""Publishes what the MCP servers offer, and how this worker's connections to them are doing."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from plugins_contract.catalog import (
    HEARTBEAT_SECONDS,
    HEARTBEAT_STALE_MS,
    ServerCatalog,
    ServerHeartbeat,
    ServerState,
)
from plugins_contract.clock import Clock
from plugins_contract.connections import is_outage
from plugins_contract.keys import Keys
from plugins_mcp.mcp import McpServers, ServerHealth

log = logging.getLogger(__name__)

LIFETIME_SECONDS = 7 * 24 * 3600
ANNOUNCEMENT = b'{"kind":"catalog"}'
View: TypeAlias = tuple[ServerHealth, str | None]
"""What is said of one server: how it does, and the digest of its catalog."""


class CatalogPublisher:
    """Writes this worker's view, every few seconds and at once when something changes."""

    def __init__(
        self, redis: Redis, keys: Keys, servers: McpServers, clock: Clock, *, worker: str, changed: asyncio.Event
    ) -> None:
        """`changed` is set by whoever knows that a server's state or catalog is another now."""
        self._redis = redis
        self._keys = keys
        self._servers = servers
        self._clock = clock
        self._field = f"worker:{worker}"
        self._changed = changed
        self._published: dict[str, View] = {}

    async def run(self) -> None:
        """Publish, for ever."""
        while True:
            self._changed.clear()
            try:
                await self.publish()
            except Exception as error:
                if not is_outage(error):
                    log.exception("the catalog cannot be published")
                self._published.clear()
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                pass  # nothing changed: time for the next heartbeat

    async def publish(self) -> None:
        """Write heartbeats, and catalogs that are new. Raises what redis raises.

        All of it is one transaction: whoever sees this worker sees every server of its configuration, also those that
        were not listed yet, and no server is said to be ready before its tools can be read.
        """
        catalogs = self._servers.catalogs()
        health = self._servers.health()
        look = self._redis.pipeline(transaction=False)
        for name in health:
            look.hgetall(self._keys.catalog_of(name))
        stored: list[Mapping[bytes, bytes]] = await look.execute()
        views: dict[str, View] = {}
        write = self._redis.pipeline(transaction=True)
        news = False
        for (name, state), fields in zip(health.items(), stored, strict=True):
            catalog = catalogs.get(name)
            views[name] = (state, catalog.digest() if catalog else None)
            news |= self._write_one(write, name, state, catalog, fields, news=self._published.get(name) != views[name])
        if news:
            write.publish(self._keys.control, ANNOUNCEMENT)
        await write.execute()
        self._published = views

    async def withdraw(self) -> None:
        """Take this worker's view back, as it ends. Raises what redis raises."""
        pipeline = self._redis.pipeline(transaction=False)
        for name in self._servers.health():
            pipeline.hdel(self._keys.catalog_of(name), self._field)
        pipeline.publish(self._keys.control, ANNOUNCEMENT)
        await pipeline.execute()

    def _write_one(
        self,
        pipeline: Pipeline,
        name: str,
        health: ServerHealth,
        catalog: ServerCatalog | None,
        fields: Mapping[bytes, bytes],
        *,
        news: bool,
    ) -> bool:
        """Add to `pipeline` what is to be written of one server, which has these `fields` now. True when it is news."""
        key = self._keys.catalog_of(name)
        # A worker that has lost its server does not put what it once saw in place of what others see now; what
        # vanished with the data of Redis is written again.
        write = b"version" not in fields or (news and health.state is ServerState.READY)
        beat = self._beat(health)
        pipeline.hset(key, self._field, msgspec.json.encode(beat))  # pyright: ignore[reportArgumentType]
        if catalog is not None and write:
            content: Any = {"catalog": msgspec.json.encode(catalog), "version": catalog.digest()}
            pipeline.hset(key, mapping=content)
        empty: Any = msgspec.json.encode(ServerCatalog(server=name))
        pipeline.hsetnx(key, "catalog", empty)
        if stale := self._stale(fields):
            pipeline.execute_command("HDEL", key, *stale)
        pipeline.expire(key, LIFETIME_SECONDS)
        pipeline.sadd(self._keys.catalog, name)
        return news or (catalog is not None and write)

    def _beat(self, health: ServerHealth) -> ServerHeartbeat:
        now, wait = self._clock.now_ms(), health.retry_in()
        retry_at = None if wait is None else now + round(wait * 1000)
        return ServerHeartbeat(
            state=health.state, at=now, error=health.error, breaker=health.breaker, retry_at=retry_at
        )

    def _stale(self, fields: Mapping[bytes, bytes]) -> list[bytes]:
        """The fields of workers that have long gone."""
        oldest = self._clock.now_ms() - 10 * HEARTBEAT_STALE_MS
        return [
            field
            for field, value in fields.items()
            if field.startswith(b"worker:") and msgspec.json.decode(value, type=ServerHeartbeat).at < oldest
        ]
