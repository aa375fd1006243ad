"""Looking for what was deleted: in the file of the store, and in every key of Redis."""

import sqlite3
from contextlib import aclosing, closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis import Redis as SyncRedis

from callstream_runtime.connections import command_client
from callstream_runtime.pipelined import PipelinedRedis
from dialog_engine.personal_data.redis_eraser import RedisEraser
from dialog_engine.personal_data.service import ErasureTimes
from dialog_engine.storage.erasures import DELETED_AT_ONCE
from dialog_engine.wiring.times import EngineTimes
from plugins_contract.keys import Keys
from plugins_contract.outcomes import CallState, TextBlock, ToolOutcome
from plugins_contract.sessions import SessionMode, owner
from tests.integration.engines import Engine, Model, Start, publish, running_engine, settings, with_times
from tests.marks import promise
from tests.support.fakes.worker import tool
from tests.support.hidden import files_with, keys_with
from tests.support.ledger import Bench
from tests.support.servers import LocalServer
from tests.support.waiting import wait_until, wait_until_is

SECRET = "the-hidden-marzipan"
FIND = tool("demo__find")
DONE = ToolOutcome(CallState.SUCCEEDED, (TextBlock(SECRET * 3000),))
"""Large enough for pages of its own in the store."""


@pytest.fixture
def worker(bench: Bench, redis_url: str) -> Bench:
    publish(redis_url, FIND)
    return bench


async def a_turn_with_a_call(engine: Engine, model: Model, worker: Bench) -> str:
    """A finished turn, whose question, answer, arguments and result contain the secret; its session."""
    model.will_call_with("demo__find", {"what": SECRET})
    model.will_say(f"Found {SECRET}.")
    begun = await engine.client.post("/v1/sessions", json={})
    session = begun.json()["sessionId"]
    async with engine.stream("POST", "/v1/chat", json={"message": SECRET, "sessionId": session}) as stream:
        await stream.until("control")
        taken = await wait_until(lambda: worker.next_delivery("w"), 20, what="the call")
        assert taken is not None
        await worker.worker.complete(taken, await worker.run(taken), DONE, dead_reason="kept for the test")
        assert (await stream.until("done")).data["reason"] == "stop"
    return session


TIMES = EngineTimes(erasures=ErasureTimes(look=0.05, settle=0, claim=0.2))
SOON = with_times(TIMES)
"""What was deleted is erased without the time for what is on its way to Redis."""


async def streams_with_secret(redis: Any) -> set[str]:
    """What the keys with the secret are for."""
    return {key.partition(":")[0] for key in await keys_with(redis, SECRET)}


async def stored(redis: Any) -> None:
    """The log of a turn and its facts are in Redis, with what is left of its call."""
    expected = {"dialog.turns", "events.plugins.dead", "rpc.plugins.responses", "events.ltm"}

    async def there() -> bool:
        published = [await redis.xlen(stream) for stream in ("events.ltm", "events.analytics")]
        return published == [1, 1] and await streams_with_secret(redis) == expected

    await wait_until(there, 20, what="the facts and the log of the turn")


def left_over(*running: str, sessions: int = 0, traces: int = 0) -> dict[str, Any]:
    """The answer to a deletion."""
    return {"sessions": sessions, "running": [*running], "traces": traces}


async def nothing_left(redis: Any) -> bool:
    return not await keys_with(redis, SECRET) and not any(
        [await redis.xlen(stream) for stream in ("events.ltm", "events.analytics", "events.plugins.dead")]
    )


@promise("DELETE removes what a session said from the store and from Redis")
@SOON
async def test_what_a_deleted_session_said_is_in_no_key_and_in_no_page(
    start: Start, tmp_path: Path, model: Model, worker: Bench
) -> None:
    async with start(facts_with_text=True) as engine:
        session = await a_turn_with_a_call(engine, model, worker)
        await stored(worker.redis)
        assert "engine.sqlite3-wal" in files_with(tmp_path, SECRET)

        assert (await engine.client.delete(f"/v1/sessions/{session}")).status_code == 202
        await wait_until(lambda: nothing_left(worker.redis), 20, what="the erasure")
        await wait_until_is(lambda: engine.status("DELETE", f"/v1/sessions/{session}"), 404)
    # The last connection to the file has moved the log into it.
    assert files_with(tmp_path, SECRET) == []


@promise("an erasure that was accepted is completed, whatever becomes of Redis and of the engine")
@pytest.mark.parametrize(("store", "encrypted"), [("sqlite", False), ("postgres", True)])
async def test_an_erasure_while_redis_is_away_is_done_when_it_is_back_by_whichever_engine_there_is(
    tmp_path: Path, own_redis: LocalServer, model: Model, store: str, encrypted: bool, request: pytest.FixtureRequest
) -> None:
    url = {"database_url": request.getfixturevalue("postgres_url")} if store == "postgres" else {}
    (tmp_path / "keys").write_text("5e" * 32)
    (tmp_path / "keys").chmod(0o600)
    sealed = {"encryption_keys_file": tmp_path / "keys"} if encrypted else {}
    configured = settings(tmp_path, own_redis.url, model.url, facts_with_text=True, **url, **sealed)
    async with aclosing(command_client(own_redis.url)) as redis:
        with SyncRedis.from_url(own_redis.url) as thread:
            bench = Bench(redis, thread)
            await bench.open()
            publish(own_redis.url, FIND)
            async with running_engine(configured, times=TIMES) as engine:
                await a_turn_with_a_call(engine, model, bench)
                await wait_until(lambda: redis.xlen("events.ltm"), 20, what="the fact")
                own_redis.kill()
                erased = await engine.client.delete("/v1/me/data")
                assert (erased.status_code, erased.json()) == (202, left_over(sessions=1))
                left = left_over(traces=1)

                async def deleted() -> bool:
                    return (await engine.client.delete("/v1/me/data")).json() == left

                await wait_until(deleted, 20, what="the deletion from the store")
        own_redis.start()
        assert await redis.xlen("events.plugins.dead") == 1

        async with running_engine(configured, times=TIMES) as engine:  # on PostgreSQL another engine
            await wait_until(lambda: nothing_left(redis), 20, what="the erasure")
            left = left_over()
            await wait_until(deleted, 20, what="the end of the erasure")


@promise("an erasure that was accepted is completed, whatever becomes of Redis and of the engine")
@SOON
async def test_an_error_after_the_commit_of_an_erasure_is_not_the_answer_and_it_can_be_asked_for_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise TypeError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(RedisEraser, "erase", broken)
        async with start() as engine:
            session = (await engine.chat(SECRET))[0].data["sessionId"]
            for path in (f"/v1/sessions/{session}", f"/v1/sessions/{session}", "/v1/me/data"):
                answer = await engine.client.delete(path)
                assert (answer.status_code, answer.json()) == (202, left_over(traces=1))
    async with start() as engine:
        await wait_until_is(lambda: engine.status("DELETE", f"/v1/sessions/{session}"), 404)


@promise("the deletion of a conversation or of a subject ends what MCP servers keep for it")
@with_times(EngineTimes(erasures=ErasureTimes(settle=3_600)))
async def test_workers_are_notified_at_once_of_a_deletion(start: Start, redis: Any) -> None:
    owners = set[str]()

    async def are_notified(*expected: str) -> bool:
        message = await control.get_message(ignore_subscribe_messages=True)
        owners.update(msgspec.json.decode(message["data"]).get("owners", ()) if message else ())
        return owners == {*expected}

    async with start() as engine, redis.pubsub() as control:
        await control.subscribe(Keys().control)
        one, other = [(await engine.chat("Hi"))[0].data["sessionId"] for _ in range(2)]
        of_one, of_other = [owner(SessionMode.CONVERSATION, each) for each in (one, other)]
        await engine.client.delete(f"/v1/sessions/{one}")
        await wait_until(partial(are_notified, of_one), 20, what="the deletion")
        await engine.client.delete("/v1/me/data")
        everything = (of_one, of_other, owner(SessionMode.SUBJECT, "local"))
        await wait_until(partial(are_notified, *everything), 20, what="the erasure")


@promise("an erasure costs one pass over each stream, whatever the number of sessions")
@with_times(EngineTimes(erasures=ErasureTimes(look=0.05, settle=0)))
async def test_the_sessions_of_a_subject_are_erased_in_one_pass_over_each_stream(
    start: Start, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes, execute = list[str](), PipelinedRedis.execute_command

    async def noted(self: PipelinedRedis, *command: Any, **options: Any) -> Any:
        if command[0] == "XRANGE" and command[1] in ("events.ltm", "events.plugins.dead", "events.analytics"):
            passes.append(command[1])
        return await execute(self, *command, **options)

    async with start() as engine:
        for _ in range(DELETED_AT_ONCE + 5):
            await engine.client.post("/v1/sessions", json={})
        await engine.chat(SECRET)
        await wait_until(lambda: redis.xlen("events.ltm"), what="the fact")
        monkeypatch.setattr(PipelinedRedis, "execute_command", noted)
        await engine.client.delete("/v1/me/data")
        await wait_until_is(lambda: redis.xlen("events.ltm"), 0)
    assert sorted(passes) == ["events.analytics", "events.ltm", "events.plugins.dead"]


@promise("what is kept of the erased names nobody and says nothing")
async def test_what_is_kept_of_an_erasure_has_neither_the_subject_nor_a_text(tmp_path: Path, model: Model) -> None:
    subject = "marmaduke"
    configured = settings(tmp_path, "redis://127.0.0.1:1/0", model.url, api_keys=f"{subject}:{'m' * 40}")
    async with running_engine(configured) as engine:
        engine.client.headers["authorization"] = f"Bearer {'m' * 40}"
        session = (await engine.chat(SECRET))[0].data["sessionId"]
        assert (await engine.client.delete(f"/v1/sessions/{session}")).status_code == 202
    with closing(sqlite3.connect(configured.store.outbox_path)) as file:
        kept = [row for table in ("erasures", "outbox") for row in file.execute(f"SELECT * FROM {table}")]  # noqa: S608
    assert session in repr(kept)
    assert subject not in repr(kept)
    assert SECRET not in repr(kept)


@promise("a subject exports and erases its data")
@SOON
async def test_a_subject_exports_and_erases_what_is_theirs_and_nothing_else(start: Start, model: Model) -> None:
    async with start(api_keys="ann:" + "a" * 40 + ",bob:" + "b" * 40) as engine:
        for name, key in (("ann", "a" * 40), ("bob", "b" * 40)):
            engine.client.headers["authorization"] = f"Bearer {key}"
            for n in range(2):
                await engine.chat(f"{name} asks {n}")
        model.held.clear()
        running = (await engine.begin("still running"))["sessionId"]

        exported = await engine.client.get("/v1/me/data")
        *sessions, used = [msgspec.json.decode(line) for line in exported.text.splitlines()]
        assert "ann" not in exported.text
        assert used["usage"]
        questions = {each["messages"][0]["content"] for each in sessions}
        assert questions == {"bob asks 0", "bob asks 1", "still running"}
        assert all(each["turns"] for each in sessions)

        erased = await engine.client.delete("/v1/me/data")
        assert (erased.status_code, erased.json()) == (202, left_over(running, sessions=3))
        left = left_over(running, sessions=1)

        async def is_left() -> bool:
            return (await engine.client.delete("/v1/me/data")).json() == left

        await wait_until(is_left, 20, what="the erasure of the others")
        model.held.set()
        left = left_over()
        await wait_until(is_left, 20, what="the erasure after the end of the turn")
        assert (await engine.client.get("/v1/me/data")).text == ""
        engine.client.headers["authorization"] = f"Bearer {'a' * 40}"
        assert len((await engine.client.get("/v1/me/data")).text.splitlines()) == 2 + 1, "sessions and usage"
