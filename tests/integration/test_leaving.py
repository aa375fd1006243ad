"""Turns that nobody reads any more: the rule as a table, and what engines make of it."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis as SyncRedis

from dialog_engine.chat.events import Readers
from dialog_engine.chat.leaving import LeavingTimes, LeftTurns, Watch
from dialog_engine.http.bodies import LeavingRule
from dialog_engine.model import Leaving, Turn
from dialog_engine.wiring.times import EngineTimes
from plugins_contract.catalog import ApprovalPolicy
from plugins_contract.keys import Keys
from tests.integration.engines import Engine, Model, Start, publish, with_times
from tests.marks import promise
from tests.support.engine_stores import NotedFrees
from tests.support.fakes.worker import tool
from tests.support.waiting import wait_until

GRACE = 0.5
TIMES = with_times(EngineTimes(leaving=LeavingTimes(grace=GRACE, adopted=2 * GRACE, look=0.1)))
CANCEL = {"x-on-disconnect": "cancel"}
DELETE = tool("files__delete", {"type": "object"}, approval=ApprovalPolicy.ALWAYS)
SEARCH = tool("files__search", {"type": "object"})


class Looked:
    """A watch with a grace of 5 seconds, at which somebody looks once a second."""

    def __init__(self, *, asleep: bool = False) -> None:
        self.watch = Watch(1, 5, asleep)
        self.now = 100.0

    def looks(self, count: int, *, heard: bool = True, answered: bool = False, here: bool = False) -> bool:
        """Whether the turn is left after so many looks."""
        left = False
        for _ in range(count):
            if here:
                self.watch.read()
            else:
                self.watch.asks(self.now)
                left = left or self.watch.is_left(self.now)
            if heard:
                self.watch.heard = True
            if answered:
                self.watch.read()
            self.now += 1
        return left


@promise(
    "a turn that nobody reads any more is cancelled where that was asked for, and never while it waits for its user"
)
def test_a_turn_is_left_when_every_question_of_the_grace_was_heard_and_none_was_answered() -> None:
    assert not Looked().looks(5)
    assert Looked().looks(6)


@promise(
    "a turn that nobody reads any more is cancelled where that was asked for, and never while it waits for its user"
)
@pytest.mark.parametrize("how", [{"here": True}, {"answered": True}, {"heard": False}])
def test_a_reader_at_any_engine_and_a_redis_that_is_away_begin_the_grace_again(how: dict[str, bool]) -> None:
    turn = Looked()
    assert not turn.looks(4)
    assert not turn.looks(20, **how)
    assert not turn.looks(5)
    assert turn.looks(2)


@promise(
    "a turn that nobody reads any more is cancelled where that was asked for, and never while it waits for its user"
)
def test_after_a_wait_for_its_user_a_turn_is_not_left_before_it_was_read_again() -> None:
    for turn in (Looked(asleep=True), Looked()):
        turn.watch.sleep()
        assert not turn.looks(100)
        turn.looks(1, answered=True)
        assert turn.looks(7)


class Asking(NotedFrees):
    """Notes which turns are asked about, and for which a reader answers."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.answered: list[str] = []

    def who_reads(self, turn_id: str) -> None:
        self.asked.append(turn_id)

    def reads(self, turn_id: str) -> None:
        self.answered.append(turn_id)


def test_an_engine_asks_nobody_about_a_turn_that_is_read_there_and_answers_for_its_readers() -> None:
    readers, control = Readers(), Asking()
    turn = Turn("turn", "session", "ada", leaving=Leaving(5))
    turns: Any = [SimpleNamespace(turn=turn, waits_for_user=False)]
    left = LeftTurns(turns, readers, control)
    with readers.reading("turn"):
        left.look()
        left.asked("turn")
        assert (control.asked, control.answered) == ([], ["turn"])
    left.look()
    left.asked("turn")
    assert (control.asked, control.answered) == (["turn"], ["turn"])


@promise(
    "a turn that nobody reads any more is cancelled where that was asked for, and never while it waits for its user"
)
def test_a_reader_that_leaves_and_comes_back_within_the_grace_does_not_lose_its_turn() -> None:
    times, readers, now, stops = LeavingTimes(), Readers(), 0.0, list[float]()
    turn = Turn("turn", "session", "ada", leaving=LeavingRule(None, times.grace).of(None, usually="cancel"))
    running = SimpleNamespace(turn=turn, waits_for_user=False, stop=lambda: stops.append(now))
    turns: Any = [running]
    left = LeftTurns(turns, readers, Asking(), times, clock=lambda: now)

    def looks(seconds: float) -> None:
        nonlocal now
        until = now + seconds
        while now < until:
            now += times.look
            left.look()
            left.asked("turn")

    for _ in range(2):
        with readers.reading("turn"):
            looks(2)
        looks(4)
    assert stops == []
    looks(2)
    assert len(stops) == 1


async def begin(engine: Engine, headers: dict[str, str]) -> tuple[str, Callable[[], Awaitable[None]]]:
    """Begin a turn with a reader: its id, and how the reader leaves."""
    begun: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def read() -> None:
        async with engine.stream("POST", "/v1/chat", json={"message": "Hi"}, headers=headers) as stream:
            await stream.until("text")
            begun.set_result(stream.response.headers["x-turn-id"])
            async for _ in stream:
                pass

    reader = asyncio.create_task(read())
    turn_id = await asyncio.wait_for(begun, 30)

    async def leave() -> None:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)

    return turn_id, leave


async def status(engine: Engine, turn_id: str) -> str:
    return (await engine.client.get(f"/v1/turns/{turn_id}")).json()["status"]


async def is_cancelled(engine: Engine, turn_id: str) -> None:
    async def ended() -> bool:
        return await status(engine, turn_id) == "cancelled"

    await wait_until(ended, what="the end of the turn")


async def runs_on(engine: Engine, turn_id: str) -> None:
    """It runs when a turn that was left later is cancelled."""
    later, leave = await begin(engine, CANCEL)
    await leave()
    await is_cancelled(engine, later)
    assert await status(engine, turn_id) == "running"


@TIMES
@promise(
    "a turn that nobody reads any more is cancelled where that was asked for, and never while it waits for its user"
)
@pytest.mark.parametrize(
    ("setting", "headers", "cancels"),
    [
        ("protocol", {}, False),
        ("protocol", CANCEL, True),
        ("cancel", {}, True),
        ("cancel", {"x-on-disconnect": "continue"}, False),
        ("continue", CANCEL, True),
    ],
)
async def test_the_request_decides_and_the_setting_where_it_says_nothing(
    start: Start, model: Model, setting: str, headers: dict[str, str], cancels: bool
) -> None:
    model.held.clear()
    async with start(on_disconnect=setting) as engine:
        turn_id, leave = await begin(engine, headers)
        await leave()
        if cancels:
            await is_cancelled(engine, turn_id)
            await wait_until(lambda: not model.open, what="the end of the model's stream")
        else:
            await runs_on(engine, turn_id)


@TIMES
@promise(
    "a turn that nobody reads any more is cancelled where that was asked for, and never while it waits for its user"
)
@pytest.mark.parametrize(("headers", "cancels"), [({}, True), ({"x-on-disconnect": "continue"}, False)])
async def test_a_completion_whose_connection_is_closed_is_cancelled_unless_its_request_says_otherwise(
    engine: Engine, model: Model, headers: dict[str, str], cancels: bool
) -> None:
    model.held.clear()
    name = (await engine.client.get("/v1/models")).json()["data"][0]["id"]
    body = {"model": name, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    async with engine.client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as stream:
        turn_id = stream.headers["x-turn-id"]
        await anext(stream.aiter_lines())
    await (is_cancelled if cancels else runs_on)(engine, turn_id)


async def test_another_word_is_refused_with_its_field(engine: Engine) -> None:
    answer = await engine.client.post("/v1/chat", json={"message": "Hi"}, headers={"x-on-disconnect": "stop"})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "x-on-disconnect")


@TIMES
@promise(
    "a turn that nobody reads any more is cancelled where that was asked for, and never while it waits for its user"
)
async def test_a_reader_at_another_engine_keeps_the_turn_until_it_leaves(
    engines: tuple[Engine, Engine], model: Model
) -> None:
    here, there = engines
    model.held.clear()
    turn_id, leave = await begin(here, CANCEL)
    async with there.client.stream("GET", f"/v1/turns/{turn_id}/events") as second:
        assert second.status_code == 200
        await leave()
        await runs_on(here, turn_id)
    await is_cancelled(there, turn_id)


@TIMES
@promise(
    "a turn that nobody reads any more is cancelled where that was asked for, and never while it waits for its user"
)
async def test_a_call_of_a_turn_that_is_left_is_cancelled(start: Start, redis_url: str, model: Model) -> None:
    publish(redis_url, SEARCH)
    model.will_call(SEARCH.name)
    async with start() as engine:
        await wait_until(engine.offers, what="the tool")
        turn_id, leave = await begin(engine, CANCEL)
        with SyncRedis.from_url(redis_url) as redis:
            ledgers: Any = await wait_until(lambda: redis.keys(Keys().call("*")), what="the call")
            await leave()
            await is_cancelled(engine, turn_id)
            assert redis.hget(ledgers[0], "state") == b"cancelled"


@TIMES
@promise(
    "a turn that nobody reads any more is cancelled where that was asked for, and never while it waits for its user"
)
async def test_a_turn_that_waits_for_its_user_is_never_cancelled_and_goes_on_unread(
    engines: tuple[Engine, Engine], redis_url: str, model: Model
) -> None:
    here, there = engines
    publish(redis_url, DELETE)
    for each in engines:
        await wait_until(each.offers, what="the tool")
    model.will_call(DELETE.name)
    turn_id, leave = await begin(here, CANCEL)

    async def asked() -> bool:
        return (await there.client.get("/v1/me/pending")).json()["approvals"] != []

    await wait_until(asked)
    await leave()
    model.held.clear()
    await runs_on(here, turn_id)
    [call] = (await there.client.get("/v1/me/pending")).json()["approvals"]
    path = f"/v1/turns/{turn_id}/approvals/{call['correlationId']}"
    assert await there.status("POST", path, json={"decision": "refuse"}) == 200
    await runs_on(there, turn_id)
    async with there.stream("GET", f"/v1/turns/{turn_id}/events"):
        await runs_on(there, turn_id)
    await is_cancelled(here, turn_id)  # it was read again


async def resumed_unread(start: Start, model: Model, then: Callable[[Engine, str], Awaitable[None]]) -> None:
    """A turn whose engine is started again, and that nobody reads since: `then` is what becomes of it."""
    model.held.clear()
    async with start() as engine:
        turn_id, leave = await begin(engine, CANCEL)
    await leave()
    async with start() as engine:
        await then(engine, turn_id)


@TIMES
@promise(
    "a turn that nobody reads any more is cancelled where that was asked for, and never while it waits for its user"
)
async def test_a_resumed_turn_is_left_too(start: Start, model: Model) -> None:
    await resumed_unread(start, model, is_cancelled)


@with_times(EngineTimes(leaving=LeavingTimes(grace=GRACE, adopted=600, look=0.1)))
async def test_the_grace_of_a_resumed_turn_is_longer(start: Start, model: Model) -> None:
    await resumed_unread(start, model, runs_on)
