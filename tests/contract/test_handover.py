"""The way of a decision from engine to engine, on every server: taken once, or taken back, and nothing stays behind."""

import asyncio
from typing import Any

import pytest

from dialog_engine.chat.approvals import OwnDecisions
from dialog_engine.errors import ApprovalDecidedError, ApprovalError, ArgumentsRefusedError
from dialog_engine.model import ApprovalStatus
from dialog_engine.streams import handover, scripts
from dialog_engine.streams.handover import RedisHandover
from dialog_engine.tool_calls.desk import NotWaitingHereError
from dialog_engine.tool_calls.questions import Approve, Decision, Given, Refuse
from plugins_contract.clock import Clock
from plugins_contract.keys import Keys
from tests.integration.engines import at_work
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.every_redis]

KEYS = Keys()
RUN = KEYS.run("turn")
REFUSED = Decision(status=ApprovalStatus.REFUSED, at=1, reason="no")


class Owner(OwnDecisions):
    """The engine that runs the turn; `says` is what comes of each decision."""

    def __init__(self, says: Decision | Exception = REFUSED) -> None:
        self.says = says
        self.given: list[tuple[str, str, Given]] = []

    async def take(self, turn_id: str, correlation_id: str, given: Given) -> Decision:
        self.given.append((turn_id, correlation_id, given))
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


class Engines(Clock):
    """An engine that runs the turn, one that is asked, and no pub/sub in between: the test rings."""

    def __init__(self, redis: Any, says: Decision | Exception = REFUSED) -> None:
        self.redis = redis
        self.now = 1_000_000
        self.owner = Owner(says)
        self.there = RedisHandover(redis, KEYS, "there", self.owner, lambda _: True, self)
        self.here = RedisHandover(redis, KEYS, "here", Owner(), lambda _: False, self)

    def now_ms(self) -> int:
        return self.now

    async def run_is_there(self, **fields: str) -> None:
        await self.redis.hset(RUN, mapping={"engine": "there", "epoch": "1"} | fields)
        await self.redis.expire(RUN, 100)

    async def left(self) -> list[bytes]:
        """What lies in the run, beside what belongs there."""
        return [name for name in await self.redis.hkeys(RUN) if b":" in name]

    async def hand_over(self, given: Given) -> Decision:
        """Hand a decision over and have it taken."""
        handing = asyncio.create_task(self.here.hand_over("turn", "call", given))
        await wait_until(self.left, what="the decision in the run")
        self.there.rung("turn")
        return await handing


@pytest.mark.parametrize("given", [Approve("hash"), Approve("hash", {"x": [1]}), Refuse("no"), Refuse()])
async def test_a_decision_arrives_as_it_was_given_and_its_answer_comes_back(redis: Any, given: Given) -> None:
    engines = Engines(redis)
    await engines.run_is_there()
    async with at_work(engines.there.run):
        assert await engines.hand_over(given) == REFUSED

    assert engines.owner.given == [("turn", "call", given)]
    assert await engines.left() == []


@pytest.mark.parametrize(
    ("says", "kind"),
    [
        (ApprovalDecidedError("before"), ApprovalDecidedError),
        (ArgumentsRefusedError("path", "5 is not a string"), ArgumentsRefusedError),
        (ApprovalError("why"), ApprovalError),
        (NotWaitingHereError(), NotWaitingHereError),
    ],
)
async def test_what_is_said_against_it_comes_back_too(redis: Any, says: Exception, kind: type[Exception]) -> None:
    engines = Engines(redis, says)
    await engines.run_is_there()
    async with at_work(engines.there.run):
        with pytest.raises(kind) as caught:
            await engines.hand_over(Refuse())

    assert str(caught.value) == str(says)


async def test_two_owners_that_find_the_same_decision_take_it_once(redis: Any) -> None:
    engines = Engines(redis)
    await engines.run_is_there()
    async with at_work(engines.there.run):
        handing = asyncio.create_task(engines.here.hand_over("turn", "call", Refuse()))
        await wait_until(engines.left, what="the decision in the run")
        for _ in range(5):
            engines.there.rung("turn")
        await handing

    assert len(engines.owner.given) == 1


async def test_a_decision_that_nobody_takes_is_taken_back(redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "TAKEN_SECONDS", 0.1)
    engines = Engines(redis)
    await engines.run_is_there()
    with pytest.raises(NotWaitingHereError):
        await engines.here.hand_over("turn", "call", Refuse())

    assert await engines.left() == []


@pytest.mark.parametrize(("seconds", "taken"), [(0, True), (handover.COUNTS_SECONDS, True), (60, False)])
async def test_a_decision_that_could_not_be_taken_back_does_not_count_when_its_giver_has_been_told_so(
    redis: Any, seconds: float, taken: bool
) -> None:
    engines = Engines(redis)
    await engines.run_is_there()
    handing = asyncio.create_task(engines.here.hand_over("turn", "call", Approve("hash")))
    await wait_until(engines.left, what="the decision in the run")
    handing.cancel()  # its engine dies, or Redis is away when it would take it back

    engines.now += round(seconds * 1000)
    async with at_work(engines.there.run):
        given = Refuse("on second thoughts")
        second = asyncio.create_task(engines.here.hand_over("turn", "call", given))
        await wait_until(lambda: left_twice(engines), what="the second decision in the run")
        engines.there.rung("turn")
        await second
    assert (Approve("hash") in [each for _, _, each in engines.owner.given]) is taken
    assert given in [each for _, _, each in engines.owner.given]


async def left_twice(engines: Engines) -> bool:
    return len(await engines.left()) == 2


@pytest.mark.parametrize(
    ("run", "answer"),
    [(None, b"GONE"), ({"ended": "1"}, b"ENDED"), ({"engine": "here"}, b"HERE"), ({}, b"ASKED")],
)
async def test_a_decision_is_left_only_where_another_engine_runs_the_turn(
    redis: Any, run: dict[str, str] | None, answer: bytes
) -> None:
    engines = Engines(redis)
    if run is not None:
        await engines.run_is_there(**run)

    assert await scripts.run(redis, "hand_over", [RUN], ["here", "decision:1", "{}", "channel", "word"]) == [answer]

    assert await engines.left() == ([b"decision:1"] if answer == b"ASKED" else [])
    assert await redis.exists(RUN) == (run is not None)


async def test_an_answer_for_a_run_that_is_gone_makes_no_key(redis: Any) -> None:
    assert await scripts.run(redis, "hand_back", [RUN], ["answer:1", "{}"]) == [b"GONE"]
    assert not await redis.exists(RUN)
