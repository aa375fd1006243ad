"""Two engines, each with a file of its own, behind any load balancer: whichever is asked, the answer is the same."""

import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis as SyncRedis

from dialog_engine.chat import orphans
from dialog_engine.chat.takeover import MAX_CUT_SHORT
from dialog_engine.model import AssistantMessage, ToolCall, Turn
from dialog_engine.storage.calls import SqliteCalls
from dialog_engine.storage.database import open_database
from dialog_engine.storage.outbox import SqliteOutbox
from dialog_engine.storage.turns import SqliteTurns
from dialog_engine.streams.runs import RedisRuns
from dialog_engine.streams.watch import RedisWatch
from plugins_contract.ids import new_id
from plugins_contract.keys import Keys
from tests.integration.engines import Engine, Model, running_engine, settings
from tests.support.beginnings import begin
from tests.support.servers import LocalServer
from tests.support.twins import Workshop, tool
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
KEYS = Keys()


@asynccontextmanager
async def engine_in(folder: Path, redis_url: str, model: Model, **changes: Any) -> AsyncGenerator[Engine]:
    async with running_engine(settings(folder, redis_url, model.url, **changes)) as engine:
        yield engine


@pytest.fixture
async def engines(tmp_path: Path, redis_url: str, model: Model) -> AsyncGenerator[tuple[Engine, Engine]]:
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(engine_in(tmp_path / "here", redis_url, model))
        there = await stack.enter_async_context(engine_in(tmp_path / "there", redis_url, model))
        yield here, there


async def begun(engine: Engine, text: str = "Hi", session_id: str | None = None, **fields: str) -> dict[str, str]:
    """A turn that runs without a connection."""
    session_id = session_id or (await engine.client.post("/v1/sessions")).json()["sessionId"]
    answer = await engine.client.post(f"/v1/sessions/{session_id}/turns", json={"message": text, **fields})
    assert answer.status_code == 202, answer.text
    return answer.json()


async def said(engine: Engine, session_id: str) -> list[str]:
    """What was said in a session, as an engine tells it."""
    answer = await engine.client.get(f"/v1/sessions/{session_id}/messages")
    assert answer.status_code == 200, answer.text
    return [message["content"] for message in answer.json()["messages"]]


async def status(engine: Engine, turn_id: str) -> str:
    return (await engine.client.get(f"/v1/turns/{turn_id}")).json()["status"]


async def listed(engine: Engine) -> list[dict[str, Any]]:
    return (await engine.client.get("/v1/sessions")).json()["sessions"]


def session_of(events: list[Any]) -> str:
    return events[0].data["sessionId"]


async def test_the_next_turn_of_a_session_can_be_asked_of_any_engine(
    engines: tuple[Engine, Engine], model: Model
) -> None:
    here, there = engines
    model.will_say("One.")
    model.will_say("Two.")
    model.will_say("Three.")
    session_id = session_of(await here.chat("first"))
    await there.chat("second", sessionId=session_id)
    await here.chat("third", sessionId=session_id)

    everything = ["first", "One.", "second", "Two.", "third", "Three."]
    assert await said(here, session_id) == everything
    assert await said(there, session_id) == everything
    ids = [
        [
            each["messageId"]
            for each in (await engine.client.get(f"/v1/sessions/{session_id}/messages")).json()["messages"]
        ]
        for engine in engines
    ]
    assert ids[0] == ids[1] == sorted(set(ids[0]))


async def test_the_model_is_shown_what_was_said_on_the_other_engine(
    engines: tuple[Engine, Engine], model: Model
) -> None:
    here, there = engines
    session_id = session_of(await here.chat("first"))
    await there.chat("second", sessionId=session_id)

    shown = [message["content"] for message in model.asked[-1]["messages"] if message["role"] != "system"]
    assert shown == ["first", "Hello", "second"]


async def test_a_session_is_answered_once_at_a_time_whichever_engine_is_asked(
    engines: tuple[Engine, Engine], model: Model
) -> None:
    here, there = engines
    model.held.clear()
    turn = await begun(here)
    refused = await there.client.post("/v1/chat", json={"message": "Me too", "sessionId": turn["sessionId"]})
    assert refused.status_code == 409
    assert refused.json()["turnId"] == turn["turnId"]

    model.held.set()
    events = await there.events("GET", turn["eventsUrl"])
    assert events[-1].name == "done"
    # Its end was told: the session is free, wherever the next message goes.
    await there.chat("Me too", sessionId=turn["sessionId"])


async def test_a_turn_is_stopped_from_the_other_engine(engines: tuple[Engine, Engine], model: Model) -> None:
    here, there = engines
    model.held.clear()
    turn = await begun(here)
    await wait_until(lambda: model.open == 1, what="the model's stream")
    asked_at = time.monotonic()
    answer = await there.client.post(f"/v1/turns/{turn['turnId']}/cancel")

    assert answer.json() == {"turnId": turn["turnId"], "status": "cancelled"}
    assert time.monotonic() - asked_at < 2.0, "the owner was told at once, not at its next renewal"
    assert await status(here, turn["turnId"]) == "cancelled"
    await wait_until(lambda: model.open == 0, what="the end of the model's stream")


async def test_a_stop_whose_ring_was_lost_is_found_at_the_next_renewal(
    engines: tuple[Engine, Engine], model: Model, redis_url: str
) -> None:
    here, _ = engines
    model.held.clear()
    turn = await begun(here)
    with SyncRedis.from_url(redis_url) as redis:
        redis.hset(KEYS.run(turn["turnId"]), "cancel", "1")

    async def cancelled() -> bool:
        return await status(here, turn["turnId"]) == "cancelled"

    await wait_until(cancelled, 6, what="the end of the turn")


async def test_sessions_are_listed_read_and_deleted_anywhere(engines: tuple[Engine, Engine]) -> None:
    here, there = engines
    events = await here.chat("What is it?")
    session_id, turn_id = session_of(events), events[0].data["turnId"]

    [listed] = (await there.client.get("/v1/sessions")).json()["sessions"]
    assert (listed["sessionId"], listed["title"]) == (session_id, "What is it?")
    assert await status(there, turn_id) == "done"
    assert (await there.events("GET", f"/v1/turns/{turn_id}/events"))[-1].data == events[-1].data

    assert (await there.client.delete(f"/v1/sessions/{session_id}")).status_code == 204
    for engine in engines:
        assert (await engine.client.get("/v1/sessions")).json()["sessions"] == []
        assert (await engine.client.get(f"/v1/sessions/{session_id}/messages")).status_code == 404
        refused = await engine.client.post("/v1/chat", json={"message": "Hi", "sessionId": session_id})
        assert refused.status_code == 404


async def test_what_was_deleted_goes_from_every_file(engines: tuple[Engine, Engine], tmp_path: Path) -> None:
    here, there = engines
    session_id = session_of(await here.chat("Hi"))
    assert await said(there, session_id) == ["Hi", "Hello"]
    await there.client.delete(f"/v1/sessions/{session_id}")

    async def gone() -> bool:
        return (await here.client.get("/v1/sessions")).json()["sessions"] == []

    await wait_until(gone, what="the deletion")


async def test_a_session_of_somebody_else_does_not_exist_on_the_other_engine_either(
    tmp_path: Path, redis_url: str, model: Model
) -> None:
    keys = {"ada": "a key of ada", "eve": "a key of eve"}
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(engine_in(tmp_path / "here", redis_url, model, api_keys=keys))
        there = await stack.enter_async_context(engine_in(tmp_path / "there", redis_url, model, api_keys=keys))
        ada, eve = ({"authorization": f"Bearer {key}"} for key in keys.values())
        session = (await here.client.post("/v1/sessions", headers=ada)).json()["sessionId"]

        assert (await there.client.get(f"/v1/sessions/{session}/messages", headers=ada)).status_code == 200
        assert (await there.client.get(f"/v1/sessions/{session}/messages", headers=eve)).status_code == 404
        assert (await there.client.delete(f"/v1/sessions/{session}", headers=eve)).status_code == 404
        asked = await there.client.post(f"/v1/sessions/{session}/turns", json={"message": "Hi"}, headers=eve)
        assert asked.status_code == 404
        assert (await there.client.get("/v1/sessions", headers=eve)).json()["sessions"] == []


async def test_an_engine_that_goes_down_leaves_its_turns_to_the_other_at_once(
    tmp_path: Path, redis_url: str, model: Model
) -> None:
    model.held.clear()
    async with engine_in(tmp_path / "there", redis_url, model) as there:
        async with engine_in(tmp_path / "here", redis_url, model) as here:
            turn = await begun(here)
            await wait_until(lambda: model.open == 1, what="the model's stream")
        left_at = time.monotonic()
        await wait_until(lambda: model.open == 1, what="the model being asked again")
        assert time.monotonic() - left_at < 5.0
        model.held.set()
        events = await there.events("GET", turn["eventsUrl"])
    assert [event.id.partition("-")[0] for event in events if event.name in ("reset", "done")] == ["2", "2"]


async def test_an_owner_that_was_passed_over_stops_and_ends_nothing(
    engines: tuple[Engine, Engine], model: Model, redis_url: str
) -> None:
    here, _ = engines
    model.held.clear()
    turn = await begun(here)
    await wait_until(lambda: model.open == 1, what="the model's stream")
    with SyncRedis.from_url(redis_url) as redis:
        redis.zadd(KEYS.runs, {turn["turnId"]: 0})  # as if its lease had run out
    await wait_until(lambda: model.open == 2, what="the other engine's request")
    await wait_until(lambda: model.open == 1, 6, what="the end of the first engine's request")
    model.held.set()

    for engine in engines:
        events = await engine.events("GET", turn["eventsUrl"])
        assert [event.name for event in events].count("done") == 1
        assert await said(engine, turn["sessionId"]) == ["Hi", "Hello"]
        assert await status(engine, turn["turnId"]) == "done"


async def test_with_redis_away_a_session_goes_on_where_it_was_and_is_known_everywhere_later(
    tmp_path: Path, own_redis: LocalServer, model: Model
) -> None:
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(engine_in(tmp_path / "here", own_redis.url, model))
        there = await stack.enter_async_context(engine_in(tmp_path / "there", own_redis.url, model))
        session_id = session_of(await here.chat("first"))
        elsewhere = session_of(await there.chat("there"))
        assert await said(here, elsewhere) == ["there", "Hello"]
        own_redis.kill()

        assert (await here.chat("second", sessionId=session_id))[-1].data["reason"] == "stop"
        new = session_of(await here.chat("new"))
        refused = await here.client.post("/v1/chat", json={"message": "Hi", "sessionId": elsewhere})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")

        own_redis.start()

        async def known() -> bool:
            answer = await there.client.get(f"/v1/sessions/{new}/messages")
            return answer.status_code == 200

        await wait_until(known, 15, what="the journal")
        assert await said(there, session_id) == ["first", "Hello", "second", "Hello"]
        assert await said(there, new) == ["new", "Hello"]


async def test_with_redis_away_nobody_says_that_there_is_no_such_thing(
    tmp_path: Path, own_redis: LocalServer, model: Model
) -> None:
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(engine_in(tmp_path / "here", own_redis.url, model))
        there = await stack.enter_async_context(engine_in(tmp_path / "there", own_redis.url, model))
        turn = await begun(here)
        session, one = f"/v1/sessions/{turn['sessionId']}", f"/v1/turns/{turn['turnId']}"
        await here.events("GET", f"{one}/events")
        own_redis.kill()

        # A client that came to the other engine would take 404 for the end of it.
        asked = [("GET", f"{session}/messages"), ("GET", f"{one}/events"), ("GET", one), ("POST", f"{one}/cancel")]
        for method, path in asked:
            refused = await there.client.request(method, path)
            assert (refused.status_code, refused.headers.get("retry-after")) == (503, "5"), path
            assert "not known here" in refused.json()["detail"]
            assert (await here.client.request(method, path)).status_code < 300, path
        refused = await there.client.post(f"{session}/turns", json={"message": "Hi"})
        assert (refused.status_code, "not known here" in refused.json()["detail"]) == (503, True)


async def test_what_redis_lost_is_put_back_by_the_engine_that_runs_the_turn(
    engines: tuple[Engine, Engine], model: Model, redis_url: str
) -> None:
    here, there = engines
    session_id = session_of(await here.chat("first"))
    model.held.clear()
    await begun(here, "second", session_id)
    with SyncRedis.from_url(redis_url) as redis:
        redis.flushall()

    async def back() -> bool:
        answer = await there.client.get(f"/v1/sessions/{session_id}/messages")
        return answer.status_code == 200

    await wait_until(back, 6, what="the copy")
    assert await said(there, session_id) == ["first", "Hello", "second"]
    refused = await there.client.post("/v1/chat", json={"message": "Hi", "sessionId": session_id})
    assert refused.status_code == 409
    model.held.set()


async def test_an_engine_that_knew_a_session_before_redis_lost_it_reads_it_anew(
    engines: tuple[Engine, Engine], redis_url: str
) -> None:
    here, there = engines
    session_id = (await here.client.post("/v1/sessions")).json()["sessionId"]
    await here.chat("first", sessionId=session_id)
    assert await said(there, session_id) == ["first", "Hello"]
    with SyncRedis.from_url(redis_url) as redis:
        redis.flushall()
    # As many changes as the session had seen before, so that a mere count of them would be the same again.
    await there.chat("second", sessionId=session_id)
    assert await said(here, session_id) == ["first", "Hello", "second", "Hello"]


async def known(engine: Engine, session_id: str) -> bool:
    """Whether an engine can tell what was said in a session."""
    return (await engine.client.get(f"/v1/sessions/{session_id}/messages")).status_code == 200


async def test_sessions_in_which_nothing_runs_are_put_back_after_redis_lost_them(
    engines: tuple[Engine, Engine], redis_url: str, model: Model
) -> None:
    here, there = engines
    sessions = [session_of(await here.chat(f"first {n}")) for n in range(12)]
    await here.client.delete(f"/v1/sessions/{sessions[3]}")
    with SyncRedis.from_url(redis_url) as redis:
        await wait_until(lambda: redis.keys(KEYS.seeded("*")), 10, what="the first look")
        redis.flushall()
    for session_id in [*sessions[:3], *sessions[4:]]:
        await wait_until(lambda session_id=session_id: known(there, session_id), 10, what="the session")
    assert not await known(there, sessions[3])
    assert [each["sessionId"] for each in await listed(there)] == [each["sessionId"] for each in await listed(here)]

    await there.chat("second", sessionId=sessions[0])
    assert [each["content"] for each in model.asked[-1]["messages"]][-3:] == ["first 0", "Hello", "second"]
    assert await said(here, sessions[0]) == ["first 0", "Hello", "second", "Hello"]


async def test_what_was_lost_is_put_back_by_whoever_has_it_when_its_engine_is_gone_too(
    tmp_path: Path, redis_url: str, model: Model
) -> None:
    async with engine_in(tmp_path / "there", redis_url, model) as there:
        async with engine_in(tmp_path / "here", redis_url, model) as here:
            session_id = session_of(await here.chat("first"))
            assert await said(there, session_id) == ["first", "Hello"]
        with SyncRedis.from_url(redis_url) as redis:
            redis.flushall()
        async with engine_in(tmp_path / "third", redis_url, model) as third:
            await wait_until(lambda: known(third, session_id), 10, what="the session")
            assert await said(third, session_id) == ["first", "Hello"]


async def left_behind(folder: Path, redis_url: str, model: Model) -> Turn:
    """A turn in the middle of its first answer, whose engine has gone."""
    model.held.clear()
    async with engine_in(folder, redis_url, model) as engine:
        await begun(engine)
        await wait_until(lambda: model.open == 1, what="the model's stream")
    await wait_until(lambda: model.open == 0, what="the end of that stream")
    async with open_database(folder / "engine.sqlite3") as database:
        [turn] = await SqliteTurns(database, lambda _: None).unfinished()
    return turn


async def test_a_call_that_was_committed_and_not_shared_is_never_made_once_another_has_the_turn(
    tmp_path: Path, redis_url: str, model: Model
) -> None:
    turn = await left_behind(tmp_path / "here", redis_url, model)
    # Its last commit before it died: a round of which no other engine has heard.
    call = ToolCall("call_1", new_id(), "job__quick", "{}")
    async with open_database(tmp_path / "here" / "engine.sqlite3") as database:
        request = Workshop().request(turn, call, tool("job__quick"), {})
        await SqliteCalls(database, lambda _: None).add_round(turn, AssistantMessage("", (call,)), [request], {})

    async with engine_in(tmp_path / "there", redis_url, model) as there:
        await wait_until(lambda: model.open == 1, what="the other engine's request")
        async with engine_in(tmp_path / "here", redis_url, model) as here:

            async def forgotten() -> bool:
                return await said(here, turn.session_id) == ["Hi"]

            await wait_until(forgotten, 10, what="what was not shared to be given up")
            model.held.set()
            await there.events("GET", f"/v1/turns/{turn.turn_id}/events")
            assert await said(here, turn.session_id) == await said(there, turn.session_id) == ["Hi", "Hello"]
        async with open_database(tmp_path / "here" / "engine.sqlite3") as database:
            assert await SqliteOutbox(database).calls([call.correlation_id]) == []
    with SyncRedis.from_url(redis_url) as redis:
        assert not redis.exists(KEYS.requests, KEYS.call(call.correlation_id))


async def test_a_turn_that_nobody_knew_of_is_not_answered_when_its_session_has_gone_on(
    tmp_path: Path, redis_url: str, model: Model
) -> None:
    async with engine_in(tmp_path / "here", redis_url, model) as here:
        session_id = (await here.client.post("/v1/sessions")).json()["sessionId"]
    # Its engine died behind the commit of the question, and nobody was told of it.
    async with open_database(tmp_path / "here" / "engine.sqlite3") as database:
        [(subject,)] = await database.read("SELECT subject FROM sessions")
        lost = await begin(SqliteTurns(database, lambda _: None), subject, session_id, "first")

    model.held.clear()
    async with engine_in(tmp_path / "there", redis_url, model) as there:
        await begun(there, "second", session_id)
        async with engine_in(tmp_path / "here", redis_url, model) as here:
            for engine in (here, there):

                async def ended(engine: Engine = engine) -> bool:
                    answer = (await engine.client.get(f"/v1/sessions/{session_id}/messages")).json()
                    return answer["turns"][0].get("error", {}).get("code") == "TURN_OVERTAKEN"

                await wait_until(ended, 10, what="the end of the turn")
            events = await there.events("GET", f"/v1/turns/{lost.turn_id}/events")
            assert [event.data.get("code") for event in events[-2:]] == ["TURN_OVERTAKEN", None]
            model.held.set()
            assert [asked["messages"][-1]["content"] for asked in model.asked] == ["second"]

            async def same() -> bool:
                paths = f"/v1/sessions/{session_id}/messages"
                told = [(await engine.client.get(paths)).json() for engine in (here, there)]
                return told[0] == told[1] and [turn["status"] for turn in told[0]["turns"]] == ["failed", "done"]

            await wait_until(same, 10, what="both engines to tell the same")
            assert await said(here, session_id) == ["first", "second", "Hello"]


async def test_a_turn_whose_engines_die_of_it_is_given_up(
    tmp_path: Path, redis_url: str, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def steady(_: RedisWatch) -> float:
        return 60.0

    monkeypatch.setattr(RedisWatch, "steady_for", steady)
    turn = await left_behind(tmp_path / "here", redis_url, model)
    asked, key = len(model.asked), KEYS.run(turn.turn_id)
    with SyncRedis.from_url(redis_url) as redis:
        for life in range(1, MAX_CUT_SHORT + 1):
            async with engine_in(tmp_path / f"engine-{life}", redis_url, model):
                # Its lease runs out: what died gave nothing up.
                redis.zadd(KEYS.runs, {turn.turn_id: 1})
                await wait_until(lambda life=life: redis.hget(key, "cut") == str(life).encode(), 10, what="a life")
                if life < MAX_CUT_SHORT:
                    await wait_until(lambda life=life: len(model.asked) == asked + life, what="the model's stream")
            redis.zadd(KEYS.runs, {turn.turn_id: 1})
    async with engine_in(tmp_path / "after", redis_url, model) as after:
        record = (await after.client.get(f"/v1/turns/{turn.turn_id}")).json()
        assert (record["status"], record["error"]["code"]) == ("failed", "TURN_CRASHES")
        assert len(model.asked) == asked + MAX_CUT_SHORT - 1
        model.held.set()
        await after.chat("Go on", sessionId=turn.session_id)


async def test_nothing_is_taken_over_before_redis_has_been_steady_for_a_lease(
    tmp_path: Path, redis_url: str, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = await left_behind(tmp_path / "here", redis_url, model)
    steady, looks = 0.0, 0

    def looked(_: RedisWatch) -> float:
        nonlocal looks
        looks += 1
        return steady

    monkeypatch.setattr(RedisWatch, "steady_for", looked)
    with SyncRedis.from_url(redis_url) as redis:
        redis.zadd(KEYS.runs, {turn.turn_id: 1})  # it did not give the turn up: its lease ran out
    async with engine_in(tmp_path / "there", redis_url, model):
        await wait_until(lambda: looks >= 3, 10, what="a look for turns that others left")
        assert model.open == 0
        steady = 10.0
        await wait_until(lambda: model.open == 1, what="the takeover")
        model.held.set()


async def test_of_several_engines_one_takes_the_turn_over(tmp_path: Path, redis_url: str, model: Model) -> None:
    turn = await left_behind(tmp_path / "here", redis_url, model)
    asked = len(model.asked)
    async with AsyncExitStack() as stack:
        others = [
            await stack.enter_async_context(engine_in(tmp_path / f"other-{n}", redis_url, model)) for n in range(3)
        ]
        await wait_until(lambda: model.open == 1, what="the takeover")
        model.held.set()
        for engine in others:
            events = await engine.events("GET", f"/v1/turns/{turn.turn_id}/events")
            assert [event.name for event in events].count("done") == 1
            assert await said(engine, turn.session_id) == ["Hi", "Hello"]
        assert len(model.asked) == asked + 1


async def test_a_turn_that_redis_lost_together_with_its_engine_is_ended_and_its_session_goes_on(
    tmp_path: Path, redis_url: str, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady, looks = 0.0, 0
    given_up = RedisRuns.given_up

    def steady_for(_: RedisWatch) -> float:
        return steady

    async def looked(runs: RedisRuns) -> list[str]:
        nonlocal looks
        looks += 1
        return await given_up(runs)

    async def killed(_: RedisRuns, turn: Turn) -> None:
        """An engine that is killed gives nothing up."""

    monkeypatch.setattr(RedisWatch, "steady_for", steady_for)
    monkeypatch.setattr(RedisRuns, "given_up", looked)
    monkeypatch.setattr(RedisRuns, "give_up", killed)
    monkeypatch.setattr(orphans, "LOST_SECONDS", 0.0)
    model.held.clear()
    async with engine_in(tmp_path / "there", redis_url, model) as there:
        async with engine_in(tmp_path / "here", redis_url, model) as here:
            turn = await begun(here, "first")
            session_id = turn["sessionId"]
            await wait_until(lambda: model.open == 1, what="the model's stream")
            assert await said(there, session_id) == ["first"]
        with SyncRedis.from_url(redis_url) as redis:
            redis.flushall()
        looks = 0
        await wait_until(lambda: looks >= 3, 10, what="looks while Redis is not steady")
        refused = await there.client.post(f"/v1/sessions/{session_id}/turns", json={"message": "second"})
        assert (refused.status_code, refused.json()["turnId"]) == (409, turn["turnId"])
        steady = 60.0

        async def lost() -> bool:
            return await status(there, turn["turnId"]) == "failed"

        await wait_until(lost, 10, what="the end of the turn")
        async with engine_in(tmp_path / "third", redis_url, model) as third:
            assert await told(third, session_id) == await told(there, session_id) == ["TURN_LOST"]
            model.held.set()
            await there.chat("second", sessionId=session_id)
            assert await said(third, session_id) == ["first", "second", "Hello"]
            # Its engine comes back after all: its word is that of all.
            async with engine_in(tmp_path / "here", redis_url, model) as back:
                for engine in (back, there, third):

                    async def same(engine: Engine = engine) -> bool:
                        return await told(engine, session_id) == ["TURN_OVERTAKEN", None]

                    await wait_until(same, 10, what="the owner's word")


async def told(engine: Engine, session_id: str) -> list[str | None]:
    """With which errors the turns of a session ended."""
    turns = (await engine.client.get(f"/v1/sessions/{session_id}/messages")).json()["turns"]
    return [turn.get("error", {}).get("code") for turn in turns]
