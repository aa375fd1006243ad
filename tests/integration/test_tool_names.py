"""Which server and tool a name means: this worker's catalog, then those that others have published."""

import asyncio
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from plugins_contract.catalog import ServerCatalog, ToolEntry
from plugins_contract.keys import Keys
from plugins_mcp.adoption import CatalogToolLookup
from plugins_mcp.mcp import McpServers

pytestmark = pytest.mark.anyio

KEYS = Keys()


def catalog(server: str) -> ServerCatalog:
    return ServerCatalog(
        server=server,
        tools=(ToolEntry(name=f"{server}__add", server=server, tool="add", input_schema={}),),
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


async def test_a_tool_of_another_worker_is_known_by_what_that_one_has_published(redis: Redis) -> None:
    tools = CatalogToolLookup(Servers(), redis, KEYS)
    content: Any = msgspec.json.encode(catalog("other"))
    await redis.execute_command("SADD", KEYS.catalog, "other", "gone")
    await redis.execute_command("HSET", KEYS.catalog_of("other"), "catalog", content)
    await redis.execute_command("EXPIRE", KEYS.catalog_of("other"), 60)

    found = await tools.find("other__add")
    assert tools.own("other__add") is None
    assert (found and found.server, found and found.tool) == ("other", "add")


async def test_an_unknown_name_is_waited_for_while_servers_are_being_connected(redis: Redis) -> None:
    servers = Servers()
    finding = asyncio.create_task(CatalogToolLookup(servers, redis, KEYS).find("demo__add"))
    await servers.asked.wait()
    servers.here["demo"] = catalog("demo")
    servers.connected.set()

    async with asyncio.timeout(5):
        found = await finding
    assert found
    assert found.tool == "add"


async def test_an_unknown_name_is_not_waited_for_without_end(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plugins_mcp.adoption.CONNECT_SECONDS", 0.05)

    assert await CatalogToolLookup(Servers(), redis, KEYS).find("demo__add") is None
