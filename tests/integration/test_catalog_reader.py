"""The catalog as the engine sees it: always the last good copy."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

import msgspec
import pytest
from redis.asyncio import Redis

from callstream_runtime.clock import RedisClock, RedisWatch
from callstream_runtime.connections import blocking_client, command_client
from callstream_runtime.loops import LISTEN_SECONDS
from dialog_engine.http.views import server, timestamp
from dialog_engine.peers.catalog import CatalogReader
from plugins_contract.catalog import (
    HEARTBEAT_SECONDS,
    HEARTBEAT_STALE_MS,
    BreakerState,
    ServerCatalog,
    ServerHeartbeat,
    ServerState,
    ToolEntry,
    decode_catalog,
)
from plugins_contract.keys import Keys
from plugins_mcp.catalog import CatalogPublisher
from plugins_mcp.mcp import McpServers, ServerHealth
from plugins_mcp.mcp.server import McpServer
from tests.integration.engines import at_work
from tests.marks import exhaustive, promise
from tests.support.servers import LocalServer
from tests.support.waiting import wait_until


class Hall:
    """A reader, and workers that publish."""

    def __init__(self, url: str) -> None:
        self.keys = Keys()
        self.redis: Any = command_client(url)
        self.announcements = blocking_client(url, block_seconds=LISTEN_SECONDS)
        self.clock = RedisClock()
        self.reader = CatalogReader(self.redis, self.announcements, self.keys, self.clock)

    async def publish(
        self,
        server: str,
        *tools: str,
        worker: str = "w",
        state: ServerState = ServerState.READY,
        age_ms: int = 0,
        error: str | None = None,
    ) -> None:
        entries = tuple(ToolEntry(name=f"{server}__{t}", server=server, tool=t, input_schema={}) for t in tools)
        beat = ServerHeartbeat(state=state, at=self.clock.now_ms() - age_ms, error=error)
        await self.put(server, msgspec.json.encode(ServerCatalog(server=server, tools=entries)), beat, worker)

    async def put(self, server: str, catalog: bytes, beat: ServerHeartbeat, worker: str = "w") -> None:
        await self.redis.sadd(self.keys.catalog, server)
        fields = {"catalog": catalog, f"worker:{worker}": msgspec.json.encode(beat)}
        await self.redis.hset(self.keys.catalog_of(server), mapping=fields)
        await self.redis.expire(self.keys.catalog_of(server), 60)

    def names(self) -> list[str]:
        return [tool.name for tool in self.reader.tools()]

    async def aclose(self) -> None:
        await self.redis.aclose()
        await self.announcements.aclose()


@pytest.fixture
async def hall(redis_url: str) -> AsyncGenerator[Hall]:
    async with aclosing(Hall(redis_url)) as hall:
        yield hall


async def test_tools_stay_on_offer_while_redis_has_lost_the_catalog(hall: Hall) -> None:
    await hall.publish("time", "now")
    await hall.reader.refresh()
    await hall.redis.flushall()
    await hall.reader.refresh()
    assert hall.names() == ["time__now"]
    assert [(view.state, view.workers) for view in hall.reader.servers] == [(ServerState.FAILED, 0)]
    await hall.publish("git", "log")
    await hall.reader.refresh()
    assert hall.names() == ["git__log"]


@pytest.mark.every_redis
async def test_a_change_that_is_announced_is_seen_at_once(hall: Hall) -> None:
    async with at_work(hall.reader.run):

        async def listening() -> bool:
            return bool(await hall.redis.pubsub_numsub(hall.keys.control))

        async def heard() -> bool:
            [(_, count)] = await hall.redis.pubsub_numsub(hall.keys.control)
            return count == 1

        assert await listening()
        await wait_until(heard)
        await hall.publish("demo", "add")
        await hall.redis.publish(hall.keys.control, b'{"kind":"catalog"}')
        await wait_until(hall.names, HEARTBEAT_SECONDS / 2)
    assert hall.names() == ["demo__add"]
    found = hall.reader.find("demo__add")
    assert isinstance(found, ToolEntry)
    assert hall.reader.workers == 1


async def test_a_server_is_ready_as_long_as_one_worker_says_so(hall: Hall) -> None:
    await hall.publish("demo", "add", worker="a", state=ServerState.FAILED, error="no route")
    await hall.reader.refresh()
    assert [(view.state, view.error, view.workers) for view in hall.reader.servers] == [
        (ServerState.FAILED, "no route", 1)
    ]
    await hall.publish("demo", "add", worker="b")
    await hall.publish("demo", "add", worker="gone", age_ms=HEARTBEAT_STALE_MS + 1000)
    await hall.reader.refresh()
    assert [(view.state, view.error, view.workers) for view in hall.reader.servers] == [(ServerState.READY, None, 2)]


@promise("a circuit breaker per MCP server, its state visible")
async def test_when_a_server_in_trouble_is_tried_again_is_known(hall: Hall) -> None:
    at = hall.clock.now_ms()
    beat = ServerHeartbeat(state=ServerState.FAILED, at=at, error="503", breaker=BreakerState.OPEN, retry_at=at + 4000)
    await hall.put("demo", msgspec.json.encode(ServerCatalog(server="demo")), beat)
    await hall.reader.refresh()
    (view,) = hall.reader.servers
    assert (view.breaker, view.retry_at) == (BreakerState.OPEN, at + 4000)
    shown = server(view)
    assert (shown["state"], shown["error"], shown["breaker"]) == ("failed", "503", "open")
    assert shown["retryAt"] == timestamp(at + 4000)
    await hall.publish("demo", "add", worker="well")
    await hall.reader.refresh()
    (view,) = hall.reader.servers
    assert (view.state, view.breaker, view.retry_at) == (ServerState.READY, BreakerState.CLOSED, None)


async def test_a_server_that_left_the_configuration_goes_and_with_all_workers_away_everything_stays(hall: Hall) -> None:
    await hall.publish("old", "add", age_ms=HEARTBEAT_STALE_MS + 1000)
    await hall.reader.refresh()
    assert hall.names() == ["old__add"]
    assert hall.reader.workers == 0
    await hall.publish("new", "add")
    await hall.publish("off", "add", state=ServerState.DISABLED)
    await hall.reader.refresh()
    assert hall.names() == ["new__add"]


@pytest.mark.parametrize("how", ["json", "type", "heartbeat", "name"])
async def test_an_entry_that_cannot_be_read_is_left_out_alone(hall: Hall, how: str) -> None:
    await hall.publish("good", "add")
    now = ServerHeartbeat(state=ServerState.READY, at=hall.clock.now_ms())
    match how:
        case "json":
            await hall.put("bad", b"{]", now)
        case "type":
            await hall.redis.sadd(hall.keys.catalog, "bad")
            await hall.redis.set(hall.keys.catalog_of("bad"), "somebody else's", ex=60)
        case "name":
            await hall.redis.sadd(hall.keys.catalog, b"\xff\xfe")
        case _:
            await hall.publish("bad", "add")
            await hall.redis.hset(hall.keys.catalog_of("bad"), "worker:new", b'{"state":"unheard of","at":1}')
    await hall.reader.look()
    assert hall.names() == ["good__add"]


@pytest.mark.parametrize("kib", [1, 1024])
async def test_a_catalog_is_decoded_when_it_has_changed_and_a_large_one_beside_the_loop(
    hall: Hall, monkeypatch: pytest.MonkeyPatch, kib: int
) -> None:
    decoded: list[bool] = []

    def decode(data: bytes) -> ServerCatalog:
        decoded.append(threading.current_thread() is threading.main_thread())
        return decode_catalog(data)

    monkeypatch.setattr("dialog_engine.peers.catalog.decode_catalog", decode)
    for tools in (["add"], ["add", "sub"]):
        await hall.publish("demo", *tools, *("x" * 1000 for _ in range(kib)))
        for _ in range(3):
            await hall.reader.refresh()
        assert hall.names()[: len(tools)] == [f"demo__{tool}" for tool in tools]
    assert decoded == [kib == 1] * 2


async def test_the_watch_does_not_wait_long_for_a_redis_that_hangs(hall: Hall) -> None:
    watch = RedisWatch(hall.redis, hall.keys, hall.clock, answer_seconds=0.2)
    await watch.ask()
    await hall.redis.execute_command("CLIENT", "PAUSE", 3000)
    async with asyncio.timeout(2):
        await watch.ask()
    assert not watch.available


@pytest.mark.every_redis
async def test_the_watch_sees_every_server_answer_and_leaves_no_key_behind(hall: Hall) -> None:
    watch = RedisWatch(hall.redis, hall.keys, hall.clock)
    await watch.ask()
    steady = watch.steady_for()
    assert steady > 0
    await watch.ask()
    assert watch.steady_for() > steady
    assert not await hall.redis.exists(hall.keys.requests)


async def test_the_watch_notices_a_quick_restart_by_the_run_id(own_redis: LocalServer) -> None:
    async with aclosing(Hall(own_redis.url)) as hall:
        watch = RedisWatch(hall.redis, hall.keys, hall.clock)
        await watch.ask()
        own_redis.kill()
        own_redis.start()
        await hall.redis.connection_pool.disconnect()  # the next question meets the new server, and fails not once
        before = watch.steady_for()
        await watch.ask()
        assert 0 < watch.steady_for() < before


class Servers:
    """Many MCP servers that were all listed before Redis could be reached."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def trusted(self) -> list[McpServer]:
        return []

    def health(self) -> dict[str, ServerHealth]:
        return dict.fromkeys(self._names, ServerHealth(ServerState.READY))

    def catalogs(self) -> dict[str, ServerCatalog]:
        return {
            name: ServerCatalog(
                server=name, tools=(ToolEntry(name=f"{name}__t", server=name, tool="t", input_schema={}),)
            )
            for name in self._names
        }


@exhaustive("many interleavings")
@promise("a question that comes the moment the engine is ready finds every tool")
@pytest.mark.parametrize("known", [0, 20, 40], ids=["none known", "half known", "all known"])
async def test_of_a_worker_that_appears_all_servers_are_seen_with_their_tools_or_none(
    redis: Redis, redis_url: str, known: int
) -> None:
    # Long names: a server reads 16 KB at once, and may serve others before it reads on.
    names = [f"server{number:02}".ljust(600, "x") for number in range(40)]
    keys, clock = Keys(), RedisClock()
    worker_redis = command_client(redis_url)
    seen: set[tuple[int, int]] = set()
    for _ in range(20):
        await redis.flushall()
        if known:  # by workers that are gone
            await cast("Any", redis.sadd(keys.catalog, *names[:known]))
            for name in names[:known]:
                empty: Any = b'{"server":"%s"}' % name.encode()
                await cast("Any", redis.hset(keys.catalog_of(name), "catalog", empty))
        reader = CatalogReader(redis, redis, keys, clock)
        servers = cast("McpServers", Servers(names))
        publisher = CatalogPublisher(worker_redis, keys, servers, clock, worker="w", changed=asyncio.Event())
        publishing = asyncio.create_task(publisher.publish())
        while not publishing.done():
            await reader.refresh()
            seen.add((sum(view.workers for view in reader.servers), len(reader.tools())))
        await publishing
    await worker_redis.aclose()
    assert seen <= {(0, 0), (40, 40)}
