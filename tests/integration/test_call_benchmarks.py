"""The benchmarks of tool calls on a tiny load: that they run, and that what they measure is there."""

import sqlite3
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from benchmarks import waiting
from benchmarks.guarantees import bare_engine, keys_for
from benchmarks.pair import STDIO_SERVER
from tests.chaos.scripted_worker import WORKER, Pace
from tests.marks import exhaustive
from tests.support.processes import Process
from tests.support.servers import LocalServer

pytestmark = [pytest.mark.anyio, exhaustive("benchmarks, to see that they run")]


@pytest.fixture(params=["alone", "stdio", "http"])
def server(request: pytest.FixtureRequest) -> Generator[Sequence[str]]:
    """The MCP server of a bare call, as arguments: none, a command, or a URL."""
    if request.param != "http":
        yield STDIO_SERVER if request.param == "stdio" else ()
        return
    process = Process([sys.executable, "-m", "examples.demo_server", "--port", "0"])
    try:
        process.wait_ready(lambda: "/mcp\n" in process.output())
        yield (process.output().split(" on ")[-1].strip(),)
    finally:
        process.close()


async def test_a_bare_call_is_committed_twice_and_ends_in_the_ledger(
    own_redis: LocalServer, tmp_path: Path, server: Sequence[str]
) -> None:
    database = tmp_path / "bare.sqlite3"
    async with bare_engine(own_redis.url, database, 1, server) as engine:
        before = engine.commits
        assert await engine.call("hello") == "hello"
        assert engine.commits == before + 2
    connection = sqlite3.connect(database)
    [(correlation_id, outcome)] = connection.execute("SELECT correlation_id, outcome FROM tool_calls").fetchall()
    connection.close()
    assert b"hello" in outcome
    with Redis.from_url(own_redis.url) as client:
        ledger: Any = client.hgetall(keys_for(server).call(correlation_id))
    assert (ledger[b"state"], ledger[b"starts"]) == (b"succeeded", b"1")


async def test_replies_are_counted_while_other_calls_wait(own_redis: LocalServer, tmp_path: Path) -> None:
    with Redis.from_url(own_redis.url) as connection:
        client: Any = connection
        client.execute_command("ACL", "SETUSER", WORKER, "on", "nopass", "~*", "&*", "+@all")
        pace = Pace(50, 2, mute_every=0)
        quiet, busy = await waiting.measure(own_redis.url, client, tmp_path / "engine.sqlite3", 20, pace)
    assert quiet.replies == 0
    assert 30 < busy.replies <= pace.replies
    assert 0 < quiet.redis < busy.redis
    assert 0 < quiet.scripts < busy.scripts
