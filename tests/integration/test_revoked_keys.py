"""What a key has begun when it is revoked: turns that run end, with what waits in them for approval, and a message that
waits is held."""

import asyncio
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dialog_engine.chat.times import TurnTimes
from dialog_engine.identity.api_keys import add_key, revoke_key
from dialog_engine.wiring.times import EngineTimes
from tests.integration.engines import Engine, Event, Model, publish, running_engine, settings
from tests.integration.test_approvals import DELETE, requested
from tests.marks import promise
from tests.support.waiting import wait_until

REASON = "the key or token that sent this message was revoked"


@dataclass
class Place:
    """Engines of one store, each with its copy of the file of keys. `stolen` and `own` are keys of one person."""

    folder: Path
    redis_url: str
    model: Model
    changes: dict[str, Any]
    stolen: dict[str, str] = field(default_factory=dict[str, str])
    own: dict[str, str] = field(default_factory=dict[str, str])
    stolen_id: str = ""

    def __post_init__(self) -> None:
        entry, stolen = add_key(self.folder / "keys", "ann", ["user"], None)
        _, own = add_key(self.folder / "keys", "ann", ["user", "operator"], None)
        self.stolen, self.own = ({"authorization": f"Bearer {key}"} for key in (stolen, own))
        self.stolen_id = entry.id

    @asynccontextmanager
    async def engine(self, name: str = "here", times: EngineTimes = EngineTimes()) -> AsyncGenerator[Engine]:
        """An engine that offers the tool. Its client sends the key `own`."""
        keys = self.folder / name
        if not keys.exists():
            shutil.copy(self.folder / "keys", keys)
        configured = settings(self.folder, self.redis_url, self.model.url, api_keys_file=keys, **self.changes)
        async with running_engine(configured, times=times) as engine:
            engine.client.headers.update(self.own)
            await wait_until(engine.offers, what="the tool")
            yield engine

    def revoke(self, *names: str) -> None:
        """Revoke the stolen key in the files of these engines."""
        for name in names:
            assert revoke_key(self.folder / name, self.stolen_id)

    async def asked(self, engine: Engine) -> tuple[str, dict[str, Any]]:
        """A turn of the stolen key that waits for approval, and the question."""
        self.model.will_call(DELETE.name)
        async with engine.stream("POST", "/v1/chat", json={"message": "Delete it"}, headers=self.stolen) as stream:
            turn_id = stream.response.headers["x-turn-id"]
            async for event in stream:
                if event.data.get("status") == "asked":
                    return turn_id, event.data
        raise AssertionError("it was not asked")


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, redis_url: str, model: Model) -> Place:
    """On a file, or on a PostgreSQL where the test says so."""
    publish(redis_url, DELETE)
    changes = {"database_url": request.getfixturevalue("postgres_url")} if hasattr(request, "param") else {}
    return Place(tmp_path, redis_url, model, changes)


UNCHECKED = EngineTimes(turns=TurnTimes(check=3600))
"""No engine looks by itself whether the keys of its turns are revoked."""

on_postgres = pytest.mark.parametrize("place", ["postgres"], indirect=True)


def is_withdrawn(events: list[Event]) -> bool:
    """Whether these are the events of a turn that has ended with its key, with its call not run."""
    [call] = [event.data for event in events if event.data.get("status") == "cancelled"]
    error, done = events[-2].data, events[-1].data
    assert call["error"]["message"] == f"{REASON} while this call waited for approval: it was not run"
    return (error["code"], error["message"], done["reason"]) == ("CREDENTIAL_REVOKED", REASON, "error")


async def test_a_question_is_withdrawn_with_the_key_that_began_its_turn(place: Place) -> None:
    """It waited for its approval, which another key of the person could give."""
    async with place.engine() as engine:
        turn_id, _ = await place.asked(engine)
        place.revoke("here")
        async with asyncio.timeout(10):
            assert is_withdrawn(await engine.events("GET", f"/v1/turns/{turn_id}/events"))
        assert (await engine.client.get(f"/v1/turns/{turn_id}")).json()["status"] == "failed"
        assert requested(place.redis_url) == []
        assert (await engine.chat())[-1].data["reason"] == "stop", "of another key"


async def test_a_question_of_a_revoked_key_cannot_be_approved_before_its_turn_is_ended(place: Place) -> None:
    async with place.engine(times=UNCHECKED) as engine:
        turn_id, question = await place.asked(engine)
        place.revoke("here")
        await wait_until(lambda: refuses(engine, place.stolen), what="the end of the key")
        path = f"/v1/turns/{turn_id}/approvals/{question['toolCallId']}"
        answer = await engine.client.post(path, json={"decision": "approve", "hash": question["hash"]})
        assert (answer.status_code, answer.json()["code"]) == (409, "APPROVAL_DECIDED")
        assert REASON in answer.json()["detail"]
        assert requested(place.redis_url) == []
        await engine.client.post(f"/v1/turns/{turn_id}/cancel")


async def refuses(engine: Engine, headers: dict[str, str]) -> bool:
    return (await engine.client.get("/v1/me", headers=headers)).status_code == 401


@on_postgres
async def test_a_turn_that_is_adopted_or_resumed_after_its_key_was_revoked_ends_at_once(place: Place) -> None:
    async with place.engine(times=UNCHECKED) as engine:
        turn_id, _ = await place.asked(engine)
    requests = len(place.model.asked)
    place.revoke("keys")
    async with place.engine("there", UNCHECKED) as engine, asyncio.timeout(20):
        assert is_withdrawn(await engine.events("GET", f"/v1/turns/{turn_id}/events"))
    assert len(place.model.asked) == requests
    assert requested(place.redis_url) == []


@promise("a message that waits begins only with the rights that its sender has then, and is held otherwise")
@on_postgres
async def test_a_waiting_message_of_a_revoked_key_is_held_until_another_key_sends_it(place: Place) -> None:
    place.model.held.clear()
    async with place.engine("here") as here, place.engine("there") as there:
        session = (await here.client.post("/v1/sessions")).json()["sessionId"]
        path, queued = f"/v1/sessions/{session}/turns", {"message": "Stolen", "onBusy": "queue"}
        await here.client.post(path, json={"message": "First"})
        sent = (await there.client.post(path, json=queued, headers=place.stolen)).json()
        assert sent["status"] == "waiting"
        place.revoke("here", "there")
        for engine in (here, there):
            await wait_until(lambda engine=engine: refuses(engine, place.stolen), what="the end of the key")
        place.model.held.set()

        async def held() -> bool:
            return (await there.client.get(f"/v1/turns/{sent['turnId']}")).json()["held"] == "CREDENTIAL_REVOKED"

        await wait_until(held, what="its hold")
        assert len(place.model.asked) == 1
        assert (await there.client.post(f"/v1/turns/{sent['turnId']}/send")).json()["status"] == "running"
        assert (await here.events("GET", sent["eventsUrl"]))[-1].data["reason"] == "stop"
        assert place.model.asked[1]["messages"][-1]["content"] == "Stolen"
