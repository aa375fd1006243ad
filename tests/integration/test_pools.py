"""Workers that differ, in one group: in their servers, during a deployment, and in their release."""

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest

from plugins_contract.keys import GROUP
from plugins_contract.ledger.group import read_backlogs
from plugins_contract.messages import NEWEST_VERSION, ToolCallRequested
from plugins_contract.outcomes import CallState
from tests.integration.demo import Demo
from tests.support.forked import Forked
from tests.support.processes import Process
from tests.support.quick_worker import QUICK
from tests.support.waiting import wait_until
from tests.support.working import Caller, working

NO_SWEEPS = replace(QUICK, sweep=30.0, announce=30.0)
"""What one worker leaves to others lies until the end of the test: it arrives only if it moves."""


@pytest.fixture
def config(tmp_path: Path, demo: Demo) -> "Config":
    return Config(tmp_path, demo.url)


class Config:
    """Writes servers files."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._url = url

    def __call__(self, *servers: str) -> Path:
        path = self._folder / f"{'-'.join(servers)}.json"
        path.write_text(json.dumps({"mcpServers": {name: {"url": self._url} for name in servers}}))
        return path


async def are_ready(caller: Caller, *servers: str) -> None:
    for server in servers:
        await wait_until(partial(caller.redis.hexists, caller.keys.catalog_of(server), "version"), 20)


async def worker_rows(caller: Caller, count: int, timeout: float = 30.0) -> None:
    await wait_until(lambda: _rows(caller, count), timeout, what=f"{count} workers")


async def _rows(caller: Caller, count: int) -> bool:
    return await caller.redis.hlen(caller.keys.pools) == count


async def all_succeed(caller: Caller, requests: list[ToolCallRequested]) -> None:
    for request in requests:
        assert (await caller.outcome(request)).state is CallState.SUCCEEDED


async def test_every_call_reaches_a_worker_that_has_its_server_and_nothing_is_taken_over(
    caller: Caller, redis_url: str, config: Config
) -> None:
    one, two = config("one", "both"), config("two", "both")
    async with working(redis_url, one, NO_SWEEPS), working(redis_url, two, NO_SWEEPS):
        await are_ready(caller, "one", "two", "both")
        requests = [await caller.call(server=server) for server in ("one", "two", "both", "two", "one") * 3]
        await all_succeed(caller, requests)
        assert await read_backlogs(caller.redis, caller.keys, [caller.keys.requests])
        assert all([await caller.starts(request) == 1 for request in requests])


async def test_a_call_whose_server_no_running_worker_has_ends_by_name(
    caller: Caller, redis_url: str, config: Config
) -> None:
    async with working(redis_url, config("one")):
        await are_ready(caller, "one")
        outcome = await caller.outcome(await caller.call(server="gone", expires_in_ms=1500))
    assert outcome.state is CallState.EXPIRED
    assert outcome.error is not None
    assert outcome.error.message == "no running worker has the MCP server 'gone'; it was not run"


def in_a_process(redis_url: str, config: Path, **settings: str) -> Process:
    env = {"REDIS_URL": redis_url, "MCP_CONFIG": str(config), "HEALTH_PORT": "0"} | settings
    return Process(Forked("tests.support.quick_worker"), env={**os.environ, **env})


async def test_redis_is_wiped_and_the_streams_of_the_pools_are_there_again(
    caller: Caller, redis_url: str, config: Config
) -> None:
    async with working(redis_url, config("one")), working(redis_url, config("two")):
        await are_ready(caller, "one", "two")
        await caller.flush()
        await worker_rows(caller, 2)
        requests = [await caller.call(server=server, execution_class="repeatable") for server in ("one", "two") * 5]
        await all_succeed(caller, requests)


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> int:
    """What runs in this process is of a newer release than what runs in others."""
    for module in ("plugins_contract.messages", "plugins_contract.pools", "plugins_mcp.pools"):
        monkeypatch.setattr(f"{module}.NEWEST_VERSION", NEWEST_VERSION + 1)
    return NEWEST_VERSION + 1


async def asked(caller: Caller, version: int, expires_in_ms: int = 60_000) -> ToolCallRequested:
    request = await caller.request(expires_in_ms=expires_in_ms)
    request = msgspec.structs.replace(request, event_version=version, tool="echo", arguments={"text": "x"})
    await caller.engine.enqueue(request)
    return request


async def test_an_older_worker_leaves_a_request_to_newer_ones(
    caller: Caller, redis_url: str, config: Config, newer: int
) -> None:
    older = in_a_process(redis_url, config("demo"))
    try:
        await are_ready(caller, "demo")
        early = await asked(caller, newer)
        await wait_until(lambda: _pending_again(caller), what="the older worker to leave it")
        async with working(redis_url, config("demo")):
            await worker_rows(caller, 2)
            await all_succeed(caller, [early, *[await asked(caller, newer) for _ in range(10)]])
            await all_succeed(caller, [await caller.call() for _ in range(10)])
        assert await caller.dead_letters() == []
    finally:
        older.close()


async def _pending_again(caller: Caller) -> bool:
    rows = await caller.redis.xpending_range(caller.keys.requests, GROUP, "-", "+", 1, idle=QUICK.lease_ms)
    return bool(rows)
