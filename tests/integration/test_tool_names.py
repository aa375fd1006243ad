"""Which server and tool a name means: to a worker, by its own and all published catalogs, and to an engine."""

import asyncio
from typing import Any

import msgspec
from redis.asyncio import Redis

from callstream_runtime.clock import RedisClock
from plugins_contract.catalog import ServerCatalog, ToolEntry
from plugins_contract.keys import Keys
from plugins_contract.signing import RequestKeys
from plugins_mcp.adoption import CatalogToolLookup
from plugins_mcp.mcp import McpServers

KEYS = Keys()


def catalog(server: str) -> ServerCatalog:
    return ServerCatalog(
        server=server, tools=(ToolEntry(name=f"{server}__add", server=server, tool="add", input_schema={}),)
    )


class Servers(McpServers):
    """Servers that are being connected, until they are not."""

    def __init__(self) -> None:
        super().__init__(())
        self.here: dict[str, ServerCatalog] = {}
        self.asked = asyncio.Event()
        self.connected = asyncio.Event()

    def catalogs(self) -> dict[str, ServerCatalog]:
        return self.here

    async def attempted(self) -> None:
        self.asked.set()
        await self.connected.wait()


def lookup(servers: Any, redis: Redis, connect_seconds: float = 5.0) -> CatalogToolLookup:
    return CatalogToolLookup(servers, redis, KEYS, RedisClock(), RequestKeys(), connect_seconds)


async def test_an_unknown_name_is_waited_for_while_servers_are_being_connected(redis: Redis) -> None:
    servers = Servers()
    finding = asyncio.create_task(lookup(servers, redis).find("demo__add"))
    await servers.asked.wait()
    servers.here["demo"] = catalog("demo")
    servers.connected.set()

    async with asyncio.timeout(5):
        [found] = await finding
    assert found.tool == "add"


async def test_an_unknown_name_is_not_waited_for_without_end(redis: Redis) -> None:
    assert await lookup(Servers(), redis, 0.05).find("demo__add") == []


async def test_a_bare_name_means_the_tools_of_all_servers_of_this_worker_and_of_others(redis: Redis) -> None:
    servers = Servers()
    servers.connected.set()
    tools = lookup(servers, redis)
    servers.here["demo"] = catalog("demo")
    assert tools.own("add") is None
    assert [each.name for each in await tools.find("add")] == ["demo__add"]
    await redis.execute_command("SADD", KEYS.catalog, "gone")
    for name in ("demo", "other"):
        content: Any = msgspec.json.encode(catalog(name))
        await redis.execute_command("SADD", KEYS.catalog, name)
        await redis.execute_command("HSET", KEYS.catalog_of(name), "catalog", content)
        await redis.execute_command("EXPIRE", KEYS.catalog_of(name), 60)
    assert [each.name for each in await tools.find("add")] == ["demo__add", "other__add"]
    [found] = await tools.find("other__add")
    assert tools.own("other__add") is None
    assert (found.server, found.tool) == ("other", "add")
