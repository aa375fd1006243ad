"""Questions of a real server of an earlier protocol, from the middle of the call to the person and back."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from callstream_runtime.pool_directory import PoolDirectory
from dialog_engine.peers.held_calls import RedisHeldCalls
from tests.integration.engines import Engine, Model, Start
from tests.integration.test_pools import worker_rows
from tests.integration.test_questions import Asking, asking, place, ready, result, statuses
from tests.integration.test_replicas import Place
from tests.integration.test_worker_held_calls import ACCEPT, Earlier, earlier, served, traced
from tests.marks import exhaustive, promise
from tests.support.forked import Forked
from tests.support.hidden import files_with, keys_with
from tests.support.processes import Process
from tests.support.stack import BIN
from tests.support.waiting import wait_until
from tests.support.working import Caller, working

__all__ = ["asking", "earlier", "place"]


@pytest.fixture
async def engine(start: Start, redis_url: str, tmp_path: Path) -> AsyncGenerator[Engine]:
    async with served(tmp_path) as config, working(redis_url, config), ready(start) as engine:
        yield engine


@asynccontextmanager
async def killable(redis_url: str, config: Path, *, quick: bool = True) -> AsyncGenerator[Process]:
    """A worker that is a process of its own. A quick one has short leases, and waits long for a server."""
    program = Forked("tests.support.quick_worker", ("--patient",)) if quick else [BIN / "plugins-mcp"]
    worker = Process(program, env={"REDIS_URL": redis_url, "HEALTH_PORT": "0", "MCP_CONFIG": str(config)})
    try:
        yield worker
    finally:
        worker.close()


async def begun(asking: Asking, engine: Engine, tool: str = "book", **arguments: Any) -> dict[str, Any]:
    [question] = await asking.begin(engine, f"earlier__{tool}", **(arguments or {"city": "Bonn"}))
    return question


@promise("a question in the middle of a call reaches its person, who answers at any engine")
async def test_an_answer_at_another_engine(place: Place, redis_url: str, asking: Asking, tmp_path: Path) -> None:
    async with served(tmp_path) as config, working(redis_url, config), place.engines() as (here, there):
        await wait_until(lambda: here.offers(10), 90, what="the tools")
        question = await begun(asking, here)
        assert (question["kind"], question["message"]) == ("form", "When to Bonn?")
        answer = {"action": "accept", "content": {"day": "2026-11-26"}}
        assert (await asking.answer(there, question, **answer))[0] == 200
        events = await asking.ended(there)
    assert statuses(events, "question") == ["asked", "answered"]
    assert result(events)["result"]["text"].startswith("accept {'day': '2026-11-26', 'seats': 2}"), "with its default"


@promise("Stop and an expiry answer a question in the middle of a call with cancel, and cancel the call")
async def test_stop(engine: Engine, asking: Asking, tmp_path: Path) -> None:
    question = await begun(asking, engine)
    assert (await engine.client.post(f"/v1/turns/{asking.turn_id}/cancel")).is_success
    assert statuses(await asking.ended(engine), "question")[-1] == "withdrawn"
    assert await traced(tmp_path / "trace", "cancel") == ["book Bonn", "cancel"]
    assert (await asking.answer(engine, question, **ACCEPT))[0] == 409


@promise("Stop and an expiry answer a question in the middle of a call with cancel, and cancel the call")
async def test_nobody_answers(start: Start, redis_url: str, asking: Asking, tmp_path: Path) -> None:
    async with (
        served(tmp_path) as config,
        working(redis_url, config),
        ready(start, question_timeout_seconds=1) as engine,
    ):
        await begun(asking, engine)
        assert result(await asking.ended(engine))["error"]["code"] == "INPUT_EXPIRED"
        assert await traced(tmp_path / "trace", "cancel") == ["book Bonn", "cancel"]


async def test_an_erased_conversation(engine: Engine, asking: Asking, tmp_path: Path) -> None:
    await begun(asking, engine)
    assert (await engine.client.delete("/v1/me/data")).is_success
    assert await traced(tmp_path / "trace", "cancel") == ["book Bonn", "cancel"]


@promise("a question in the middle of a call is withdrawn when its session ends, and the crash table ends the call")
async def test_the_child_dies(engine: Engine, asking: Asking, earlier: Earlier) -> None:
    question = await begun(asking, engine)
    await earlier.begin("die")
    events = await asking.ended(engine)
    assert statuses(events, "question") == ["asked", "withdrawn"]
    assert result(events)["error"]["code"] == "OUTCOME_UNKNOWN"
    assert (await asking.answer(engine, question, **ACCEPT))[0] == 409


@exhaustive("a worker of its own: the test above ends the same session")
@promise("a question in the middle of a call is withdrawn when its session ends, and the crash table ends the call")
async def test_a_call_that_may_run_again_asks_again(
    start: Start, redis_url: str, asking: Asking, earlier: Earlier, tmp_path: Path
) -> None:
    tools = {"book": {"executionClass": "repeatable"}}
    async with served(tmp_path, tools=tools) as config, killable(redis_url, config), ready(start) as engine:
        first = await begun(asking, engine)
        await earlier.begin("die")
        [second] = await asking.asked(engine, but=(first["questionId"],))
        assert (await asking.answer(engine, second, **ACCEPT))[0] == 200
        events = await asking.ended(engine)
    assert "accept" in result(events)["result"]["text"]
    assert [each for each in statuses(events, "question") if each != "asked"] == ["withdrawn", "answered"]


@promise("a question in the middle of a call is withdrawn when its worker dies, and the crash table ends the call")
async def test_the_worker_is_killed(start: Start, redis_url: str, asking: Asking, tmp_path: Path) -> None:
    async with served(tmp_path) as config, killable(redis_url, config) as worker, ready(start) as engine:
        question = await begun(asking, engine)
        worker.kill()
        events = await asking.ended(engine)
        assert (await asking.answer(engine, question, **ACCEPT))[0] == 409
    assert statuses(events, "question") == ["asked", "withdrawn"]
    assert result(events)["error"]["code"] == "OUTCOME_UNKNOWN"


@promise("a killed worker's questions, answers and sessions go on within fifteen seconds")
@exhaustive("a whole lease")
async def test_a_killed_worker_is_noticed_in_time(
    start: Start, redis_url: str, model: Model, caller: Caller, tmp_path: Path
) -> None:
    async with (
        served(tmp_path, session="conversation") as config,
        killable(redis_url, config, quick=False) as worker,
        ready(start) as engine,
    ):
        model.will_call_with("earlier__echo", {"text": "before"})
        [named, *_] = await engine.chat()
        waits, answered = Asking(model), Asking(model)
        questions = [await begun(each, engine) for each in (waits, answered)]
        async with killable(redis_url, config, quick=False):
            await worker_rows(caller, 2, 120)
            worker.kill()
            killed_at = time.monotonic()
            model.will_call_with("earlier__echo", {"text": "after"})
            again = {"message": "Again", "sessionId": named.data["sessionId"]}
            async with engine.stream("POST", "/v1/chat", json=again) as stream:
                assert (await answered.answer(engine, questions[1], **ACCEPT))[0] == 200
                ends = [await each.ended(engine) for each in (waits, answered)]
                settled = time.monotonic() - killed_at
                events = [event async for event in stream]
                taken = time.monotonic() - killed_at - result(events)["durationMs"] / 1000  # in which its server starts
    assert [statuses(each, "question")[-1] for each in ends] == ["withdrawn", "answered"]
    assert [result(each)["error"]["code"] for each in ends] == ["OUTCOME_UNKNOWN"] * 2
    assert (result(events)["result"]["text"], result(events)["stateLost"]) == ("after", True)
    assert max(settled, taken) <= 15.0


class Announced(PoolDirectory):
    """When workers announced themselves, in milliseconds."""

    def __init__(self) -> None:
        self.at: dict[str, int] = {}

    async def announced(self, own: str) -> int | None:
        return self.at.get(own)


@promise("a question in the middle of a call is withdrawn when its worker dies, and the crash table ends the call")
async def test_a_worker_is_not_silent_because_redis_was_away_or_lost_what_it_announced(caller: Caller) -> None:
    pools, now, steady = Announced(), 10_000, 60.0
    calls = RedisHeldCalls(caller.redis, caller.keys, pools, now_ms=lambda: now, steady_for=lambda: steady)
    pools.at["a"] = 9_000
    assert await calls.silent({"a"}) == {"a": 1.0}
    del pools.at["a"]
    now += 3_000
    assert await calls.silent({"a", "b"}) == {"a": 4.0, "b": 0.0}, "what was known counts, and a new one's time begins"
    now, steady = 80_000, 2.0
    assert await calls.silent({"a", "b"}) == {"a": 2.0, "b": 2.0}


async def test_the_server_takes_its_question_back(engine: Engine, asking: Asking) -> None:
    await begun(asking, engine, "hasty", x=1)
    events = await asking.ended(engine)
    assert statuses(events, "question") == ["asked", "withdrawn"]
    assert result(events)["result"]["text"] == "nobody was quick enough"


@promise("a call whose server wants an address visited first goes on when the server says that it was")
async def test_the_server_says_that_the_address_was_visited(engine: Engine, asking: Asking, earlier: Earlier) -> None:
    question = await begun(asking, engine, "guarded", x=1)
    assert (question["kind"], question["host"]) == ("url", "example.com")
    await earlier.begin("visit", say=True)
    events = await asking.ended(engine)
    assert statuses(events, "question") == ["asked", "answered"]
    assert result(events)["result"]["text"] == "guarded result"


@promise("answers to questions in the middle of a call are nowhere in clear where encryption is on")
async def test_no_answer_is_in_clear(
    start: Start, redis_url: str, redis: Redis, asking: Asking, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (work := tmp_path / "work").mkdir()
    keys = tmp_path / "encryption.keys"
    keys.write_text("n" * 32)
    async with (
        served(work) as config,
        working(redis_url, config, encryption_keys_file=keys),
        ready(start, encryption_keys_file=keys) as engine,
    ):
        question = await begun(asking, engine, city="Canaria")
        content = {"day": "2031-03-17", "seats": 2}
        assert (await asking.answer(engine, question, action="accept", content=content))[0] == 200
        assert "2031-03-17" in result(await asking.ended(engine))["result"]["text"], "the server has it"
        appended = Path(str((await redis.config_get("dir"))["dir"])) / "appendonlydir"
        for canary in ("2031-03-17", "When to Canaria"):
            assert await keys_with(redis, canary) == []
            assert files_with(tmp_path, canary) == []
            assert files_with(appended, canary) == []
            assert canary not in caplog.text
