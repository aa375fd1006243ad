"""Which server and which tool a name means that models and other producers know."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec
from redis.asyncio import Redis

from plugins_contract.catalog import ServerCatalog, ToolEntry
from plugins_contract.keys import Keys
from plugins_mcp.mcp import McpServers
from plugins_mcp.ports import NamedTools

CONNECT_SECONDS = 5.0
"""How long servers that were not tried yet are waited for: not so long that the lease of the request runs out."""


class CatalogTools(NamedTools):
    """Looks into this worker's own catalog, and for what it has not got into those that all workers publish."""

    def __init__(self, servers: McpServers, redis: Redis, keys: Keys) -> None:
        self._servers = servers
        self._redis: Any = redis  # redis-py types its commands only partly
        self._keys = keys

    def own(self, name: str) -> ToolEntry | None:
        return _find(name, self._servers.catalogs().values())

    async def find(self, name: str) -> ToolEntry | None:
        if entry := await self._published(name):
            return entry
        with suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._servers.tried()
        return self.own(name)

    async def _published(self, name: str) -> ToolEntry | None:
        servers = await self._redis.execute_command("SMEMBERS", self._keys.catalog)
        for server in sorted(servers):
            data = await self._redis.execute_command("HGET", self._keys.catalog_of(server.decode()), "catalog")
            if data and (entry := _find(name, [msgspec.json.decode(data, type=ServerCatalog)])):
                return entry
        return None


def _find(name: str, catalogs: Iterable[ServerCatalog]) -> ToolEntry | None:
    return next((tool for catalog in catalogs for tool in catalog.tools if tool.name == name), None)
