"""Approvals with real storage, Redis and HTTP: they survive restarts, and any engine accepts one decision."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import psycopg
import pytest
from redis import Redis as SyncRedis

from dialog_engine.peers.control import ControlPublisher
from plugins_contract.catalog import ApprovalPolicy
from plugins_contract.keys import Keys
from tests.integration.engines import Engine, Event, Model, Start, publish
from tests.marks import promise
from tests.support.fakes.worker import tool
from tests.support.servers import LocalServer
from tests.support.waiting import wait_until

KEYS = Keys()
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
DELETE = tool("files__delete", SCHEMA, title="Delete", approval=ApprovalPolicy.ALWAYS)


@pytest.fixture
def offering(start: Start, redis_url: str) -> Start:
    """Engines that offer the tool."""
    publish(redis_url, DELETE)

    @asynccontextmanager
    async def started(**changes: Any) -> AsyncGenerator[Engine]:
        async with start(**changes) as engine:
            await wait_until(engine.offers, what="the tool")
            yield engine

    return started


@pytest.fixture
async def engine(offering: Start) -> AsyncGenerator[Engine]:
    async with offering() as engine:
        yield engine


class Waiting:
    """A turn that waits for approval, followed by a client."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.events: list[Event] = []
        self.turn_id = ""

    async def begin(self, engine: Engine) -> dict[str, Any]:
        """Begin it. Returns the question."""
        self._model.will_call(DELETE.name)
        self._model.will_say("So be it.")
        self.turn_id = (await engine.begin("Delete it"))["turnId"]
        return await self.asked(engine)

    async def asked(self, engine: Engine) -> dict[str, Any]:
        """The question as its readers get it."""
        async with engine.stream("GET", f"/v1/turns/{self.turn_id}/events") as stream:
            async for event in stream:
                updates = (
                    [each["data"] for each in event.data.get("events", ())] if event.name == "reset" else [event.data]
                )
                for data in updates:
                    if data.get("type") == "approval" and data["status"] == "asked":
                        return data
        raise AssertionError("it was not asked")

    async def decide(self, engine: Engine, call_id: str, **decision: Any) -> tuple[int, dict[str, Any]]:
        """Give a decision: status and body of the answer."""
        answer = await engine.client.post(f"/v1/turns/{self.turn_id}/approvals/{call_id}", json=decision)
        return answer.status_code, answer.json()

    async def run_shielded(self, engine: Engine) -> list[Event]:
        return await engine.events("GET", f"/v1/turns/{self.turn_id}/events")


@pytest.fixture
def waiting(model: Model) -> Waiting:
    return Waiting(model)


def controls(events: list[Event], kind: str) -> list[dict[str, Any]]:
    return [event.data for event in events if event.name == "control" and event.data["type"] == kind]


def statuses(events: list[Event], kind: str) -> list[str]:
    return [data["status"] for data in controls(events, kind)]


def requested(redis_url: str) -> list[dict[str, Any]]:
    """The tool calls that workers can see."""
    with SyncRedis.from_url(redis_url) as redis:
        entries: Any = redis.xrange(KEYS.requests)
        return [msgspec.json.decode(fields[b"event"]) for _, fields in entries]


async def calls_of(engine: Engine, question: dict[str, Any]) -> list[dict[str, Any]]:
    [session, *_] = (await engine.client.get("/v1/sessions")).json()["sessions"]
    messages = (await engine.client.get(f"/v1/sessions/{session['sessionId']}/messages")).json()["messages"]
    return [call for message in messages for call in message["toolCalls"]]


@promise("a call that no worker ran says how long it took, and a refused call of a known tool names its server")
async def test_a_refusal_reaches_the_model_with_its_reason(engine: Engine, waiting: Waiting, model: Model) -> None:
    question = await waiting.begin(engine)
    assert "dialog_approvals_waiting 1.0" in (await engine.client.get("/metrics")).text
    status, body = await waiting.decide(engine, question["toolCallId"], decision="refuse", reason="Not on a Friday")
    events = await waiting.run_shielded(engine)
    metrics = (await engine.client.get("/metrics")).text

    assert (status, body["status"], body["reason"]) == (200, "refused", "Not on a Friday")
    assert statuses(events, "approval") == ["asked", "refused"]
    assert statuses(events, "tool") == ["pending", "refused"]
    assert controls(events, "tool")[-1]["error"]["code"] == "NOT_APPROVED"
    assert controls(events, "tool")[-1]["durationMs"] > 0
    assert "Not on a Friday" in model.asked[1]["messages"][-1]["content"]
    assert events[-1].data["reason"] == "stop"
    assert "dialog_approvals_waiting 0.0" in metrics
    assert 'dialog_approvals_total{decision="refused"} 1.0' in metrics


@promise("an approval is bound to its arguments, given once, and expires")
async def test_a_second_decision_is_answered_with_the_first(engine: Engine, waiting: Waiting) -> None:
    question = await waiting.begin(engine)
    first = await waiting.decide(engine, question["toolCallId"], decision="refuse", reason="No")
    again = await waiting.decide(engine, question["toolCallId"], decision="refuse", reason="No")
    other = await waiting.decide(engine, question["toolCallId"], decision="approve", hash=question["hash"])
    await waiting.run_shielded(engine)
    late = await waiting.decide(engine, question["toolCallId"], decision="approve", hash=question["hash"])

    assert first == again
    for status, body in (other, late):
        assert (status, body["code"]) == (409, "APPROVAL_DECIDED")
        assert (body["decision"]["status"], body["decision"]["reason"]) == ("refused", "No")


@promise("an approval is bound to its arguments, given once, and expires")
async def test_an_approval_expires_and_a_late_decision_is_refused(
    offering: Start, redis_url: str, waiting: Waiting
) -> None:
    async with offering(approval_timeout_seconds=0.3) as engine:
        question = await waiting.begin(engine)
        events = await waiting.run_shielded(engine)
        status, body = await waiting.decide(engine, question["toolCallId"], decision="approve", hash=question["hash"])

    assert statuses(events, "approval") == ["asked", "expired"]
    assert statuses(events, "tool") == ["pending", "refused"]
    assert (status, body["code"], body["decision"]["status"]) == (409, "APPROVAL_DECIDED", "expired")
    assert requested(redis_url) == []


@promise("destructive tools wait for approval, durably")
async def test_stopping_cancels_a_waiting_call_which_is_never_enqueued(
    engine: Engine, waiting: Waiting, redis_url: str
) -> None:
    question = await waiting.begin(engine)
    await engine.client.post(f"/v1/turns/{waiting.turn_id}/cancel")
    events = await waiting.run_shielded(engine)
    status, body = await waiting.decide(engine, question["toolCallId"], decision="approve", hash=question["hash"])

    assert statuses(events, "tool") == ["pending", "cancelled"]
    assert events[-1].data["reason"] == "cancelled"
    assert (status, body["code"], body["callStatus"]) == (409, "APPROVAL_DECIDED", "cancelled")
    assert requested(redis_url) == []


async def test_a_refused_decision_is_a_problem_document_and_the_question_stays_open(
    engine: Engine, waiting: Waiting
) -> None:
    question = await waiting.begin(engine)
    call, approve = question["toolCallId"], {"decision": "approve", "hash": question["hash"]}
    for turn, each, decision, problem, field in (
        (waiting.turn_id, call, approve | {"hash": "old"}, (409, "APPROVAL_STALE"), None),
        (waiting.turn_id, call, approve | {"arguments": {"path": 5}}, (422, "INVALID_ARGUMENTS"), "arguments.path"),
        (waiting.turn_id, call, approve | {"arguments": {"path": "\ud800"}}, (422, "INVALID_ARGUMENTS"), "arguments"),
        (waiting.turn_id, "nothing", approve, (404, "APPROVAL_NOT_FOUND"), None),
        ("nowhere", call, approve, (404, "TURN_NOT_FOUND"), None),
    ):
        answer = await engine.client.post(
            f"/v1/turns/{turn}/approvals/{each}",
            content=json.dumps(decision),
            headers={"content-type": "application/json"},
        )
        assert (answer.status_code, answer.json()["code"]) == problem, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert field is None or [error["field"] for error in answer.json()["errors"]] == [field]
    assert (await waiting.decide(engine, call, decision="refuse"))[0] == 200


@pytest.fixture
async def engines(offering: Start, postgres_url: str) -> AsyncGenerator[tuple[Engine, Engine]]:
    async with offering(database_url=postgres_url) as here, offering(database_url=postgres_url) as there:
        yield here, there


@promise("any engine takes a decision on the turn of any other, also while Redis is away")
async def test_any_engine_accepts_a_decision_and_the_owner_of_the_turn_continues(
    engines: tuple[Engine, Engine], waiting: Waiting, redis_url: str, postgres_url: str
) -> None:
    here, there = engines
    question = await waiting.begin(here)
    assert requested(redis_url) == []
    status, body = await waiting.decide(there, question["toolCallId"], decision="approve", hash=question["hash"])

    assert (status, body["status"], body["correlationId"]) == (200, "approved", question["correlationId"])
    await wait_until(lambda: requested(redis_url), what="the request")
    [event] = requested(redis_url)
    assert (event["correlationId"], event["arguments"]) == (question["correlationId"], {})
    other = await waiting.decide(there, question["toolCallId"], decision="refuse")
    assert (other[0], other[1]["code"]) == (409, "APPROVAL_DECIDED")
    assert requested(redis_url)[0]["mailbox"] == await mailbox_of(postgres_url), "the answer goes to the turn's owner"
    await here.client.post(f"/v1/turns/{waiting.turn_id}/cancel")


async def mailbox_of(postgres_url: str) -> str:
    """The mailbox of the engine that runs the one running turn."""
    with psycopg.connect(postgres_url) as connection:
        [owner] = connection.execute("SELECT owner FROM turns WHERE status = 'running'").fetchone() or [""]
    return KEYS.mailbox(owner)


@promise("any engine takes a decision on the turn of any other, also while Redis is away")
async def test_a_decision_is_found_by_its_turn_when_no_engine_can_wake_another(
    engines: tuple[Engine, Engine], waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = engines
    question = await waiting.begin(here)

    def unheard(_: ControlPublisher) -> None:
        pass

    monkeypatch.setattr(ControlPublisher, "decision", unheard)
    status, _ = await waiting.decide(there, question["toolCallId"], decision="refuse", reason="No")

    assert status == 200
    events = await waiting.run_shielded(here)
    assert statuses(events, "approval") == ["asked", "refused"]
    assert statuses(events, "tool") == ["pending", "refused"]


@promise("destructive tools wait for approval, durably")
async def test_a_turn_that_waits_is_adopted_with_its_question(
    offering: Start, redis_url: str, postgres_url: str, waiting: Waiting
) -> None:
    async with offering(database_url=postgres_url) as there:
        async with offering(database_url=postgres_url) as here:
            before = await waiting.begin(here)
        after = await waiting.asked(there)
        assert after["hash"] == before["hash"]
        status, _ = await waiting.decide(there, before["correlationId"], decision="approve", hash=before["hash"])
        assert status == 200
        await wait_until(lambda: requested(redis_url), what="the request")
        await there.client.post(f"/v1/turns/{waiting.turn_id}/cancel")


@promise("any engine takes a decision on the turn of any other, also while Redis is away")
async def test_an_approved_call_is_adopted_with_the_arguments_that_were_approved(
    offering: Start, redis_url: str, postgres_url: str, waiting: Waiting
) -> None:
    async with offering(database_url=postgres_url) as there:
        async with offering(database_url=postgres_url) as here:
            question = await waiting.begin(here)
            await waiting.decide(
                here, question["toolCallId"], decision="approve", hash=question["hash"], arguments={"path": "/b"}
            )
            await wait_until(lambda: requested(redis_url), what="the request")
        await wait_until(lambda: running_there(there, waiting.turn_id), what="the adoption")
        await there.client.post(f"/v1/turns/{waiting.turn_id}/cancel")
        [call] = await calls_of(there, question)
        assert call["arguments"] == {"path": "/b"}
        assert call["status"] == "cancelled", "it was open there, and was cancelled at the workers"


async def running_there(engine: Engine, turn_id: str) -> bool:
    async with engine.stream("GET", f"/v1/turns/{turn_id}/events") as stream:
        async for event in stream:
            if int(event.id.split("-")[0]) > 1:
                return True
    return False


@promise("any engine takes a decision on the turn of any other, also while Redis is away")
async def test_decisions_are_accepted_while_redis_is_away(
    start: Start, own_redis: LocalServer, waiting: Waiting
) -> None:
    publish(own_redis.url, DELETE)
    async with start(redis_url=own_redis.url) as engine:
        await wait_until(engine.offers, what="the tool")
        question = await waiting.begin(engine)
        own_redis.kill()
        status, _ = await waiting.decide(engine, question["toolCallId"], decision="refuse", reason="No")
        assert status == 200
        own_redis.start()
