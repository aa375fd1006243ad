"""A whole worker in this process, on real Redis and with a real MCP server."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import msgspec
import pytest

from deploy.local.ports import free_port
from plugins_contract.catalog import ServerCatalog, ServerHeartbeat, ServerState
from plugins_contract.keys import Keys
from plugins_contract.messages import ExecutionClass
from plugins_contract.outcomes import CallState, TextBlock
from plugins_mcp.mcp.echo import NAME, TOOL
from plugins_mcp.pins import PinKeeper
from tests.integration.demo import Demo
from tests.support.waiting import wait_until
from tests.support.working import Caller, working

KEYS = Keys()


@pytest.fixture
def config(tmp_path: Path, demo: Demo) -> Path:
    return written(tmp_path, demo={"url": demo.url, "callstream": {"trust": True}})


def written(folder: Path, **servers: object) -> Path:
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


@asynccontextmanager
async def ready(url: str, config: Path, caller: Caller, **settings: Any) -> AsyncGenerator[asyncio.Event]:
    """A worker that has published the demo server's tools."""
    async with working(url, config, **settings) as stopping:
        await wait_until(lambda: caller.redis.hexists(KEYS.catalog_of("demo"), "version"), 20)
        yield stopping


async def heartbeats(caller: Caller, server: str) -> list[ServerHeartbeat]:
    fields = await caller.redis.hgetall(KEYS.catalog_of(server))
    return [
        msgspec.json.decode(value, type=ServerHeartbeat)
        for name, value in fields.items()
        if name.startswith(b"worker:")
    ]


async def catalog(caller: Caller, server: str = "demo") -> ServerCatalog:
    data = await caller.redis.hget(KEYS.catalog_of(server), "catalog")
    return msgspec.json.decode(data, type=ServerCatalog)


async def publish(caller: Caller, seen: ServerCatalog) -> None:
    """What another worker does."""
    fields = {"catalog": msgspec.json.encode(seen), "version": "1"}
    await caller.redis.hset(KEYS.catalog_of(seen.server), mapping=fields)


async def test_the_catalog_is_published_with_what_the_operator_trusts_and_taken_back_at_the_end(
    redis_url: str, config: Path, caller: Caller
) -> None:
    pubsub = caller.redis.pubsub()
    await pubsub.subscribe(KEYS.control)
    async with ready(redis_url, config, caller):
        tools = {tool.tool: tool for tool in (await catalog(caller)).tools}
        assert tools["add"].name == "demo__add"
        assert tools["add"].execution_class is ExecutionClass.REPEATABLE
        assert tools["increment_counter"].execution_class is ExecutionClass.ONCE
        await wait_until(lambda: _beats(caller, ServerState.READY))
        assert await caller.redis.smembers(KEYS.catalog) == {b"demo"}
        assert await caller.redis.ttl(KEYS.catalog_of("demo")) > 0
    assert await heartbeats(caller, "demo") == []
    messages = [await pubsub.get_message(ignore_subscribe_messages=True, timeout=1) for _ in range(4)]
    assert {"kind": "catalog"} in [json.loads(message["data"]) for message in messages if message]
    await pubsub.aclose()


async def _beats(caller: Caller, state: ServerState) -> bool:
    return [beat.state for beat in await heartbeats(caller, "demo")] == [state]


async def test_a_catalog_that_vanished_with_the_data_of_redis_is_written_again(
    redis_url: str, config: Path, caller: Caller
) -> None:
    async with ready(redis_url, config, caller):
        await caller.command("FLUSHALL")
        await wait_until(lambda: caller.redis.hexists(KEYS.catalog_of("demo"), "version"), 10)
        assert "demo__add" in [tool.name for tool in (await catalog(caller)).tools]


async def test_a_server_that_is_away_says_so_and_leaves_what_others_have_published(
    redis_url: str, tmp_path: Path, caller: Caller
) -> None:
    port = free_port()
    seen = ServerCatalog(server="demo", version="of another worker")
    await publish(caller, seen)
    path = written(tmp_path, demo={"url": f"http://127.0.0.1:{port}/mcp"})
    async with working(redis_url, path):
        await wait_until(lambda: _beats(caller, ServerState.FAILED), 60)
        (beat,) = await heartbeats(caller, "demo")
        assert beat.retry_at is not None
        assert 0 <= beat.retry_at - beat.at < 60_000
        assert await catalog(caller) == seen
        demo = Demo(tmp_path, port)
        try:
            await wait_until(lambda: _beats(caller, ServerState.READY), 60)
            assert len((await catalog(caller)).tools) > 5
            assert (await caller.outcome(await caller.call())).state is CallState.SUCCEEDED
        finally:
            await anyio.to_thread.run_sync(demo.process.close)
        await wait_until(lambda: _beats(caller, ServerState.FAILED))
        await publish(caller, seen)
        [last] = await heartbeats(caller, "demo")

        async def beats_again() -> bool:
            [beat] = await heartbeats(caller, "demo")
            return beat.at > last.at

        await wait_until(beats_again)
        assert await catalog(caller) == seen


async def test_a_call_that_needs_no_approval_waits_for_a_server_whose_tools_are_not_known_yet(
    redis_url: str, tmp_path: Path, caller: Caller
) -> None:
    port = free_port()
    options = {"trust": True, "approval": "destructive"}
    config = written(tmp_path, demo={"url": f"http://127.0.0.1:{port}/mcp", "callstream": options})
    listening = socket.create_server(("127.0.0.1", port))  # it accepts, and answers nothing
    request = msgspec.structs.replace(await caller.request(), tool="increment_counter", arguments={}, approved=None)
    await caller.engine.enqueue(request)
    async with working(redis_url, config):
        await caller.started(request)
        assert not await caller.has_ended(request)
        listening.close()
        demo = Demo(tmp_path, port)
        try:
            assert (await caller.outcome(request, timeout=60)).state is CallState.SUCCEEDED
        finally:
            demo.process.close()


async def test_a_call_waits_until_the_tools_of_its_server_were_compared_with_the_accepted_ones(
    redis_url: str, config: Path, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared, review_all = asyncio.Event(), PinKeeper.review_all

    async def compares_later(keeper: PinKeeper) -> None:
        await compared.wait()
        await review_all(keeper)

    monkeypatch.setattr(PinKeeper, "review_all", compares_later)
    request = await caller.call("increment_counter")
    async with working(redis_url, config, mcp_max_retries=0):
        await caller.started(request)
        with pytest.raises(TimeoutError):
            await wait_until(lambda: caller.has_ended(request), 0.3)
        compared.set()
        assert (await caller.outcome(request)).state is CallState.SUCCEEDED


async def test_operators_see_health_readiness_and_counts(redis_url: str, config: Path, caller: Caller) -> None:
    port = free_port()
    async with (
        ready(redis_url, config, caller, health_port=port),
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
    ):
        await caller.outcome(await caller.call("add", a=1, b=2))
        await caller.outcome(await caller.call("fail", reason="x"))
        assert (await http.get("/healthz")).json() == {"status": "ok"}
        answer = await http.get("/readyz")
        assert answer.status_code == 200
        assert answer.json() == {
            "status": "ready",
            "parts": {"consuming": True, "running": 0, "servers": {"demo": {"state": "ready", "breaker": "closed"}}},
        }
        metrics = (await http.get("/metrics")).text
        assert 'plugins_calls_total{code="",server="demo",state="succeeded",tool="add"} 1.0' in metrics
        assert (
            'plugins_calls_total{code="TOOL_EXECUTION_FAILED",server="demo",state="failed",tool="fail"} 1.0' in metrics
        )
        assert 'plugins_mcp_server_up{server="demo"} 1.0' in metrics
        assert 'plugins_mcp_server_breaker{server="demo",state="closed"} 1.0' in metrics
        assert 'plugins_mcp_server_breaker{server="demo",state="open"} 0.0' in metrics
        assert 'callstream_stream_lag{group="plugins-workers",stream="events.plugins"} 0.0' in metrics


async def test_a_cancel_by_the_control_channel_reaches_the_mcp_server(
    redis_url: str, config: Path, demo: Demo, caller: Caller
) -> None:
    async with ready(redis_url, config, caller):
        request = await caller.call("slow_job", execution_class="repeatable", seconds=60, steps=60, token="control")
        await wait_until(lambda: demo.statuses("control"))
        notice = json.dumps({"kind": "cancel", "correlationId": request.correlation_id}).encode()
        await caller.redis.publish(KEYS.control, notice)
        assert (await caller.outcome(request)).state is CallState.CANCELLED
        await wait_until(lambda: demo.statuses("control") == ["started", "cancelled"])


@pytest.mark.parametrize("switched_on", [True, False])
async def test_the_development_echo_is_offered_only_where_it_is_switched_on(
    redis_url: str, tmp_path: Path, caller: Caller, caplog: pytest.LogCaptureFixture, *, switched_on: bool
) -> None:
    config = written(tmp_path, none={"command": "none", "disabled": True})
    async with working(redis_url, config, development_echo=switched_on):
        await wait_until(lambda: caller.command("SISMEMBER", KEYS.catalog, "none"), what="the catalog")
        assert bool(await caller.command("SISMEMBER", KEYS.catalog, NAME)) is switched_on
        assert ("DEVELOPMENT_ECHO is set" in caplog.text) is switched_on
        assert "'none' is not used" not in caplog.text  # its operator's wish is no warning
        if switched_on:
            outcome = await caller.outcome(await caller.call(TOOL, server=NAME, text="hello"))
            assert (outcome.state, outcome.content) == (CallState.SUCCEEDED, (TextBlock("hello"),))
