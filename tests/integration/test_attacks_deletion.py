"""Looking for what was deleted: in the file of the store, and in every key of Redis."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis import Redis as SyncRedis
from redis.asyncio import Redis

from plugins_contract.catalog import ServerCatalog, ServerHeartbeat, ServerState, ToolEntry
from plugins_contract.outcomes import CallState, TextBlock, ToolOutcome
from tests.integration.engines import Engine, Model, running_engine, settings
from tests.support.ledger import Bench
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

SECRET = "the-hidden-marzipan"
DONE = ToolOutcome(CallState.SUCCEEDED, (TextBlock(SECRET * 3000),))
"""Large enough for pages of its own in the store."""


@pytest.fixture
async def worker(redis: Redis, redis_url: str) -> AsyncGenerator[Bench]:
    with SyncRedis.from_url(redis_url) as thread:
        bench = Bench(redis, thread)
        await bench.open()
        await publish_tool(bench)
        yield bench


async def publish_tool(bench: Bench) -> None:
    """As a worker does."""
    entry = ToolEntry(name="demo__find", server="demo", tool="find", input_schema={"type": "object"})
    beat = ServerHeartbeat(state=ServerState.READY, at=await bench.now_ms())
    catalog = {"catalog": ServerCatalog(server="demo", tools=(entry,)), "worker:w": beat}
    await bench.redis.sadd(bench.keys.catalog, "demo")
    fields = {name: msgspec.json.encode(value) for name, value in catalog.items()}
    await bench.redis.hset(bench.keys.catalog_of("demo"), mapping=fields)
    await bench.redis.expire(bench.keys.catalog_of("demo"), 60)


async def a_turn_with_a_call(engine: Engine, model: Model, worker: Bench) -> str:
    """A finished turn, whose question, answer, arguments and result contain the secret; its session."""
    model.will_call_with("demo__find", {"what": SECRET})
    model.will_say(f"Found {SECRET}.")
    begun = await engine.client.post("/v1/sessions", json={})
    session = begun.json()["sessionId"]
    async with engine.stream("POST", "/v1/chat", json={"message": SECRET, "sessionId": session}) as stream:
        await stream.until("control")

        async def delivery() -> Any:
            return await worker.next_delivery("w")

        taken = await wait_until(delivery, 20, what="the call")
        await worker.worker.complete(taken, await worker.run(taken), DONE, dead_reason="kept for the test")
        assert (await stream.until("done")).data["reason"] == "stop"
    return session


async def keys_with_secret(redis: Any) -> list[str]:
    """The keys whose value contains the secret."""
    found: list[str] = []
    async for key in redis.scan_iter():
        match await redis.type(key):
            case b"stream":
                value: Any = await redis.xrange(key)
            case b"hash":
                value = await redis.hgetall(key)
            case _:
                value = ""
        if SECRET in repr(value):
            found.append(key.decode().partition(":")[0])
    return sorted(set(found))


def files_with_secret(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if file.is_file() and SECRET.encode() in file.read_bytes()]


@pytest.mark.parametrize("facts_with_text", [False, True])
async def test_what_a_deleted_session_said_is_in_no_key_and_in_no_page(
    tmp_path: Path, redis_url: str, model: Model, worker: Bench, facts_with_text: bool
) -> None:
    configured = settings(tmp_path, redis_url, model.url, facts_with_text=facts_with_text)
    async with running_engine(configured) as engine:
        session = await a_turn_with_a_call(engine, model, worker)

        expected = {"dialog.turns", "events.plugins.dead", "rpc.plugins.responses"}

        async def stored() -> bool:
            published = await worker.redis.xlen("events.ltm") == 1
            return published and set(await keys_with_secret(worker.redis)) == expected | (
                {"events.ltm"} if facts_with_text else set()
            )

        await wait_until(stored, 20, what="the fact and the log of the turn")
        assert "engine.sqlite3-wal" in files_with_secret(tmp_path)

        assert (await engine.client.delete(f"/v1/sessions/{session}")).status_code == 204
        assert await keys_with_secret(worker.redis) == []
    # The last connection to the file has moved the log into it.
    assert files_with_secret(tmp_path) == []


async def test_a_subject_exports_and_erases_what_is_theirs_and_nothing_else(
    tmp_path: Path, redis_url: str, model: Model
) -> None:
    configured = settings(tmp_path, redis_url, model.url, api_keys="ann:" + "a" * 40 + ",bob:" + "b" * 40)
    async with running_engine(configured) as engine:
        for name, key in (("ann", "a" * 40), ("bob", "b" * 40)):
            engine.client.headers["authorization"] = f"Bearer {key}"
            for n in range(2):
                await engine.chat(f"{name} asks {n}")
        running = await begun_turn(engine, model)

        exported = await engine.client.get("/v1/me/data")
        sessions = [msgspec.json.decode(line) for line in exported.text.splitlines()]
        assert "ann" not in exported.text
        questions = {each["messages"][0]["content"] for each in sessions}
        assert questions == {"bob asks 0", "bob asks 1", "still running"}
        assert all(each["turns"] for each in sessions)

        assert (await engine.client.delete("/v1/me/data")).json() == {"deleted": 2, "running": [running]}
        model.held.set()

        async def erased() -> bool:
            return (await engine.client.delete("/v1/me/data")).json() == {"deleted": 1, "running": []}

        await wait_until(erased, 20, what="the end of the turn")
        assert (await engine.client.get("/v1/me/data")).text == ""
        engine.client.headers["authorization"] = f"Bearer {'a' * 40}"
        assert len((await engine.client.get("/v1/me/data")).text.splitlines()) == 2


async def begun_turn(engine: Engine, model: Model) -> str:
    """The session of a turn that runs until the model is let go."""
    model.held.clear()
    session: str = (await engine.client.post("/v1/sessions", json={})).json()["sessionId"]
    begun = await engine.client.post(f"/v1/sessions/{session}/turns", json={"message": "still running"})
    assert begun.status_code == 202
    return session


async def test_a_session_is_deleted_while_redis_is_away(tmp_path: Path, model: Model) -> None:
    async with running_engine(settings(tmp_path, "redis://127.0.0.1:1/0", model.url)) as engine:
        events = await engine.chat(SECRET)
        session = events[0].data["sessionId"]
        assert (await engine.client.delete(f"/v1/sessions/{session}")).status_code == 204
        assert (await engine.client.get("/v1/sessions")).json()["sessions"] == []
