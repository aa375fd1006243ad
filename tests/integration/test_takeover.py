"""Taking turns over while other things happen: a start, a shutdown, another takeover, a turn gone bad."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from redis import Redis as SyncRedis

from dialog_engine.chat import takeover
from dialog_engine.chat.copies import SessionCopy
from dialog_engine.model import Turn
from dialog_engine.storage.archive import SqliteArchive
from dialog_engine.storage.copies import SqliteCopies
from dialog_engine.storage.database import open_database
from dialog_engine.storage.turns import SqliteTurns
from dialog_engine.streams.journal import SharedJournal
from dialog_engine.streams.runs import RedisRuns
from plugins_contract.keys import Keys
from tests.integration.engines import Engine, Model, running_engine, settings
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
KEYS = Keys()


@pytest.fixture
def model(model: Model) -> Model:
    """It never comes to an end of its own accord."""
    model.held.clear()
    return model


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "LOOK_SECONDS", 0.02)


@pytest.fixture
def redis_there(redis_url: str) -> Any:
    with SyncRedis.from_url(redis_url) as redis:
        yield redis


def engine_in(folder: Path, redis_url: str, model: Model, **changes: Any) -> Any:
    return running_engine(settings(folder, redis_url, model.url, **changes))


async def begun(engine: Engine, model: Model) -> str:
    """A turn that waits for its model's last words: its id."""
    waiting = model.open
    session_id = (await engine.client.post("/v1/sessions")).json()["sessionId"]
    answer = await engine.client.post(f"/v1/sessions/{session_id}/turns", json={"message": "Hi"})
    await wait_until(lambda: model.open == waiting + 1, what="the model's stream")
    return answer.json()["turnId"]


async def left_behind(folder: Path, redis_url: str, model: Model, *, turns: int) -> list[Turn]:
    """Turns in the middle of their first answers, whose engine has gone: by their ids."""
    async with engine_in(folder, redis_url, model) as engine:
        for _ in range(turns):
            await begun(engine, model)
    await wait_until(lambda: model.open == 0, what="the end of those streams")
    async with open_database(folder / "engine.sqlite3") as database:
        return sorted(await SqliteTurns(database, lambda _: None).unfinished(), key=lambda turn: turn.turn_id)


async def done(engine: Engine, turn_id: str) -> dict[str, Any]:
    events = await engine.events("GET", f"/v1/turns/{turn_id}/events")
    assert [event.name for event in events].count("done") == 1
    return events[-1].data


async def test_a_start_that_takes_longer_than_the_first_look_takes_each_turn_up_once(
    tmp_path: Path, redis_url: str, model: Model, monkeypatch: pytest.MonkeyPatch, quick_looks: None
) -> None:
    [turn] = await left_behind(tmp_path, redis_url, model, turns=1)
    settle, look = SharedJournal.settled, RedisRuns.look
    came: list[str] = []

    async def settled(journal: SharedJournal, turn_id: str = "") -> bool:
        came.append(turn_id)
        return await settle(journal, turn_id)

    async def slow_look(runs: RedisRuns, turn_id: str) -> Any:
        found = await look(runs, turn_id)
        await wait_until(lambda: len(came) >= 2, what="the first look, beside the start")
        return found

    monkeypatch.setattr(SharedJournal, "settled", settled)
    monkeypatch.setattr(RedisRuns, "look", slow_look)
    async with engine_in(tmp_path, redis_url, model) as engine:
        await wait_until(lambda: model.open >= 1, what="the model being asked again")
        model.held.set()
        await done(engine, turn.turn_id)
    assert len(model.asked) == 2


@pytest.mark.parametrize("where", ["here", "there"])
async def test_a_turn_that_cannot_be_taken_up_holds_up_neither_the_others_nor_the_start(
    tmp_path: Path, redis_url: str, model: Model, redis_there: Any, where: str, quick_looks: None
) -> None:
    [bad, good] = await left_behind(tmp_path / "here", redis_url, model, turns=2)
    # As an engine of a later release may write what this one cannot read.
    redis_there.hset(KEYS.session(bad.session_id), f"turn:{bad.turn_id}", '{"turnId": 7}')
    async with engine_in(tmp_path / where, redis_url, model) as engine:
        await wait_until(lambda: model.open == 1, what="the good turn's model being asked again")
        model.held.set()
        await done(engine, good.turn_id)


async def test_what_is_given_up_is_not_taken_over_by_an_engine_that_goes_down_itself(
    tmp_path: Path, redis_url: str, model: Model, redis_there: Any, quick_looks: None
) -> None:
    async with AsyncExitStack() as stack:
        going = await stack.enter_async_context(
            engine_in(tmp_path / "going", redis_url, model, shutdown_grace_seconds=1)
        )
        await begun(going, model)  # what keeps it
        async with engine_in(tmp_path / "gone", redis_url, model) as gone:
            turn_id = await begun(gone, model)
            leaving = asyncio.create_task(stack.aclose())
            await wait_until(lambda: going.client.is_closed, what="the signal")
        # Given up within the other's grace.
        assert redis_there.zscore(KEYS.runs, turn_id) == 0
        await leaving
    assert redis_there.zscore(KEYS.runs, turn_id) == 0
    assert redis_there.hget(KEYS.run(turn_id), "epoch") == b"1"


async def test_a_turn_that_moved_comes_back_only_when_all_that_was_committed_of_it_is_forgotten(
    tmp_path: Path,
    redis_url: str,
    model: Model,
    redis_there: Any,
    monkeypatch: pytest.MonkeyPatch,
    quick_looks: None,
) -> None:
    give_away, given_up = SqliteCopies.give_away, RedisRuns.given_up
    forgets, may_forget = asyncio.Event(), asyncio.Event()
    looks: list[str] = []

    async def slow_give_away(copies: SqliteCopies, turn_id: str, copy: SessionCopy | None) -> None:
        forgets.set()
        await may_forget.wait()
        await give_away(copies, turn_id, copy)

    async def counted(runs: RedisRuns) -> Sequence[str]:
        looks.append(runs.engine_id)
        return await given_up(runs)

    monkeypatch.setattr(SqliteCopies, "give_away", slow_give_away)
    monkeypatch.setattr(RedisRuns, "given_up", counted)
    async with engine_in(tmp_path / "here", redis_url, model) as here:
        turn_id = await begun(here, model)
        async with engine_in(tmp_path / "there", redis_url, model):
            redis_there.zadd(KEYS.runs, {turn_id: 0})  # as if its lease had run out
            await wait_until(forgets.is_set, what="the first owner to hear of it")
        assert redis_there.zscore(KEYS.runs, turn_id) == 0
        before = len(looks)
        await wait_until(lambda: len(looks) >= before + 3, what="looks for what was given up")
        assert redis_there.hget(KEYS.run(turn_id), "epoch") == b"2"

        may_forget.set()
        await wait_until(lambda: redis_there.hget(KEYS.run(turn_id), "epoch") == b"3", what="its return")
        await wait_until(lambda: model.open == 1, what="the model being asked again")
        model.held.set()
        await done(here, turn_id)
        session_id = (await here.client.get(f"/v1/turns/{turn_id}")).json()["sessionId"]
        messages = (await here.client.get(f"/v1/sessions/{session_id}/messages")).json()["messages"]
        assert [message["content"] for message in messages] == ["Hi", "Hello"]


async def test_a_session_is_told_whole_while_one_of_its_turns_moves(
    tmp_path: Path, redis_url: str, model: Model, redis_there: Any, monkeypatch: pytest.MonkeyPatch, quick_looks: None
) -> None:
    give_away, transcript = SqliteCopies.give_away, SqliteArchive.transcript
    reads, given = asyncio.Event(), asyncio.Event()

    async def give_away_meanwhile(copies: SqliteCopies, turn_id: str, copy: SessionCopy | None) -> None:
        await reads.wait()
        await give_away(copies, turn_id, copy)
        given.set()

    async def slow_transcript(archive: SqliteArchive, subject: str, session_id: str) -> Any:
        reads.set()
        await given.wait()
        return await transcript(archive, subject, session_id)

    async with engine_in(tmp_path / "here", redis_url, model) as here:
        turn_id = await begun(here, model)
        session_id = (await here.client.get(f"/v1/turns/{turn_id}")).json()["sessionId"]
        monkeypatch.setattr(SqliteCopies, "give_away", give_away_meanwhile)
        monkeypatch.setattr(SqliteArchive, "transcript", slow_transcript)
        async with engine_in(tmp_path / "there", redis_url, model):
            redis_there.zadd(KEYS.runs, {turn_id: 0})  # as if its lease had run out
            await wait_until(lambda: redis_there.hget(KEYS.run(turn_id), "epoch") == b"2", what="the takeover")
            messages = (await here.client.get(f"/v1/sessions/{session_id}/messages")).json()["messages"]
        assert [message["content"] for message in messages] == ["Hi"]
