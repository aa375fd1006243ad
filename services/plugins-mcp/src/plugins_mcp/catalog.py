"""Publishes the catalogs of the MCP servers, and the state of this worker's connections to them."""

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
from plugins_mcp.pins import PinKeeper

log = logging.getLogger(__name__)

LIFETIME_SECONDS = 7 * 24 * 3600
ANNOUNCEMENT = b'{"kind":"catalog"}'
View: TypeAlias = tuple[ServerHealth, str | None]
"""What is published about one server: its health, and the digest of its catalog."""


class CatalogPublisher:
    """Publishes this worker's view, every few seconds and at once after a change."""

    def __init__(
        self, redis: Redis, keys: Keys, servers: McpServers, clock: Clock, *, worker: str, changed: asyncio.Event
    ) -> None:
        """`changed` is set after a server's state or catalog changed."""
        self._redis = redis
        self._keys = keys
        self._servers = servers
        self._clock = clock
        self._field = f"worker:{worker}"
        self._changed = changed
        self._published: dict[str, View] = {}
        self._pins = PinKeeper(redis, keys, servers)

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            self._changed.clear()
            try:
                await self.publish()
            except Exception as error:
                if not is_outage(error):
                    log.exception("internal error while publishing catalogs")
                self._published.clear()
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                pass  # nothing changed: time for the next heartbeat

    async def publish(self) -> None:
        """Write heartbeats and new catalogs. Raises the errors of redis.

        One transaction: a reader that sees this worker sees all of its configured servers, including those that were
        not listed yet, and no server is ready before its tools can be read.
        """
        await self._pins.review_all()
        catalogs = self._servers.catalogs()
        health = self._servers.health()
        read = self._redis.pipeline(transaction=False)
        for name in health:
            read.hgetall(self._keys.catalog_of(name))
        stored: list[Mapping[bytes, bytes]] = await read.execute()
        views: dict[str, View] = {}
        write = self._redis.pipeline(transaction=True)
        changed = False
        for (name, state), fields in zip(health.items(), stored, strict=True):
            catalog = catalogs.get(name)
            views[name] = (state, catalog.digest() if catalog else None)
            new_view = self._published.get(name) != views[name]
            changed |= self._write_one(write, name, state, catalog, fields, new_view=new_view)
        if changed:
            write.publish(self._keys.control, ANNOUNCEMENT)
        await write.execute()
        self._published = views

    async def withdraw(self) -> None:
        """Remove this worker's view, at its shutdown. Raises the errors of redis."""
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
        new_view: bool,
    ) -> bool:
        """Add the writes for one server, whose stored `fields` are given, to `pipeline`. Returns whether it changed."""
        key = self._keys.catalog_of(name)
        # A worker that lost its server must not replace what other workers see now with its old catalog. A catalog that
        # Redis lost is written again.
        write = b"version" not in fields or (new_view and health.state is ServerState.READY)
        heartbeat = self._heartbeat(health)
        pipeline.hset(key, self._field, msgspec.json.encode(heartbeat))  # pyright: ignore[reportArgumentType]
        if catalog is not None and write:
            content: Any = {"catalog": msgspec.json.encode(catalog), "version": catalog.digest()}
            pipeline.hset(key, mapping=content)
        empty: Any = msgspec.json.encode(ServerCatalog(server=name))
        pipeline.hsetnx(key, "catalog", empty)
        if stale := self._stale(fields):
            pipeline.execute_command("HDEL", key, *stale)
        pipeline.expire(key, LIFETIME_SECONDS)
        pipeline.sadd(self._keys.catalog, name)
        return new_view or (catalog is not None and write)

    def _heartbeat(self, health: ServerHealth) -> ServerHeartbeat:
        now, wait = self._clock.now_ms(), health.retry_in()
        retry_at = None if wait is None else now + round(wait * 1000)
        return ServerHeartbeat(
            state=health.state, at=now, error=health.error, breaker=health.breaker, retry_at=retry_at
        )

    def _stale(self, fields: Mapping[bytes, bytes]) -> list[bytes]:
        """The fields of workers that stopped long ago."""
        oldest = self._clock.now_ms() - 10 * HEARTBEAT_STALE_MS
        return [
            field
            for field, value in fields.items()
            if field.startswith(b"worker:") and msgspec.json.decode(value, type=ServerHeartbeat).at < oldest
        ]
