"""Publishes what the MCP servers offer, and how this worker's connections to them are doing."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from redis.asyncio import Redis

from plugins_contract.catalogue import (
    HEARTBEAT_SECONDS,
    HEARTBEAT_STALE_MS,
    ServerCatalogue,
    ServerHeartbeat,
    ServerState,
)
from plugins_contract.clock import Clock
from plugins_contract.connections import is_outage
from plugins_contract.keys import Keys
from plugins_mcp.mcp import McpServers, ServerHealth

log = logging.getLogger(__name__)

LIFETIME_SECONDS = 7 * 24 * 3600
ANNOUNCEMENT = b'{"kind":"catalogue"}'


class CataloguePublisher:
    """Writes this worker's view, every few seconds and at once when something changes."""

    def __init__(
        self, redis: Redis, keys: Keys, servers: McpServers, clock: Clock, *, worker: str, changed: asyncio.Event
    ) -> None:
        """`changed` is set by whoever knows that a server's state or catalogue is another now."""
        self._redis = redis
        self._keys = keys
        self._servers = servers
        self._clock = clock
        self._field = f"worker:{worker}"
        self._changed = changed
        self._published: dict[str, object] = {}

    async def run(self) -> None:
        """Publish, for ever."""
        while True:
            self._changed.clear()
            try:
                await self.publish()
            except Exception as error:
                if not is_outage(error):
                    log.exception("the catalogue cannot be published")
                self._published.clear()
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                pass  # nothing changed: time for the next heartbeat

    async def publish(self) -> None:
        """Write heartbeats, and catalogues that are new. Raises what redis raises."""
        catalogues = self._servers.catalogues()
        health = self._servers.health()
        news = False
        for name, state in health.items():
            news |= await self._publish_one(name, state, catalogues.get(name))
        if news:
            await self._redis.publish(self._keys.control, ANNOUNCEMENT)

    async def withdraw(self) -> None:
        """Take this worker's view back, as it ends. Raises what redis raises."""
        pipeline = self._redis.pipeline(transaction=False)
        for name in self._servers.health():
            pipeline.hdel(self._keys.catalogue_of(name), self._field)
        pipeline.publish(self._keys.control, ANNOUNCEMENT)
        await pipeline.execute()

    async def _publish_one(self, name: str, health: ServerHealth, catalogue: ServerCatalogue | None) -> bool:
        """Write the view of one server. True when it is news."""
        key = self._keys.catalogue_of(name)
        view = (health, catalogue.digest() if catalogue else None)
        news = self._published.get(name) != view
        fields: Any = await self._redis.hgetall(key)
        # A worker that has lost its server does not put what it once saw in place of what others see now; what
        # vanished with the data of Redis is written again.
        write = b"version" not in fields or (news and health.state is ServerState.READY)
        pipeline = self._redis.pipeline(transaction=False)
        beat = self._beat(health)
        pipeline.hset(key, self._field, msgspec.json.encode(beat))  # pyright: ignore[reportArgumentType]
        if catalogue is not None and write:
            content: Any = {"catalogue": msgspec.json.encode(catalogue), "version": catalogue.digest()}
            pipeline.hset(key, mapping=content)
        empty: Any = msgspec.json.encode(ServerCatalogue(server=name))
        pipeline.hsetnx(key, "catalogue", empty)
        pipeline.expire(key, LIFETIME_SECONDS)
        pipeline.sadd(self._keys.catalogue, name)
        await pipeline.execute()
        await self._forget_stale(key, fields)
        self._published[name] = view
        return news or (catalogue is not None and write)

    def _beat(self, health: ServerHealth) -> ServerHeartbeat:
        now, wait = self._clock.now_ms(), health.retry_in()
        retry_at = None if wait is None else now + round(wait * 1000)
        return ServerHeartbeat(
            state=health.state, at=now, error=health.error, breaker=health.breaker, retry_at=retry_at
        )

    async def _forget_stale(self, key: str, fields: Mapping[bytes, bytes]) -> None:
        """Drop the views of workers that have long gone."""
        oldest = self._clock.now_ms() - 10 * HEARTBEAT_STALE_MS
        stale = [
            field
            for field, value in fields.items()
            if field.startswith(b"worker:") and msgspec.json.decode(value, type=ServerHeartbeat).at < oldest
        ]
        if stale:
            await self._redis.execute_command("HDEL", key, *stale)
