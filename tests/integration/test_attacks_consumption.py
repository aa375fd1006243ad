"""One model, and one subject, that want everything: what they get is bounded, at all engines together."""

import asyncio
import logging
import select
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from callstream_runtime.connections import command_client
from callstream_runtime.pipelined import PipelinedRedis
from dialog_engine.consumption.limits import Consumption, Slot, SubjectLimits
from dialog_engine.errors import LimitExceededError
from dialog_engine.http.services import LARGE_AT_ONCE
from plugins_contract.keys import Keys
from tests.integration.engines import Engine, Model, Start, publish, running_engine, settings
from tests.integration.test_attacks_deletion import FIND
from tests.marks import promise
from tests.support.waiting import wait_until, wait_until_is

KEYS = "ann:" + "a" * 40 + ",bob:" + "b" * 40


def acts_as(engine: Engine, letter: str) -> Engine:
    engine.client.headers["authorization"] = f"Bearer {letter * 40}"
    return engine


@pytest.fixture
async def other(redis_url: str) -> AsyncGenerator[Redis]:
    client = command_client(redis_url)
    yield client
    await client.aclose()


# --- A reply of the model ---


@promise("what a reply, a turn and a subject consume is limited")
@pytest.mark.usefixtures("bench")
async def test_of_a_thousand_calls_in_one_reply_only_the_first_are_run_and_the_turn_ends(
    start: Start, redis_url: str, model: Model
) -> None:
    publish(redis_url, FIND)
    model.will_call(*["demo__find"] * 1000)
    async with start(mcp_request_timeout_ms=500, max_calls_per_reply=5) as engine:
        events = await engine.chat("Find everything.")
    steps = [event.data for event in events if event.data.get("type") == "tool"]
    pending = {step["correlationId"] for step in steps}
    refused = {step["correlationId"] for step in steps if "OVERLOADED" in str(step)}
    assert (len(pending), len(pending - refused)) == (256, 5)  # those beyond MAX_CALLS_PER_TURN are not kept
    assert events[-1].data["reason"] == "max_calls"


async def test_a_reply_without_end_is_cut_and_its_stream_closed(start: Start, model: Model) -> None:
    model.replies.append([{"content": "a"}, *[{"content": "x" * 10_000}] * 500])
    async with start(max_reply_bytes=50_000) as engine:
        events = await engine.chat()
        assert events[-1].data["reason"] == "length"
        assert len(events[-2].data["content"]) == 40_001
        await wait_until(lambda: model.open == 0, 10, what="the end of the model's stream")


# --- A subject ---


@promise("every refused request and every refused call has a line with its subject")
async def test_requests_beyond_the_limit_get_429_with_retry_after_at_every_engine_and_other_subjects_do_not(
    tmp_path: Path, redis_url: str, model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    here, there = (
        settings(folder, redis_url, model.url, api_keys=KEYS, subject_requests_per_minute=10) for folder in folders
    )
    async with running_engine(here) as first, running_engine(there) as second:
        answers = [await acts_as(engine, "a").client.get("/v1/models") for _ in range(15) for engine in (first, second)]
        codes = [answer.status_code for answer in answers]
        # The window may have changed once meanwhile.
        assert 10 <= codes.count(200) <= 20
        last = answers[-1]
        assert (last.status_code, last.json()["code"]) == (429, "LIMIT_EXCEEDED")
        assert 1 <= int(last.headers["retry-after"]) <= 60
        assert (await acts_as(second, "b").client.get("/v1/models")).status_code == 200
        assert (await second.client.get("/healthz")).status_code == 200
        assert (await second.client.get("/metrics")).status_code == 403
        too_large = {"message": "x" * 3_000_000}
        assert (await second.client.post("/v1/chat", json=too_large)).status_code == 413
        second.client.headers["authorization"] = "Bearer nobody"
        assert (await second.client.get("/v1/models")).status_code == 401
    lines = {(record.code, record.subject) for record in caplog.records if record.message == "request refused"}  # type: ignore[attr-defined]
    assert lines == {("LIMIT_EXCEEDED", "ann"), ("FORBIDDEN", "bob"), ("BODY_TOO_LARGE", "bob"), ("UNAUTHORIZED", "")}


@promise("what a reply, a turn and a subject consume is limited")
async def test_turns_and_streams_of_one_subject_are_bounded_and_free_again_when_they_end(
    start: Start, model: Model
) -> None:
    model.held.clear()
    async with start(api_keys=KEYS, subject_max_turns=2, subject_max_streams=1) as engine:
        acts_as(engine, "a")
        async with engine.stream("POST", "/v1/chat", json={"message": "Hi"}) as stream:
            await stream.until("text")
            turn = stream.response.headers["x-turn-id"]
            for refused in (
                await engine.client.post("/v1/chat", json={"message": "Hi"}),
                await engine.client.get(f"/v1/turns/{turn}/events"),
            ):
                assert (refused.status_code, refused.json()["code"]) == (429, "LIMIT_EXCEEDED")
                assert refused.headers["retry-after"] == "5"
            sessions = [(await engine.client.post("/v1/sessions")).json()["sessionId"] for _ in range(3)]
            begun = await asyncio.gather(
                *(engine.client.post(f"/v1/sessions/{each}/turns", json={"message": "Hi"}) for each in sessions)
            )
            assert sorted(answer.status_code for answer in begun) == [202, 429, 429]
            assert len((await engine.client.get("/v1/sessions")).json()["sessions"]) == 4
        model.held.set()
        await wait_until_is(lambda: engine.status("POST", "/v1/chat", json={"message": "Hi"}), 200)


@promise("what ends with the last turns is counted and published before an engine is gone")
@pytest.mark.parametrize("late", ["tokens", "message"])
async def test_a_shutdown_counts_the_tokens_of_the_last_turn_and_publishes_that_its_session_has_changed(
    tmp_path: Path, redis: Any, redis_url: str, model: Model, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    spent, published, closed = Consumption.spent, list[bytes](), list[bool]()
    client: Any = PipelinedRedis
    publish, aclose = client.publish, client.aclose

    async def pause(what: str) -> None:
        """A Redis that takes its time: all else has ended, the connections too if nobody waits for this."""
        with suppress(TimeoutError):
            await wait_until(lambda: closed or late != what, 1.5)

    async def spent_late(self: Consumption, subject: str, tokens: int) -> None:
        await pause("tokens")
        await spent(self, subject, tokens)

    async def publish_late(self: PipelinedRedis, channel: Any, message: Any) -> None:
        await pause("message")
        await publish(self, channel, message)
        published.append(message)

    async def closed_now(self: PipelinedRedis, *arguments: Any) -> None:
        closed.append(True)
        await aclose(self, *arguments)

    monkeypatch.setattr(Consumption, "spent", spent_late)
    monkeypatch.setattr(PipelinedRedis, "aclose", closed_now)
    monkeypatch.setattr(PipelinedRedis, "publish", publish_late)
    limits: Any = {"api_keys": KEYS, "subject_tokens_per_day": 15, "shutdown_grace_seconds": 20}
    configured = settings(tmp_path, redis_url, model.url, **limits)
    model.held.clear()
    async with running_engine(configured) as engine:
        acts_as(engine, "a")
        await engine.begin()
        await wait_until(lambda: model.open == 1, what="the model's stream")
        published.clear()
        model.held.set()
    [key] = [key async for key in redis.scan_iter() if b":tokens:" in key]
    assert await redis.hget(key, "count") == b"10"
    assert msgspec.json.decode(published[-1]) == {"kind": "sessions"}


@promise("a stopped reply is counted: what was reported, the rest as an estimate that is marked")
async def test_the_tokens_of_a_stopped_reply_are_estimated_and_used_up(
    tmp_path: Path, redis: Any, redis_url: str, model: Model
) -> None:
    model.held.clear()
    configured = settings(tmp_path, redis_url, model.url, api_keys=KEYS, subject_tokens_per_day=2)
    async with running_engine(configured) as engine:
        acts_as(engine, "a")
        async with engine.stream("POST", "/v1/chat", json={"message": "Hi"}) as stream:
            await stream.until("text")
            turn = stream.response.headers["x-turn-id"]
            await engine.client.post(f"/v1/turns/{turn}/cancel")
            done = await stream.until("done")
        assert done.data["usage"]["estimated"] is True
        await wait_until_is(lambda: engine.status("POST", "/v1/chat", json={"message": "Hi"}), 429)


@promise("a message that waits begins only with the rights that its sender has then, and is held otherwise")
async def test_a_message_that_waits_counts_when_it_begins(start: Start, model: Model) -> None:
    model.held.clear()
    async with start(api_keys=KEYS, subject_max_turns=2, subject_tokens_per_day=5) as engine:
        acts_as(engine, "a")
        first = await engine.begin()
        path, body = f"/v1/sessions/{first['sessionId']}/turns", {"message": "Next", "onBusy": "queue"}
        begun, held = [(await engine.client.post(path, json=body)).json() for _ in range(2)]
        assert (begun["status"], held["status"]) == ("waiting", "waiting")
        model.held.set()

        async def is_held() -> bool:
            found = (await engine.client.get(f"/v1/turns/{held['turnId']}")).json()
            return found.get("held") == "LIMIT_EXCEEDED"

        await wait_until(is_held, what="its hold")
        assert (await engine.client.get(f"/v1/turns/{begun['turnId']}")).json()["status"] == "done"


async def test_slots_are_shared_and_those_of_a_killed_engine_expire(redis: Any, other: Any) -> None:
    limits = SubjectLimits(turns=3)
    here, killed = Consumption(redis, Keys(), limits), Consumption(other, Keys(), limits)
    slots = [await here.turn("ann"), await killed.turn("ann"), await killed.turn("ann")]
    with pytest.raises(LimitExceededError):
        await here.turn("ann")
    await slots[0].release()
    await slots[0].release()
    await (await here.turn("ann")).release()

    key = Keys().limit("turns", "ann")
    for entry in await redis.zrange(key, 0, -1):
        await redis.zadd(key, {entry: 1})  # as if nobody had renewed them
    assert isinstance(await here.turn("ann"), Slot)
    assert await redis.zcard(key) == 1


async def test_without_redis_each_engine_counts_for_itself_and_nothing_waits() -> None:
    """Whoever keeps an engine so busy that Redis seems slow must not get more for it."""
    silent = socket.create_server(("127.0.0.1", 0))  # it accepts connections, and answers nothing
    client = command_client(f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
    consumption = Consumption(client, Keys(), SubjectLimits(turns=2, requests=50, tokens=9))
    async with asyncio.timeout(5):
        refused = 0
        for _ in range(150):  # the window may change once
            try:
                await consumption.request("ann")
            except LimitExceededError:
                refused += 1
        assert refused >= 50
        await consumption.request("ben")
        for _ in range(2):
            await consumption.turn("ann")
        with pytest.raises(LimitExceededError, match="2 turns may run"):
            await consumption.turn("ann")
        await consumption.spent("ben", 9)
        with pytest.raises(LimitExceededError, match="9 tokens per day"):
            await consumption.turn("ben")
    await client.aclose()
    silent.close()


@pytest.mark.parametrize("path", ["/v1/sessions/{session}/messages", "/v1/me/data", "/v1/turns/{turn}/events"])
async def test_large_answers_that_are_not_read_are_few(
    start: Start, model: Model, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    """Hundreds, of some megabytes each, took all the memory of an engine. What nobody waits for is not read at all."""
    caplog.set_level(logging.INFO)
    model.replies = [[{"content": "x" * 50_000}] * 60]
    async with start(api_keys=KEYS) as engine, AsyncExitStack() as stack:
        [started, *_] = await acts_as(engine, "a").chat()
        path = path.format(session=started.data["sessionId"], turn=started.data["turnId"])
        unread: list[socket.socket] = []
        for _ in range(3 * LARGE_AT_ONCE):
            unread.append(client := stack.enter_context(socket.socket()))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", int(engine.url.rpartition(":")[2])))
            client.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {'a' * 40}\r\n\r\n".encode())

        def begun() -> list[socket.socket]:
            return select.select(unread, [], [], 0)[0]

        await wait_until(lambda: len(begun()) >= LARGE_AT_ONCE, what="the first answers")
        for letter in "ab":  # a neighbour, and what is small
            assert (await acts_as(engine, letter).client.get("/v1/sessions")).status_code == 200
        assert len(begun()) == LARGE_AT_ONCE
        gone = [client for client in unread if client not in begun()][:LARGE_AT_ONCE] + begun()
        for client in gone:
            unread.remove(client)
            client.close()
        await wait_until(lambda: len(begun()) == len(unread) == LARGE_AT_ONCE, what="the others")
    not_read = [each for each in caplog.records if getattr(each, "code", "") == "CLIENT_GONE"]
    assert len(not_read) == LARGE_AT_ONCE or path.endswith("/events")  # a stream ends by itself
