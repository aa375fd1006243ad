"""Announces updates of resources to engines, and shares with other workers which resources are watched.

Each worker that has a server watches all of what is shared, so that the death of one loses nothing.
"""

import asyncio
from collections.abc import Mapping

from redis.asyncio import Redis

from callstream_runtime.clock import Clock
from callstream_runtime.redis_errors import RedisUnavailable
from plugins_contract.catalog import HEARTBEAT_SECONDS
from plugins_contract.keys import Keys
from plugins_contract.signing import RequestKeys
from plugins_contract.updates import (
    MAX_WATCHED,
    WATCHED_MS,
    ResourcesUpdated,
    encode_update,
    watched_until,
    watched_value,
)
from plugins_mcp.mcp import McpServer, McpServers, Updates, Whose


class UpdatePublisher:
    """Publishes what `updates` holds. While Redis is away it is kept: a resource is in it once."""

    def __init__(
        self,
        redis: Redis,
        keys: Keys,
        servers: McpServers,
        updates: Updates,
        clock: Clock,
        request_keys: RequestKeys,
        *,
        share_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        """Every `share_seconds` it is read what other workers share."""
        self._redis = redis
        self._keys = keys
        self._servers = servers
        self._updates = updates
        self._clock = clock
        self._request_keys = request_keys
        self._share_seconds = share_seconds

    async def run(self) -> None:
        """Publish until cancelled."""
        loop = asyncio.get_running_loop()
        next_look = loop.time()
        while True:
            self._updates.news.clear()
            try:
                await self._publish()
                if loop.time() >= next_look:
                    next_look = loop.time() + self._share_seconds
                    await self._learn()
            except RedisUnavailable:
                await asyncio.sleep(1)
            try:
                async with asyncio.timeout_at(next_look):
                    await self._updates.news.wait()
            except TimeoutError:
                pass  # time to look again

    async def _publish(self) -> None:
        updates = self._updates
        announced = [
            ResourcesUpdated(server=server, owner=whose.owner, subject=whose.subject, uris=tuple(uris))
            for (server, whose), uris in updates.updated.items()
        ]
        wanted = [*updates.wanted]
        if not announced and not wanted:
            return
        pipeline = self._redis.pipeline(transaction=False)
        until = self._clock.now_ms() + WATCHED_MS
        for server, uri in wanted:
            key = self._keys.watched_of(server)
            pipeline.hset(key, uri, watched_value(self._request_keys, server, uri, until))
            pipeline.pexpire(key, WATCHED_MS)
        for each in announced:
            pipeline.publish(self._keys.control, encode_update(each))
        updates.wanted.clear()
        updates.updated.clear()
        try:
            await pipeline.execute()
        except RedisUnavailable:
            for each in announced:
                updates.add(each.server, Whose(each.owner, each.subject), each.uris)
            updates.wanted = dict.fromkeys(wanted) | updates.wanted
            raise

    async def _learn(self) -> None:
        """Watch what any worker has read of the servers that are here."""
        servers = [each for each in self._servers.values() if each.watched.supported]
        if not servers:
            return
        pipeline = self._redis.pipeline(transaction=False)
        for server in servers:
            pipeline.hgetall(self._keys.watched_of(server.spec.name))
        stored: list[Mapping[bytes, bytes]] = await pipeline.execute()
        for server, fields in zip(servers, stored, strict=True):
            await self._learn_of(server, fields)

    async def _learn_of(self, server: McpServer, fields: Mapping[bytes, bytes]) -> None:
        now = self._clock.now_ms()
        name = server.spec.name
        until = {
            uri: at
            for uri, value in fields.items()
            if (at := watched_until(self._request_keys, name, uri, value, now)) is not None
        }
        newest = sorted(until, key=lambda uri: until[uri])[-MAX_WATCHED:]
        server.watched.learn({uri.decode("utf-8", "replace"): (until[uri] - now) / 1000 for uri in newest})
        if gone := fields.keys() - set(newest):
            await self._redis.hdel(self._keys.watched_of(name), *gone)
