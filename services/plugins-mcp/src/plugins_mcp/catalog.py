"""Publishes the catalogs of the MCP servers, and the state of this worker's connections to them."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from callstream_runtime.clock import Clock
from callstream_runtime.redis_errors import RedisUnavailable
from plugins_contract.catalog import (
    HEARTBEAT_SECONDS,
    HEARTBEAT_STALE_MS,
    ServerCatalog,
    ServerHeartbeat,
    ServerState,
)
from plugins_contract.keys import Keys
from plugins_contract.messages import NOT_READABLE
from plugins_contract.pins import PinStore
from plugins_contract.signing import RequestKeys
from plugins_contract.trust import CatalogTrust, digest_of, fields_of, heartbeat_fields
from plugins_mcp.mcp import McpServers, ServerHealth
from plugins_mcp.pins import PinKeeper

LIFETIME_SECONDS = 7 * 24 * 3600
ANNOUNCEMENT = b'{"kind":"catalog"}'
View: TypeAlias = tuple[ServerHealth, str | None]
"""What is published about one server: its health, and the digest of its catalog."""


class CatalogPublisher:
    """Publishes this worker's view, every few seconds and at once after a change."""

    def __init__(
        self,
        redis: Redis,
        keys: Keys,
        servers: McpServers,
        clock: Clock,
        *,
        worker: str,
        changed: asyncio.Event,
        request_keys: RequestKeys | None = None,
        accept_first_listings: bool = False,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        """`changed` is set after a server's state or catalog changed. `accept_first_listings`: see `PinKeeper`."""
        self._heartbeat_seconds = heartbeat_seconds
        self._redis = redis
        self._keys = keys
        self._servers = servers
        self._clock = clock
        self._worker = worker
        self._changed = changed
        self._published: dict[str, View] = {}
        self._shown: set[str] = set()
        """The servers under whose names there may be something of this worker."""
        self._encoded: dict[str, _Encoded] = {}
        self._request_keys = request_keys or RequestKeys()
        self._trust = CatalogTrust(self._request_keys)
        store = PinStore(redis, keys, self._request_keys)
        self._pins = PinKeeper(store, servers, clock, accept_first_listings=accept_first_listings)

    async def run(self) -> None:
        """Publish until cancelled."""
        self._published.clear()
        while True:
            self._changed.clear()
            try:
                await self.publish()
            except RedisUnavailable:
                self._published.clear()
            try:
                async with asyncio.timeout(self._heartbeat_seconds):
                    await self._changed.wait()
            except TimeoutError:
                pass  # nothing changed: time for the next heartbeat

    async def publish(self) -> None:
        """Write heartbeats and new catalogs. Raises `RedisUnavailable`.

        One transaction: a reader that sees this worker sees all of its configured servers, including those that were
        not listed yet, and no server is ready before its tools can be read.
        """
        await self._pins.review_all()
        catalogs = {name: self._encode(name, catalog) for name, catalog in self._servers.catalogs().items()}
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
            views[name] = (state, catalog.digest if catalog else None)
            new_view = self._published.get(name) != views[name]
            changed |= self._write_one(write, name, state, catalog, fields, new_view=new_view)
        for name in self._shown - health.keys():
            write.hdel(self._keys.catalog_of(name), *fields_of(self._worker))
            changed = True
        self._shown |= health.keys()
        if changed:
            write.publish(self._keys.control, ANNOUNCEMENT)
        await write.execute()
        self._published = views
        self._shown = set(health)

    async def withdraw(self) -> None:
        """Remove this worker's view, at its shutdown. Raises `RedisUnavailable`."""
        pipeline = self._redis.pipeline(transaction=False)
        for name in self._shown | self._servers.health().keys():
            pipeline.hdel(self._keys.catalog_of(name), *fields_of(self._worker))
        pipeline.publish(self._keys.control, ANNOUNCEMENT)
        await pipeline.execute()

    def _encode(self, name: str, catalog: ServerCatalog) -> "_Encoded":
        known = self._encoded.get(name)
        if known is None or known.catalog is not catalog:
            data = catalog.encoded()
            known = self._encoded[name] = _Encoded(catalog, data, digest_of(data))
        return known

    def _write_one(
        self,
        pipeline: Pipeline,
        name: str,
        health: ServerHealth,
        catalog: "_Encoded | None",
        fields: Mapping[bytes, bytes],
        *,
        new_view: bool,
    ) -> bool:
        """Add the writes for one server, whose stored `fields` are given, to `pipeline`. Returns whether it changed."""
        key = self._keys.catalog_of(name)
        write = catalog is not None and self._replaces(name, health, catalog, fields, new_view=new_view)
        beat = self._heartbeat(health, catalog.digest if catalog else None)
        mine: Any = heartbeat_fields(self._request_keys, name, self._worker, beat)
        pipeline.hset(key, mapping=mine)
        if catalog is not None and write:
            content: Any = {"catalog": catalog.data, "version": catalog.digest}
            pipeline.hset(key, mapping=content)
        empty: Any = msgspec.json.encode(ServerCatalog(server=name))
        pipeline.hsetnx(key, "catalog", empty)
        if stale := self._stale(fields):
            pipeline.execute_command("HDEL", key, *stale)
        pipeline.expire(key, LIFETIME_SECONDS)
        pipeline.sadd(self._keys.catalog, name)
        return new_view or write

    def _replaces(
        self, name: str, health: ServerHealth, mine: "_Encoded", fields: Mapping[bytes, bytes], *, new_view: bool
    ) -> bool:
        """Whether this worker's catalog takes the place of the stored one.

        One that Redis lost, that somebody has changed, or whose workers are gone is written again. A worker that lost
        its server must not replace what other workers see now with its old catalog.
        """
        stored = fields.get(b"catalog")
        if stored is None or b"version" not in fields:
            return True
        if stored == mine.data:
            return False
        if new_view and health.state is ServerState.READY:
            return True
        signed = bool(self._request_keys)
        return signed and not self._trust.judge(name, fields, self._clock.now_ms()).attests(digest_of(stored))

    def _heartbeat(self, health: ServerHealth, catalog: str | None) -> ServerHeartbeat:
        now, wait = self._clock.now_ms(), health.retry_in()
        retry_at = None if wait is None else now + round(wait * 1000)
        return ServerHeartbeat(
            state=health.state,
            at=now,
            catalog=catalog,
            error=health.error,
            breaker=health.breaker,
            retry_at=retry_at,
            sessions=health.sessions,
            children=health.children,
        )

    def _stale(self, fields: Mapping[bytes, bytes]) -> list[bytes]:
        """The fields of workers that stopped long ago, and heartbeats that no worker wrote."""
        oldest = self._clock.now_ms() - 10 * HEARTBEAT_STALE_MS
        gone = [name for name, beat in fields.items() if name.startswith(b"worker:") and _at(beat) < oldest]
        return [*gone, *(b"signature:" + name.removeprefix(b"worker:") for name in gone)]


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A catalog as it is stored. It is encoded again only when it is another one."""

    catalog: ServerCatalog
    data: bytes
    digest: str


def _at(heartbeat: bytes) -> int:
    try:
        return msgspec.json.decode(heartbeat, type=ServerHeartbeat).at
    except NOT_READABLE:
        return 0
