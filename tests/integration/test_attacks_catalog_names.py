"""A catalog in Redis that no worker of ours wrote."""

from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from callstream_runtime.clock import RedisClock
from dialog_engine.peers.catalog import CatalogReader
from plugins_contract.catalog import ServerCatalog, ServerHeartbeat, ServerState, ToolEntry
from plugins_contract.keys import Keys

pytestmark = pytest.mark.anyio


async def test_a_name_that_is_not_text_leaves_the_other_servers_in_use(
    redis: Redis, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    clock = RedisClock()
    tools = (ToolEntry(name="good__t", server="good", tool="t", input_schema={}),)
    beat = ServerHeartbeat(state=ServerState.READY, at=clock.now_ms())
    fields: dict[Any, Any] = {
        "catalog": msgspec.json.encode(ServerCatalog(server="good", tools=tools)),
        "worker:w": msgspec.json.encode(beat),
    }
    await redis.hset(keys.catalog_of("good"), mapping=fields)
    await redis.expire(keys.catalog_of("good"), 60)
    await redis.sadd(keys.catalog, "good", b"\xff\xfe")

    reader = CatalogReader(redis, redis, keys, clock)
    await reader.look()

    assert [tool.name for tool in reader.tools()] == ["good__t"]
    assert r"the server b'\xff\xfe' in the catalog is left out" in caplog.text
