"""Turns that nobody reads any more: the rule as a table, and what engines make of it."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis as SyncRedis

from dialog_engine.chat.events import GOES_ON_SECONDS, Readers
from dialog_engine.chat.leaving import LeavingTimes, LeftTurns, Watch
from dialog_engine.http.bodies import LeavingRule
from dialog_engine.model import Leaving, Turn
from dialog_engine.wiring.times import EngineTimes
from plugins_contract.catalog import ApprovalPolicy
from plugins_contract.keys import Keys
from tests.integration.engines import Engine, Model, Start, at_work, publish, with_times
from tests.marks import promise
from tests.support.engine_stores import NotedFrees
from tests.support.fakes.engine import breathe
from tests.support.fakes.worker import tool
from tests.support.waiting import wait_until

GRACE = 0.5
TIMES = with_times(EngineTimes(leaving=LeavingTimes(grace=GRACE, adopted=2 * GRACE, look=0.1)))
CANCEL, CONTINUE = {"x-on-disconnect": "cancel"}, {"x-on-disconnect": "continue"}
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
        self.heard: Callable[[str, float], None] = lambda turn_id, within: None

    def who_reads(self, turn_id: str, within: float) -> None:
        self.asked.append(turn_id)
        self.heard(turn_id, within)

    def reads(self, turn_id: str) -> None:
        self.answered.append(turn_id)


def running_here(turn: Turn) -> SimpleNamespace:
    return SimpleNamespace(turn=turn, waits_for_user=False, is_adopted=False, runs_since=0.0)


class OpenTurns(list[SimpleNamespace]):
    """The turns of an engine that does not shut down."""

    queue = SimpleNamespace(closed=False)


async def ends(turn_id: str) -> bool:
    return bool(turn_id)


def test_an_engine_asks_nobody_about_a_turn_that_is_read_there_and_answers_for_its_readers() -> None:
    readers, control = Readers(), Asking()
    turn = Turn("turn", "session", "ada", leaving=Leaving(5))
    running = running_here(turn)
    turns: Any = [running]
    left = LeftTurns(turns, readers, control, ends)
    with readers.reading("turn"):
        left.look()
        left.asked("turn", 0)
        assert (control.asked, control.answered) == ([], ["turn"])
    left.look()
    assert control.asked == [], "it was read since the look before"
    left.asked("turn", 60)
    left.look()
    left.asked("turn", 0)
    assert (control.asked, control.answered) == (["turn"], ["turn", "turn"])
    with readers.reading("turn"):
        pass
    running.runs_since = time.monotonic()  # what was read before that is no part of what goes on
    left.look()
    assert control.asked == ["turn", "turn"]


def test_a_client_that_answers_counts_as_a_reader_until_its_turn_goes_on() -> None:
    now = 0.0
    readers = Readers(lambda: now)
    readers.answers("turn")
    with readers.reading("turn"):
        pass
    now = GOES_ON_SECONDS - 0.1
    readers.forget(now)
    assert readers.read_since("turn", now)
    now = GOES_ON_SECONDS + 0.1
    assert not readers.read_since("turn", now)


@promise(
    "a turn that nobody reads any more is cancelled where that was asked for, and never while it waits for its user"
)
def test_a_reader_that_leaves_and_comes_back_within_the_grace_does_not_lose_its_turn() -> None:
    times, readers, now, stops = LeavingTimes(), Readers(lambda: now), 0.0, list[Turn]()
    turn = Turn("turn", "session", "ada", leaving=LeavingRule(None, times.grace).of(None, usually="cancel"))
    turns: Any = [running_here(turn)]
    left = LeftTurns(turns, readers, Asking(), ends, times, clock=lambda: now)

    def looks(seconds: float) -> None:
        nonlocal now
        until = now + seconds
        while now < until:
            now += times.look
            stops.extend(left.look())
            left.asked("turn", times.look)

    for _ in range(2):
        with readers.reading("turn"):
            looks(2)
        looks(4)
    assert stops == []
    looks(2)
    assert stops == [turn]


async def test_a_later_request_may_say_that_the_turn_goes_on() -> None:
    turn, asked, control = Turn("turn", "session", "ada", leaving=Leaving(0)), list[str](), Asking()
    running, stopped = running_here(turn), asyncio.Event()
    running.stop = stopped.set
    turns: Any = OpenTurns([running])

    async def ends_at_last(turn_id: str) -> bool:
        asked.append(turn_id)
        return len(asked) == 3

    left = LeftTurns(turns, Readers(), control, ends_at_last, LeavingTimes(look=0.01))
    control.heard = left.asked
    async with at_work(left.run):
        await asyncio.wait_for(stopped.wait(), 10)
    assert asked[:3] == ["turn"] * 3


async def test_a_turn_that_begins_to_wait_for_its_user_as_it_is_left_is_not_cancelled() -> None:
    turn, control, stopped = Turn("turn", "session", "ada", leaving=Leaving(0)), Asking(), list[str]()
    running, decided = running_here(turn), asyncio.Event()
    running.stop = lambda: stopped.append("turn")

    async def ends_now(_: str) -> bool:
        running.waits_for_user = True
        decided.set()
        return True

    turns: Any = OpenTurns([running])
    left = LeftTurns(turns, Readers(), control, ends_now, LeavingTimes(look=0.01))
    control.heard = left.asked
    async with at_work(left.run):
        await asyncio.wait_for(decided.wait(), 10)
        await breathe()
    assert stopped == []


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
        ("cancel", CONTINUE, False),
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
@pytest.mark.parametrize(
    ("path", "setting", "headers", "cancels"),
    [
        ("chat/completions", "protocol", {}, True),
        ("chat/completions", "protocol", CONTINUE, False),
        ("responses", "protocol", {}, True),
        ("responses in the background", "cancel", {}, False),
        ("responses in the background", "protocol", CANCEL, True),
        ("ai-sdk/chat", "protocol", {}, False),
        ("ai-sdk/chat", "cancel", {}, True),
        ("ai-sdk/chat", "protocol", CANCEL, True),
    ],
)
async def test_a_turn_of_another_protocol_whose_connection_is_closed_is_cancelled_by_its_rule(
    start: Start, model: Model, path: str, setting: str, headers: dict[str, str], cancels: bool
) -> None:
    model.held.clear()
    async with start(on_disconnect=setting) as engine:
        name = (await engine.client.get("/v1/models")).json()["data"][0]["id"]
        path, _, background = path.partition(" ")
        said = {"id": "1", "role": "user", "content": "Hi", "parts": [{"type": "text", "text": "Hi"}]}
        body = {"model": name, "messages": [said], "input": "Hi", "id": "chat", "stream": True}
        body |= {"background": bool(background)}
        async with engine.client.stream("POST", f"/v1/{path}", json=body, headers=headers) as stream:
            turn_id = stream.headers["x-turn-id"]
            await anext(stream.aiter_lines())
        await (is_cancelled if cancels else runs_on)(engine, turn_id)


@TIMES
@promise(
    "a turn that nobody reads any more is cancelled where that was asked for, and never while it waits for its user"
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_message_that_waits_is_withdrawn_when_its_client_has_left_wherever_it_is_read(
    engines: tuple[Engine, Engine], model: Model, stream: bool
) -> None:
    here, there = engines
    model.held.clear()
    running = await here.begin()
    name = (await here.client.get("/v1/models")).json()["data"][0]["id"]
    body = {"model": name, "messages": [{"role": "user", "content": "And?"}], "stream": stream}
    headers = {"x-session-id": running["sessionId"]}
    asking = asyncio.create_task(there.client.post("/v1/chat/completions", json=body, headers=headers))

    async def waits() -> list[str]:
        return [each["turnId"] for each in (await here.client.get("/v1/me/pending")).json()["messages"]]

    [asked] = await wait_until(waits)
    natively = await here.begin(session_id=running["sessionId"], onBusy="queue")
    async with here.stream("GET", natively["eventsUrl"]), here.client.stream("GET", f"/v1/turns/{asked}/events"):
        asking.cancel()
        await runs_on(there, running["turnId"])
        assert await waits() == [asked, natively["turnId"]], "it is read, at another engine"

    async def is_withdrawn() -> bool:
        return await status(here, asked) == "withdrawn"

    await wait_until(is_withdrawn)
    await runs_on(there, running["turnId"])
    assert await waits() == [natively["turnId"]], "natively, closing changes nothing"
    model.held.set()


@TIMES
async def test_a_message_of_the_background_that_nobody_reads_is_withdrawn_where_its_request_asks_for_that(
    engine: Engine, model: Model
) -> None:
    model.held.clear()
    running = await engine.begin()
    name = (await engine.client.get("/v1/models")).json()["data"][0]["id"]
    body = {"model": name, "input": "And?", "background": True, "conversation": running["sessionId"]}
    response = await engine.client.post("/v1/responses", json=body, headers=CANCEL)
    assert response.json()["status"] == "queued"

    async def is_withdrawn() -> bool:
        return await status(engine, response.headers["x-turn-id"]) == "withdrawn"

    await wait_until(is_withdrawn)
    model.held.set()


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


@with_times(EngineTimes(leaving=LeavingTimes(grace=GRACE, adopted=600)))
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
    async with there.stream("GET", f"/v1/turns/{turn_id}/events") as stream:
        while "refused" not in str((await anext(aiter(stream))).data):
            pass
    await is_cancelled(here, turn_id)  # it was read again, however shortly


@with_times(EngineTimes(leaving=LeavingTimes(grace=GRACE, look=0.1)))
@promise(
    "a turn that nobody reads any more is cancelled where that was asked for, and never while it waits for its user"
)
@pytest.mark.parametrize("background", [True, False])
async def test_the_request_that_goes_on_with_a_response_decides_whether_it_is_in_the_background(
    engine: Engine, redis_url: str, model: Model, background: bool
) -> None:
    publish(redis_url, DELETE)
    await wait_until(engine.offers, what="the tool")
    model.will_call(DELETE.name)
    body = {"model": (await engine.client.get("/v1/models")).json()["data"][0]["id"]}
    first = await engine.client.post("/v1/responses", json={**body, "input": "Hi"})
    at = f"/v1/responses/{first.json()['id']}"

    async def asked() -> str:
        output = (await engine.client.get(at)).json()["output"]
        return next((each["id"] for each in output if each["type"] == "mcp_approval_request"), "")

    answer = {"type": "mcp_approval_response", "approval_request_id": await wait_until(asked), "approve": False}
    model.held.clear()
    body |= {"input": [answer], "background": background, "stream": True}
    async with engine.client.stream("POST", "/v1/responses", json=body) as stream:
        turn_id = stream.headers["x-turn-id"]
        lines = stream.aiter_lines()
        while not (line := await anext(lines)).startswith("data: "):
            pass
    response = json.loads(line.removeprefix("data: "))["response"]
    await (runs_on if background else is_cancelled)(engine, turn_id)
    kept = (await engine.client.get(f"/v1/responses/{response['id']}")).json()
    assert [each["background"] for each in (first.json(), response, kept)] == [False, background, background]


async def resumed_unread(start: Start, model: Model, then: Callable[[Engine, str], Awaitable[None]]) -> None:
    """A turn whose reader leaves as its engine is ended, which takes longer than the grace, and that nobody reads when
    that is started again: `then` is what becomes of it."""
    model.held.clear()
    async with start(shutdown_grace_seconds=3 * GRACE) as engine:
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
