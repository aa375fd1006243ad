"""Messages that wait for the running turn of their session: in order, woken at once, and gone with their clients."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from dialog_engine.chat.turns import TurnTimes
from dialog_engine.model import Turn
from dialog_engine.storage.turns import SqlTurns
from dialog_engine.wiring.times import EngineTimes
from tests.integration.engines import Engine, Model, running_engine, settings, with_times
from tests.marks import promise
from tests.support.servers import LocalServer, embedded_binary
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
def model(model: Model) -> Model:
    """It never comes to an end of its own accord."""
    model.held.clear()
    return model


@pytest.fixture
async def engines(
    tmp_path: Path, redis_url: str, postgres_url: str, model: Model, times: EngineTimes
) -> AsyncGenerator[tuple[Engine, Engine]]:
    """Two engines that share a database."""
    configured = settings(tmp_path, redis_url, model.url, database_url=postgres_url)
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(running_engine(configured, times=times))
        there = await stack.enter_async_context(running_engine(configured, times=times))
        yield here, there


UNPOLLED = EngineTimes(turns=TurnTimes(ask_again=3600))
NO_POLLS = with_times(UNPOLLED)
"""Nothing polls: a message that is not woken waits without end."""


async def begin(engine: Engine, session_id: str, text: str, on_busy: str = "queue") -> httpx2.Response:
    return await engine.client.post(
        f"/v1/sessions/{session_id}/turns", json={"message": text, "onBusy": on_busy}, timeout=60
    )


async def running(engine: Engine) -> tuple[str, str]:
    """A session in which a turn runs, and that turn."""
    session_id = (await engine.client.post("/v1/sessions")).json()["sessionId"]
    return session_id, (await begin(engine, session_id, "first")).json()["turnId"]


class Line:
    """Messages that wait, begun one after the other."""

    def __init__(self, session_id: str, postgres_url: str) -> None:
        self.session_id = session_id
        self.tasks: dict[str, asyncio.Task[httpx2.Response]] = {}
        self._postgres_url = postgres_url

    def __len__(self) -> int:
        with psycopg.connect(self._postgres_url) as connection:
            query = "SELECT count(*) FROM waiting_turns WHERE session_id = %s"
            [count] = connection.execute(query, [self.session_id]).fetchone() or [0]
        return count

    async def join(self, engine: Engine, text: str) -> None:
        """Send a message and wait until it has its place."""
        before = len(self)
        self.tasks[text] = asyncio.create_task(begin(engine, self.session_id, text))
        await wait_until(lambda: len(self) == before + 1, what=f"the place of {text!r}")

    async def next(self) -> tuple[str, str]:
        """The message whose turn begins, and that turn."""
        await asyncio.wait(self.tasks.values(), timeout=10, return_when=asyncio.FIRST_COMPLETED)
        [text] = [text for text, task in self.tasks.items() if task.done()]
        answer = await self.tasks.pop(text)
        assert answer.status_code == 202, answer.text
        return text, answer.json()["turnId"]


@promise("messages that wait for their session are answered in the order in which they came, on all engines")
@NO_POLLS
async def test_they_are_answered_in_the_order_in_which_they_came_wherever_that_was(
    engines: tuple[Engine, Engine], postgres_url: str
) -> None:
    here, there = engines
    session_id, turn_id = await running(here)
    line = Line(session_id, postgres_url)
    for engine, text in ((there, "a"), (here, "b"), (there, "c"), (here, "d")):
        await line.join(engine, text)

    for text in ("a", "b", "c", "d"):
        await here.client.post(f"/v1/turns/{turn_id}/cancel")
        begun, turn_id = await line.next()
        assert begun == text
    await there.client.post(f"/v1/turns/{turn_id}/cancel")
    messages = (await here.client.get(f"/v1/sessions/{session_id}/messages")).json()["messages"]
    assert [each["content"] for each in messages if each["role"] == "user"] == ["first", "a", "b", "c", "d"]


@promise("messages that wait for their session are answered in the order in which they came, on all engines")
@NO_POLLS
async def test_a_message_that_is_queued_during_a_renewal_of_the_lease_keeps_its_place(
    engines: tuple[Engine, Engine], postgres_url: str
) -> None:
    here, there = engines
    session_id, turn_id = await running(here)
    line = Line(session_id, postgres_url)
    with psycopg.connect(postgres_url) as leases, psycopg.connect(postgres_url, autocommit=True) as looking:
        leases.execute("SELECT 1 FROM engines FOR UPDATE")

        def renewals() -> bool:
            query = (
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%INTO engines%'"
            )
            return looking.execute(query).fetchall() == [(2,)]

        await wait_until(renewals, what="a renewal at each engine")
        await line.join(here, "a")
        await line.join(there, "b")
        before = looking.execute("SELECT engine_id, lease_until FROM engines").fetchall()
        leases.commit()

        def renewed() -> bool:
            return not {*before} & {*looking.execute("SELECT engine_id, lease_until FROM engines").fetchall()}

        await wait_until(renewed, what="the renewals")
    assert len(line) == 2
    for text in ("a", "b"):
        await here.client.post(f"/v1/turns/{turn_id}/cancel")
        begun, turn_id = await line.next()
        assert begun == text
    await there.client.post(f"/v1/turns/{turn_id}/cancel")


@promise("one turn at a time per session, at whichever engine it is asked for")
async def test_a_message_that_does_not_wait_overtakes_none_that_does(
    engines: tuple[Engine, Engine], postgres_url: str
) -> None:
    here, there = engines
    session_id, turn_id = await running(here)
    line = Line(session_id, postgres_url)
    await line.join(there, "patient")
    with psycopg.connect(postgres_url) as connection:
        # The moment between the end of a turn and the beginning of the next one.
        connection.execute("UPDATE turns SET status = 'done' WHERE turn_id = %s", [turn_id])
        connection.commit()
        refused = await begin(here, session_id, "impatient", "refuse")
    assert (refused.status_code, refused.json()["code"]) == (409, "TURN_RUNNING")
    assert (await line.next())[0] == "patient"


async def test_a_session_with_a_running_turn_at_another_engine_is_deleted_once_that_is_stopped(
    engines: tuple[Engine, Engine],
) -> None:
    here, there = engines
    session_id, turn_id = await running(here)
    path = f"/v1/sessions/{session_id}"
    refused = await there.client.delete(path)
    assert (refused.status_code, refused.json()["turnId"]) == (409, turn_id)
    assert (await there.client.delete(f"{path}?stop=true")).status_code == 202
    assert (await here.client.get(f"{path}/messages")).status_code == 404


@promise("the place of a message that waits goes with its client, and with the engine at which it waited")
@NO_POLLS
async def test_a_message_whose_client_goes_away_is_not_accepted(
    engines: tuple[Engine, Engine], postgres_url: str
) -> None:
    here, there = engines
    session_id, turn_id = await running(here)
    line = Line(session_id, postgres_url)
    await line.join(there, "gone")
    await line.join(here, "patient")
    line.tasks.pop("gone").cancel()
    await wait_until(lambda: len(line) == 1, what="the end of its place")

    await here.client.post(f"/v1/turns/{turn_id}/cancel")
    text, turn_id = await line.next()
    assert text == "patient"
    await here.client.post(f"/v1/turns/{turn_id}/cancel")
    messages = (await there.client.get(f"/v1/sessions/{session_id}/messages")).json()["messages"]
    assert [each["content"] for each in messages if each["role"] == "user"] == ["first", "patient"]


@promise("the place of a message that waits goes with its client, and with the engine at which it waited")
async def test_a_message_whose_client_goes_away_while_its_turn_begins_is_answered_all_the_same(
    engines: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = engines
    session_id = (await here.client.post("/v1/sessions")).json()["sessionId"]
    commit, committed, go_on = SqlTurns.begin, asyncio.Event(), asyncio.Event()

    async def slow_begin(turns: SqlTurns, turn: Turn, text: str, **options: Any) -> None:
        await commit(turns, turn, text, **options)
        committed.set()
        await go_on.wait()

    monkeypatch.setattr(SqlTurns, "begin", slow_begin)
    gone = asyncio.create_task(begin(here, session_id, "gone"))
    await committed.wait()
    gone.cancel()
    go_on.set()

    async def running_turn() -> str | None:
        return (await there.client.get(f"/v1/sessions/{session_id}/messages")).json()["runningTurnId"]

    turn_id = await wait_until(running_turn, what="the turn")
    await there.client.post(f"/v1/turns/{turn_id}/cancel")
    assert (await begin(there, session_id, "next", "refuse")).status_code == 202


@promise("the place of a message that waits goes with its client, and with the engine at which it waited")
async def test_a_waiting_message_ends_with_its_engine(
    engines: tuple[Engine, Engine], postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = engines
    session_id, turn_id = await running(here)
    line = Line(session_id, postgres_url)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        # What an engine left that went down in good order while a message waited there.
        connection.execute("INSERT INTO engines VALUES ('gone', 0, 'x', 0)")
        connection.execute(
            "INSERT INTO waiting_turns (turn_id, session_id, engine_id) VALUES ('t', %s, 'gone')", [session_id]
        )
    line.tasks["next"] = asyncio.create_task(begin(here, session_id, "next"))
    await wait_until(lambda: len(line) == 1, what="the end of the place")

    await here.client.post(f"/v1/turns/{turn_id}/cancel")
    text, turn_id = await line.next()
    assert text == "next"
    await here.client.post(f"/v1/turns/{turn_id}/cancel")


@promise("messages that wait for their session are answered in the order in which they came, on all engines")
@with_times(EngineTimes(turns=TurnTimes(queue=0.2)))
async def test_a_message_that_has_waited_too_long_is_refused(engines: tuple[Engine, Engine], postgres_url: str) -> None:
    here, there = engines
    session_id, turn_id = await running(here)
    answer = await begin(there, session_id, "too late")
    assert (answer.status_code, answer.json()["code"], answer.json()["turnId"]) == (409, "TURN_RUNNING", turn_id)
    assert "has waited for 0.2 seconds" in answer.json()["detail"]
    assert len(Line(session_id, postgres_url)) == 0


async def test_the_chat_stream_waits_as_well(engines: tuple[Engine, Engine], postgres_url: str) -> None:
    here, _ = engines
    session_id, turn_id = await running(here)
    body = {"message": "next", "sessionId": session_id, "onBusy": "queue"}
    reading = asyncio.create_task(here.events("POST", "/v1/chat", json=body))
    await wait_until(lambda: len(Line(session_id, postgres_url)) == 1)
    assert "dialog_messages_queued 1.0" in (await here.client.get("/metrics")).text
    await here.client.post(f"/v1/turns/{turn_id}/cancel")

    async def answered() -> bool:
        session = (await here.client.get(f"/v1/sessions/{session_id}/messages")).json()
        return session["runningTurnId"] not in (None, turn_id)

    await wait_until(answered, what="the next turn")
    next_turn = (await here.client.get(f"/v1/sessions/{session_id}/messages")).json()["runningTurnId"]
    assert "dialog_event_streams 1.0" in (await here.client.get("/metrics")).text
    await here.client.post(f"/v1/turns/{next_turn}/cancel")
    assert (await reading)[-1].data["reason"] == "cancelled"
    assert "dialog_messages_queued 0.0" in (await here.client.get("/metrics")).text
    assert "dialog_event_streams 0.0" in (await here.client.get("/metrics")).text


@promise("messages that wait for their session are answered in the order in which they came, on all engines")
async def test_the_order_holds_while_redis_is_away(tmp_path: Path, model: Model) -> None:
    (tmp_path / "redis").mkdir()
    redis = LocalServer(embedded_binary(), tmp_path / "redis")
    redis.start()
    try:
        async with running_engine(settings(tmp_path / "here", redis.url, model.url), times=UNPOLLED) as here:
            session_id, turn_id = await running(here)
            redis.kill()

            async def waiting(number: int) -> bool:
                return f"dialog_messages_queued {number}.0" in (await here.client.get("/metrics")).text

            line = Line(session_id, "")
            for number, text in enumerate(("a", "b"), 1):
                line.tasks[text] = asyncio.create_task(begin(here, session_id, text))
                await wait_until(lambda number=number: waiting(number), 20, what=f"the place of {text!r}")
            for text in ("a", "b"):
                await here.client.post(f"/v1/turns/{turn_id}/cancel")
                begun, turn_id = await line.next()
                assert begun == text
    finally:
        redis.stop()


async def test_a_waiting_message_is_refused_at_once_when_its_engine_shuts_down(
    tmp_path: Path, redis_url: str, model: Model
) -> None:
    configured = settings(tmp_path, redis_url, model.url, shutdown_grace_seconds=10)
    async with httpx2.AsyncClient(timeout=30, trust_env=False) as client:
        async with running_engine(configured) as engine:
            session_id = (await engine.client.post("/v1/sessions")).json()["sessionId"]
            await engine.client.post(f"/v1/sessions/{session_id}/turns", json={"message": "first"})
            body = {"message": "next", "sessionId": session_id, "onBusy": "queue"}
            waiting = asyncio.create_task(client.post(f"{engine.url}/v1/chat", json=body))

            async def queued() -> bool:
                return "dialog_messages_queued 1.0" in (await engine.client.get("/metrics")).text

            await wait_until(queued, what="a message that waits")

            async def ends_first() -> None:
                await waiting
                model.held.set()  # the first turn runs until the message is refused

            ends = asyncio.create_task(ends_first())
        await ends
    answer = waiting.result()
    assert (answer.status_code, answer.json()["code"]) == (503, "ENGINE_STOPPING")
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["retry-after"]) > 0
