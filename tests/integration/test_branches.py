"""Branches of a conversation over HTTP: an edited question, another answer, and the path that is shown."""

import base64
from typing import Any

import httpx2
import pytest

from tests.integration.engines import SHORT_LEASES, Engine, Model, Start
from tests.marks import promise
from tests.support.waiting import wait_until


async def sent(engine: Engine, **fields: Any) -> tuple[str, str]:
    """A whole turn: its session and itself."""
    events = await engine.events("POST", "/v1/chat", json=fields)
    assert events[-1].data["reason"] == "stop"
    return events[0].data["sessionId"], events[0].data["turnId"]


async def history(engine: Engine, session_id: str, **params: Any) -> dict[str, Any]:
    answer = await engine.client.get(f"/v1/sessions/{session_id}/messages", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def shown(engine: Engine, session_id: str) -> list[str]:
    """The questions that are shown."""
    return [each["content"] for each in (await history(engine, session_id))["messages"] if each["role"] == "user"]


def questions(model: Model) -> list[str]:
    """What the user said in the last request to the model."""
    return [each["content"] for each in model.asked[-1]["messages"] if each["role"] == "user"]


async def show(engine: Engine, session_id: str, turn_id: str) -> httpx2.Response:
    return await engine.client.put(f"/v1/sessions/{session_id}/leaf", json={"turnId": turn_id})


@promise("a model sees the path of its turn only, and a page of a path costs as much as the page")
async def test_a_question_is_edited_answered_again_and_each_version_is_shown(engine: Engine, model: Model) -> None:
    session, first = await sent(engine, message="one")
    _, second = await sent(engine, message="two", sessionId=session)
    _, edited = await sent(engine, message="zwei", sessionId=session, parentTurnId=first)
    assert questions(model) == ["one", "zwei"]
    _, again = await sent(engine, sessionId=session, regenerateOf=second)
    assert questions(model) == ["one", "two"]
    _, anew = await sent(engine, message="eins", sessionId=session, parentTurnId="")
    assert questions(model) == ["eins"]
    assert await shown(engine, session) == ["eins"]

    assert (await show(engine, session, first)).json() == {"sessionId": session, "leafTurnId": again}
    found = await history(engine, session)
    assert [(each["turnId"], each["parentTurnId"], each["siblings"]) for each in found["turns"]] == [
        (first, "", [first, anew]),
        (again, first, [second, edited, again]),
    ]
    assert (found["leafTurnId"], found["nextCursor"]) == (again, None)
    await show(engine, session, edited)
    assert await shown(engine, session) == ["one", "zwei"]
    await sent(engine, message="drei", sessionId=session)
    assert questions(model) == ["one", "zwei", "drei"]
    [listed] = (await engine.client.get("/v1/sessions")).json()["sessions"]
    assert listed["leafTurnId"] == (await history(engine, session))["turns"][-1]["turnId"]

    exported = (await engine.client.get("/v1/me/data")).text
    assert all(f'"{turn}"' in exported for turn in (first, second, edited, again, anew))


@promise("every change of a session reaches each browser of its subject, in the order in which it was committed")
async def test_readers_of_events_learn_of_a_branch_and_of_another_path(engine: Engine) -> None:
    session, first = await sent(engine, message="one")
    _, edited = await sent(engine, message="eins", sessionId=session, parentTurnId="")
    async with engine.stream("GET", "/v1/events") as stream:
        await stream.until("tools")
        for leaf in (first, edited):
            await show(engine, session, leaf)
            assert (await stream.until("session")).data["leafTurnId"] == leaf


@pytest.mark.parametrize("number", [0, 1, 3, 999_999_999_999_999])
async def test_a_place_that_no_page_names_is_refused(engine: Engine, number: int) -> None:
    session, _ = await sent(engine, message="one")
    await sent(engine, message="eins", sessionId=session, parentTurnId="")
    place = base64.urlsafe_b64encode(f"m{number}".encode()).decode().rstrip("=")
    answer = await engine.client.get(f"/v1/sessions/{session}/messages", params={"before": place})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "before")


@promise("another engine adopts the turns of an engine that is gone, and the old owner is fenced")
@SHORT_LEASES
@pytest.mark.usefixtures("killed")
async def test_the_engine_of_an_edited_question_is_killed_and_the_next_one_answers_its_path(
    start: Start, model: Model, postgres_url: str
) -> None:
    async with start(database_url=postgres_url) as engine:
        session, first = await sent(engine, message="one")
        await sent(engine, message="two", sessionId=session)
        model.held.clear()
        running = await engine.begin("zwei", session, parentTurnId=first)
        await wait_until(lambda: model.open == 1, what="the model's stream")
    async with start(database_url=postgres_url) as engine:
        await wait_until(lambda: len(model.asked) == 4, 30, what="the adoption")
        model.held.set()
        assert (await engine.events("GET", running["eventsUrl"]))[-1].data["reason"] == "stop"
        assert questions(model) == ["one", "zwei"]
        assert await shown(engine, session) == ["one", "zwei"]
