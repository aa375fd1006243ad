"""The servers file changes while a worker runs."""

import json
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from plugins_contract.encryption import CLEAR
from plugins_contract.keys import Keys
from plugins_contract.ledger import EngineLedger
from plugins_contract.outcomes import CallState
from plugins_mcp.mcp.transport_options import Stdio
from tests.integration.demo import Demo
from tests.integration.servers import speaking
from tests.integration.test_worker_consumer import Only
from tests.marks import promise
from tests.support.forked import forked_server
from tests.support.operators import Operator
from tests.support.waiting import wait_until
from tests.support.working import Caller, working

ECHO: dict[str, Any] = {"server": "demo", "tool": "echo", "arguments": {"text": "hello"}}
KEYS = Keys()


class File:
    """A servers file, replaced with a rename."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "mcp.json"

    def __call__(self, **servers: Any) -> Path:
        return self.write(json.dumps({"mcpServers": servers}))

    def write(self, text: str) -> Path:
        new = self.path.with_suffix(".new")
        new.write_text(text)
        return new.rename(self.path)


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path)


def child() -> dict[str, Any]:
    return forked_server("examples.demo_server", "--transport", "stdio")


async def offered(caller: Caller, *servers: str) -> None:
    for server in servers:
        await wait_until(partial(caller.redis.hexists, KEYS.catalog_of(server), "version"), 20)


async def withdrawn(caller: Caller, server: str) -> None:
    async def gone() -> bool:
        return not any(name.startswith(b"worker:") for name in await caller.redis.hkeys(KEYS.catalog_of(server)))

    await wait_until(gone, 20)


def children(argument: str = "examples.demo_server") -> set[int]:
    """The children with this argument."""
    found = set[int]()
    for each in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # it ends now
            found |= {each.pid} if argument in each.cmdline() else set()
    return found


@promise("a changed servers file is taken over while the worker runs: unchanged servers keep their processes")
async def test_servers_are_added_altered_and_removed_and_the_others_keep_their_processes(
    caller: Caller, redis_url: str, demo: Demo, file: File
) -> None:
    before = children()
    async with working(redis_url, file(kept=child(), altered=child(), removed={"url": demo.url})):
        await offered(caller, "kept", "altered", "removed")
        first = children() - before
        file(kept=child(), altered=child() | {"env": {"OTHER": "yes"}}, added={"url": demo.url})
        await offered(caller, "added")
        await withdrawn(caller, "removed")
        await wait_until(lambda: len((children() - before) & first) == 1 and len(children() - before) == 2, 20)
        for server in ("kept", "altered", "added"):
            assert (await caller.outcome(await caller.call(server=server))).state is CallState.SUCCEEDED
        outcome = await caller.outcome(await caller.call(server="removed", expires_in_ms=1500))
        assert outcome.state is CallState.EXPIRED
    assert children() == before


@promise("calls in flight end at the server where they began, whatever becomes of its entry in the servers file")
@pytest.mark.parametrize("becomes", ["altered", "removed"])
async def test_a_call_in_flight_ends_where_it_began(
    caller: Caller, redis_url: str, demo: Demo, file: File, becomes: str, tmp_path: Path
) -> None:
    began, end = tmp_path / "began", tmp_path / "end"
    held = speaking(f"""
        open({str(began)!r}, "x").close()
        while not os.path.exists(sys.argv[1]): time.sleep(0.01)
        say(request, {{"content": []}})
    """).transport
    assert isinstance(held, Stdio)
    server = {"command": held.command, "args": [*held.args, str(end)], "callstream": {"protocol": "legacy"}}
    other = {"other": {"url": demo.url}}
    async with working(redis_url, file(demo=server)):
        await offered(caller, "demo")
        request = await caller.call("t")
        await wait_until(began.exists)
        (process,) = children(str(end))
        file(**other if becomes == "removed" else other | {"demo": {"url": demo.url}})
        await offered(caller, "other")
        assert not await caller.has_ended(request)
        assert children(str(end)) == {process}
        end.touch()
        assert (await caller.outcome(request)).state is CallState.SUCCEEDED
        assert await caller.starts(request) == 1
        await wait_until(lambda: not children(str(end)))


async def test_a_file_that_cannot_be_used_changes_nothing_and_the_log_says_which_server_and_field(
    caller: Caller, redis_url: str, demo: Demo, file: File, caplog: pytest.LogCaptureFixture
) -> None:
    good: dict[str, Any] = {"url": demo.url}
    async with working(redis_url, file(demo=good)):
        await offered(caller, "demo")
        file.write("{")
        await wait_until(lambda: "not JSON" in caplog.text, 20)
        file(demo=good | {"callstream": {"concurrency": "many"}}, added=good)
        await wait_until(lambda: "'demo': callstream.concurrency" in caplog.text, 20)
        file.path.unlink()
        await wait_until(lambda: "does not exist" in caplog.text, 20)
        assert (await caller.outcome(await caller.call())).state is CallState.SUCCEEDED
        file(demo=good, broken={"url": "ftp://x"}, added=good)  # a server that was not in use may be wrong
        await offered(caller, "added")
        assert not await caller.redis.hexists(KEYS.catalog_of("broken"), "version")


async def test_requests_in_the_pool_that_the_worker_leaves_are_not_lost(
    caller: Caller, redis_url: str, demo: Demo, file: File
) -> None:
    async with working(redis_url, file(demo={"url": demo.url}), worker_concurrency=1):
        await offered(caller, "demo")
        [row] = (await caller.redis.hgetall(KEYS.pools)).values()
        [old] = json.loads(row)["pools"]
        slow = await caller.call("slow_job", seconds=3)
        await caller.started(slow)
        waiting = [msgspec.structs.replace(await caller.request(), **ECHO) for _ in range(3)]
        engine = EngineLedger(caller.redis, KEYS, pools=Only(old), cipher=CLEAR)
        for request in waiting:
            await engine.enqueue(request)
        file(demo={"url": demo.url}, added={"url": demo.url})
        await offered(caller, "added")
        for request in waiting:
            outcome = await caller.outcome(request, 30)
            assert (outcome.state, await caller.starts(request)) == (CallState.SUCCEEDED, 1)
        assert (await caller.outcome(slow)).error is None


async def test_operators_see_the_servers_of_every_running_worker(
    caller: Caller, redis_url: str, demo: Demo, file: File, tmp_path: Path
) -> None:
    operator = Operator(redis_url, tmp_path)
    assert (await operator.run("servers")).code == 1
    async with working(redis_url, file(child=child(), remote={"url": demo.url}, broken={"url": "ftp://x"})):
        await offered(caller, "child", "remote")
        rows = (await operator.run("servers", "--json")).rows
        shown = [(row["server"], row["state"], row.get("sessions"), row.get("children")) for row in rows]
        ready = [("child", "ready", 1, 1), ("remote", "ready", 1, None)]
        assert shown == [("broken", "disabled", None, None), *ready]
        assert "url must be an address" in (await operator.run("servers")).out


async def test_a_file_can_be_tried_without_redis_and_a_server_that_fails_is_the_result(
    demo: Demo, file: File, tmp_path: Path
) -> None:
    before, operator = children(), Operator("redis://127.0.0.1:1", tmp_path)
    trusted = {"url": demo.url, "callstream": {"trust": True}}
    good = {"child": child(), "trusted": trusted, "off": {"disabled": True}}
    answer = await operator.run("check", str(file(**good)))
    assert (answer.code, [line[:8].strip() for line in answer.out.splitlines()]) == (0, ["ok", "disabled", "ok"])
    answer = await operator.run("check", str(file(**good, gone={"command": "/does/not/exist"}, wrong={"url": 5})))
    assert answer.code == 1
    assert "FAILED    gone: the command '/does/not/exist' cannot be started" in answer.out
    assert "FAILED    wrong: url must be" in answer.out
    assert (await operator.run("check", str(file.write("[")))).code == 2
    assert children() == before
