"""Questions that end without an answer, or with one of several: with real engines, workers, servers and files."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dialog_engine.identity.api_keys import add_key, revoke_key
from dialog_engine.operators import commands
from dialog_engine.wiring.times import EngineTimes
from tests.integration.engines import Engine, Event, Model, Start, with_times
from tests.integration.test_parked_turns import reading
from tests.integration.test_questions import Asking, ready, result, statuses
from tests.integration.test_replicas import Place, place
from tests.integration.test_worker_questions import ran, servers
from tests.marks import exhaustive, promise
from tests.support.waiting import wait_until
from tests.support.working import working

__all__ = ["place"]
RIGHTS = '[[allow]]\nsubjects = ["ann"]\ntools = ["{}"]\n'


@dataclass
class Parked(Asking):
    """A parked turn whose call waits for the answer to a question, at an engine with a worker."""

    engine: Engine
    folder: Path
    model: Model
    key_id: str
    question: dict[str, Any]
    turn_id: str = ""

    def __post_init__(self) -> None:
        Asking.__init__(self, self.model)

    async def wait(self) -> None:
        [self.question] = await self.begin(self.engine)
        await self.parks(self.engine)

    async def parks(self, engine: Engine) -> None:
        async def is_parked() -> bool:
            return (await engine.client.get(f"/v1/turns/{self.turn_id}")).json().get("parked", False)

        await wait_until(is_parked, 30, what="the parked turn")


def servers_with(folder: Path, **tools: Any) -> Path:
    """Two servers that ask; these options of the tools of the first."""
    path = servers(folder)
    entries = json.loads(path.read_text())["mcpServers"]
    entries["other"] = dict(entries["asking"])
    entries["asking"] = entries["asking"] | {"callstream": {"trust": False, "tools": tools}}
    return write(path, entries)


def write(path: Path, entries: dict[str, Any]) -> Path:
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"mcpServers": entries}))
    return new.replace(path)


@pytest.fixture
async def parked(start: Start, redis_url: str, model: Model, tmp_path: Path) -> AsyncGenerator[Parked]:
    entry, key = add_key(tmp_path / "keys", "ann", ["user"], None)
    _, own = add_key(tmp_path / "keys", "ann", ["user", "operator"], None)
    rights = tmp_path / "rights.toml"
    rights.write_text(RIGHTS.format("*/*"))
    files = {"api_keys_file": tmp_path / "keys", "rights_file": rights}
    async with working(redis_url, servers_with(tmp_path)), start(**files) as engine:
        engine.client.headers["authorization"] = f"Bearer {key}"
        await wait_until(lambda: engine.offers(18), 60, what="the tools")
        asking = Parked(engine, tmp_path, model, entry.id, {})
        await asking.wait()
        engine.client.headers["authorization"] = f"Bearer {own}"
        yield asking


def ended(events: list[Event]) -> tuple[str, str]:
    """How the last question ended, and why."""
    flat = [each for event in events for each in event.data.get("events", [{"data": event.data}])]
    last = [each["data"] for each in flat if each["data"].get("type") == "question"][-1]
    return last["status"], last.get("reason", "")


@promise("Stop, an expiry, a lost right and a removed tool withdraw a server's question, and say why")
@with_times(EngineTimes(gone=0.5))
@pytest.mark.parametrize(
    "removed",
    [
        *(pytest.param(each, marks=exhaustive("the same for another reason")) for each in ("key", "server")),
        "right",
        "tool",
        "stopped",
    ],
)
async def test_a_question_of_a_parked_turn_is_withdrawn_and_says_why(parked: Parked, removed: str) -> None:
    entries = json.loads((parked.folder / "mcp.json").read_text())["mcpServers"]
    match removed:
        case "key":
            assert revoke_key(parked.folder / "keys", parked.key_id)
            why, code = "the key or token that sent this message was revoked", "CANCELLED"
        case "right":
            (parked.folder / "rights.toml").write_text(RIGHTS.format("other/*"))
            why, code = "the right to its tool was lost", "PERMISSION_DENIED"
        case "stopped":
            assert await parked.engine.status("POST", f"/v1/turns/{parked.turn_id}/cancel") < 300
            why, code = "the turn was stopped", "CANCELLED"
        case _:
            if removed == "server":
                del entries["asking"]
            else:
                entries["asking"]["callstream"]["tools"] = {"book": {"name": "reserve"}}
            write(parked.folder / "mcp.json", entries)
            why, code = "its server or its tool was removed", "TOOL_NOT_FOUND"
    events = await parked.ended(parked.engine)
    assert ended(events) == ("withdrawn", why)
    assert result(events)["error"]["code"] == code
    assert (await parked.answer(parked.engine, parked.question))[0] == 409
    assert (await parked.engine.client.get("/v1/me/pending")).json()["questions"] == []
    assert await parked.engine.metric('dialog_questions_total{status="withdrawn"} 1.0')
    assert ran(parked.folder) == ["book None"], "the server is sent nothing"


@promise("Stop, an expiry, a lost right and a removed tool withdraw a server's question, and say why")
async def test_a_deleted_session_withdraws_its_question(parked: Parked) -> None:
    state = (await parked.engine.client.get(f"/v1/turns/{parked.turn_id}")).json()
    assert await parked.engine.status("DELETE", f"/v1/sessions/{state['sessionId']}?stop=true") < 300
    assert (await parked.answer(parked.engine, parked.question))[0] == 404
    assert await parked.engine.metric('dialog_questions_total{status="withdrawn"} 1.0')
    assert ran(parked.folder) == ["book None"]


@promise("a message may decline what a turn asks, and begins after it")
async def test_a_message_in_its_place_declines_the_question(
    parked: Parked, redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = (await parked.engine.client.get(f"/v1/turns/{parked.turn_id}")).json()
    path = f"/v1/sessions/{state['sessionId']}/turns"
    refused = await parked.engine.client.post(path, json={"message": "This instead"})
    assert refused.json()["waitsFor"][0]["questionId"] == parked.question["questionId"]
    sent = await parked.engine.client.post(path, json={"message": "This instead", "onOpenQuestion": "decline"})
    assert sent.json()["status"] == "waiting"
    events = await parked.ended(parked.engine)
    assert ended(events) == ("declined", "the user sent another message instead")
    assert events[-1].data["reason"] == "cancelled"
    assert (await parked.answer(parked.engine, parked.question, action="decline"))[0] == 200
    assert (await parked.engine.events("GET", sent.json()["eventsUrl"]))[-1].name == "done"
    assert ran(parked.folder) == ["book None"]
    monkeypatch.setenv("OUTBOX_PATH", str(parked.folder / "engine.sqlite3"))
    monkeypatch.setenv("REDIS_URL", redis_url)
    assert await asyncio.to_thread(commands.run, ["trace", parked.question["correlationId"]]) == 0
    shown = capsys.readouterr().out
    assert "server asking asked 1 questions in round 1, open until" in shown
    assert "question 1 of round 1 was declined: the user sent another message instead" in shown


@promise("one answer of several is shown at once, to every reader and after a reload")
async def test_one_answer_of_two(place: Place, redis_url: str, model: Model, tmp_path: Path) -> None:
    asking = Parked.__new__(Parked)
    Asking.__init__(asking, model)
    async with working(redis_url, servers(tmp_path)), place.engines() as (here, there):
        for engine in (here, there):
            await wait_until(lambda engine=engine: engine.offers(9), 60, what="the tools")
        when, where = await asking.begin(here, "asking__twice", x=1)
        await asking.parks(here)
        at = f"/v1/turns/{asking.turn_id}/events"
        async with reading(here, at) as one, reading(there, at) as other:
            assert (await asking.answer(there, where, action="accept"))[0] == 200
            for events in (one, other):
                await wait_until(lambda events=events: "answered" in statuses(events, "question"), 30, what="it")
            await asking.parks(here)
            async with here.stream("GET", at) as again:
                seen = [event async for event in until_waiting(again, 2)]
            assert statuses(seen, "question") == ["asked", "asked", "answered"]
            assert seen[-1].data["questions"] == 1
            assert await asking.asked(there) == [when]
            assert (await asking.answer(here, where, action="decline"))[0] == 409
            assert (await asking.answer(here, when))[0] == 200
            [sure] = await asking.asked(here, but=(when["questionId"],))
            assert (await asking.answer(there, sure, action="cancel"))[0] == 200
    assert ran(tmp_path)[:2] == ["twice None", "twice one"]


async def until_waiting(stream: Any, times: int) -> AsyncGenerator[Event]:
    """The events up to the one that says for the last of so many times that the turn waits."""
    async for event in stream:
        yield event
        times -= event.data.get("type") == "waiting"
        if not times:
            return


@promise("while an engine of an earlier release lives no question is declared and nobody is asked")
async def test_an_engine_of_an_earlier_release(start: Start, redis_url: str, model: Model, tmp_path: Path) -> None:
    def old(statement: str) -> None:
        with closing(sqlite3.connect(tmp_path / "engine.sqlite3")) as store, store:
            store.execute(statement)

    async with working(redis_url, servers(tmp_path)):
        async with start():
            old("INSERT INTO engines VALUES ('old', 9999999999999, '0.1.7', 0)")
        async with ready(start) as engine:
            model.will_call_with("asking__book", {"city": "Bonn"})
            events = await engine.chat("Book it")
            assert result(events)["error"]["code"] == "INPUT_REFUSED"
            assert statuses(events, "question") == []
            old("DELETE FROM engines WHERE engine_id = 'old'")
        async with ready(start) as engine:
            assert await Asking(model).begin(engine)
