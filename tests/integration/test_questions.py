"""Questions of a real MCP server, from the tool to the person and back, with real engines, workers and Redis."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis as SyncRedis
from redis.asyncio import Redis

from tests.integration.engines import SHORT_LEASES, Engine, Event, Model, Start
from tests.integration.test_replicas import Place, place
from tests.integration.test_worker_questions import ran, servers
from tests.marks import promise
from tests.support.hidden import files_with, keys_with
from tests.support.waiting import wait_until
from tests.support.working import working

__all__ = ["place"]
WHEN: dict[str, Any] = {"action": "accept", "content": {"day": "2026-11-26", "seats": 3}}


class Asking:
    """A turn whose call of the asking server's tool waits for a person."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.turn_id = ""
        self.headers: dict[str, str] = {}

    async def begin(self, engine: Engine, tool: str = "asking__book", **arguments: Any) -> list[dict[str, Any]]:
        """Begin it. Returns the questions that it waits for."""
        self._model.will_call_with(tool, arguments or {"city": "Bonn"})
        self.turn_id = (await engine.begin("Book it"))["turnId"]
        return await self.asked(engine)

    async def asked(self, engine: Engine, but: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        async def pending() -> list[dict[str, Any]]:
            listed = (await engine.client.get("/v1/me/pending")).json()["questions"]
            return [each for each in listed if each["turnId"] == self.turn_id and each["questionId"] not in but]

        return await wait_until(pending, 30, what="a question")

    async def answer(self, engine: Engine, question: dict[str, Any], **answer: Any) -> tuple[int, dict[str, Any]]:
        path = f"/v1/turns/{self.turn_id}/questions/{question['questionId']}"
        response = await engine.client.post(path, json=answer or WHEN, headers=self.headers)
        return response.status_code, response.json()

    async def ended(self, engine: Engine) -> list[Event]:
        return await engine.events("GET", f"/v1/turns/{self.turn_id}/events")


def statuses(events: list[Event], kind: str) -> list[str]:
    found = list[str]()
    for event in events:
        inner = [each["data"] for each in event.data.get("events", ())] if event.name == "reset" else [event.data]
        found += [data["status"] for data in inner if data.get("type") == kind]
    return found


def result(events: list[Event]) -> dict[str, Any]:
    return next(e.data for e in reversed(events) if e.data.get("type") == "tool" and "durationMs" in e.data)


@pytest.fixture
def asking(model: Model) -> Asking:
    return Asking(model)


@asynccontextmanager
async def ready(start: Start, **changes: Any) -> AsyncGenerator[Engine]:
    async with start(**changes) as engine:
        await wait_until(lambda: engine.offers(9), 90, what="the tools")
        yield engine


@pytest.fixture
async def engine(start: Start, redis_url: str, tmp_path: Path) -> AsyncGenerator[Engine]:
    async with working(redis_url, servers(tmp_path)), ready(start) as engine:
        yield engine


@promise("a server's question reaches its person as an event, and the answer goes on with the call")
async def test_a_form_is_answered_and_the_call_goes_on(engine: Engine, asking: Asking, tmp_path: Path) -> None:
    [question] = await asking.begin(engine)
    assert question["kind"] == "form"
    assert question["message"] == "When to Bonn?"
    assert question["server"] == "asking"
    assert question["schema"]["required"] == ["day"]

    refused, body = await asking.answer(
        engine, question, action="accept", content={"day": "soon", "seats": 9, "x": "y"}
    )
    assert refused == 422
    assert {each["field"] for each in body["errors"]} == {"content.day", "content.seats", "content.x"}

    [listed] = (await engine.client.get("/v1/sessions")).json()["sessions"]
    assert (listed["awaitsAnswer"], listed["awaitsApproval"]) == (True, False)
    first, answered = await asking.answer(engine, question)
    events = await asking.ended(engine)

    assert (first, answered["status"]) == (200, "answered")
    [listed] = (await engine.client.get("/v1/sessions")).json()["sessions"]
    assert not listed["awaitsAnswer"]
    said = [event.data.get("content") for event in events if event.data.get("type") == "question"]
    assert said == [None, WHEN["content"]]
    assert statuses(events, "question") == ["asked", "answered"]
    assert result(events)["result"]["text"].startswith("accept Bonn {'day': '2026-11-26', 'seats': 3}")
    assert ran(tmp_path) == ["book None", "book canary-state to Bonn accept"]


@promise("the same answer to a server's question twice is accepted once, and another one is refused")
async def test_the_same_answer_twice_and_another_one(engine: Engine, asking: Asking, tmp_path: Path) -> None:
    [question] = await asking.begin(engine)
    asking.headers = {"Idempotency-Key": "k1"}
    both = await asyncio.gather(asking.answer(engine, question), asking.answer(engine, question))
    assert [status for status, _ in both] == [200, 200]
    assert (await asking.answer(engine, question, action="decline"))[0] == 422
    asking.headers.clear()
    assert (await asking.answer(engine, question, action="decline"))[0] == 409
    assert (await asking.answer(engine, {"questionId": "nobody:1:1"}))[0] == 404
    await asking.ended(engine)
    assert (await asking.answer(engine, question))[0] == 200
    assert len(ran(tmp_path)) == 2, "the state is sent once"


async def test_several_questions_at_once_and_one_after_another(engine: Engine, asking: Asking) -> None:
    when, where = await asking.begin(engine, "asking__twice", x=1)
    assert (where["kind"], where["host"]) == ("url", "example.com")
    assert (await asking.answer(engine, where, action="accept"))[0] == 200
    assert (await asking.answer(engine, when))[0] == 200
    [sure] = await asking.asked(engine, but=(when["questionId"], where["questionId"]))
    assert (await asking.answer(engine, sure, action="cancel"))[0] == 200
    events = await asking.ended(engine)
    assert result(events)["result"]["text"] == "two accept accept"
    assert statuses(events, "question").count("asked") == 3


@promise("Stop, an expiry, a lost right and a removed tool withdraw a server's question, and say why")
async def test_stop_ends_the_round_after_an_answer(engine: Engine, asking: Asking, tmp_path: Path) -> None:
    [question] = await asking.begin(engine, city="Nowhere")
    assert (await asking.answer(engine, question))[0] == 200
    await wait_until(lambda: len(ran(tmp_path)) == 2, what="the second round")
    assert (await engine.client.post(f"/v1/turns/{asking.turn_id}/cancel")).is_success
    events = await asking.ended(engine)
    assert events[-1].data["reason"] == "cancelled"
    assert result(events)["status"] == "unknown"


@promise("Stop, an expiry, a lost right and a removed tool withdraw a server's question, and say why")
async def test_nobody_answers(start: Start, redis_url: str, asking: Asking, tmp_path: Path) -> None:
    async with working(redis_url, servers(tmp_path)), ready(start, question_timeout_seconds=1) as engine:
        await asking.begin(engine)
        events = await asking.ended(engine)
    assert statuses(events, "question") == ["asked", "expired"]
    assert result(events)["error"]["code"] == "INPUT_EXPIRED"
    assert ran(tmp_path) == ["book None"]


@promise("an open question outlives Redis' data, its engine and its worker")
async def test_redis_is_wiped_and_engine_and_worker_are_new(
    start: Start, redis_url: str, asking: Asking, tmp_path: Path
) -> None:
    async with working(redis_url, servers(tmp_path)), ready(start) as engine:
        [question] = await asking.begin(engine)
    with SyncRedis.from_url(redis_url) as redis:
        redis.flushall()
    async with working(redis_url, servers(tmp_path)), ready(start) as engine:
        assert (await asking.answer(engine, question))[0] == 200
        events = await asking.ended(engine)
    assert "accept Bonn" in str(result(events))
    assert ran(tmp_path) == ["book None", "book canary-state to Bonn accept"]


@promise("a server's question outlives the kill of any engine at any point, and its answer is sent once")
@SHORT_LEASES
@pytest.mark.usefixtures("killed")
async def test_its_engine_is_killed(
    start: Start, redis_url: str, postgres_url: str, asking: Asking, tmp_path: Path
) -> None:
    async with working(redis_url, servers(tmp_path)), ready(start, database_url=postgres_url) as there:
        async with ready(start, database_url=postgres_url) as here:
            [question] = await asking.begin(here)
        assert (await asking.answer(there, question))[0] == 200
        assert result(await asking.ended(there))["status"] == "succeeded"
    assert ran(tmp_path) == ["book None", "book canary-state to Bonn accept"]


@promise("answers to forms and a server's state are nowhere in clear where encryption is on")
async def test_no_answer_and_no_state_is_in_clear(
    start: Start, redis_url: str, redis: Redis, asking: Asking, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "work").mkdir()
    keys = tmp_path / "encryption.keys"
    keys.write_text("n" * 32)
    config = servers(tmp_path / "work", key="clear")
    async with working(redis_url, config, encryption_keys_file=keys), ready(start, encryption_keys_file=keys) as engine:
        [question] = await asking.begin(engine, city="Canaria")
        content = WHEN["content"] | {"note": "canary-note"}
        assert (await asking.answer(engine, question, action="accept", content=content))[0] == 200
        events = await asking.ended(engine)
        assert "canary-note" in result(events)["result"]["text"], "the server has it"
        appended = Path(str((await redis.config_get("dir"))["dir"])) / "appendonlydir"
        for canary in ("canary-note", "to Canaria"):
            assert await keys_with(redis, canary) == []
            assert files_with(tmp_path, canary) == []
            assert files_with(appended, canary) == []
            assert canary not in caplog.text


@promise("of two engines that take different answers to a server's question at once one wins")
async def test_two_engines_at_once(place: Place, redis_url: str, model: Model, tmp_path: Path) -> None:
    asking = Asking(model)
    async with working(redis_url, servers(tmp_path)), place.engines() as (here, there):
        await wait_until(lambda: here.offers(9), 60, what="the tools")
        await wait_until(lambda: there.offers(9), 60, what="the tools")
        [question] = await asking.begin(here)
        answers = [asking.answer(here, question), asking.answer(there, question, action="decline")]
        both = await asyncio.gather(*answers)
        assert sorted(status for status, _ in both) == [200, 409]
        events = await asking.ended(there)
    won = next(body["status"] for status, body in both if status == 200)
    assert statuses(events, "question")[-1] == won
    assert ran(tmp_path)[1:] == [f"book canary-state to Bonn {'accept' if won == 'answered' else 'decline'}"]
