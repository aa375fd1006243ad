"""Run leases and shared copies on every server: who may run a turn, and who may write of it. Then each guard of the
scripts is taken out, and the test that watches over it must fail."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dialog_engine.chat.copies import TurnRow, encoded
from dialog_engine.chat.journal import Change, JournalEntry, Step
from dialog_engine.chat.runs import (
    Busy,
    Claimed,
    Forgotten,
    NotTaken,
    Renewal,
    RunsUnavailableError,
    Taken,
    UnknownSession,
)
from dialog_engine.model import Turn
from dialog_engine.streams import runs as runs_module
from dialog_engine.streams import scripts
from dialog_engine.streams.runs import LONG_LIFE_MS, RedisRuns
from plugins_contract.keys import Keys
from plugins_contract.ledger.scripts import script

pytestmark = [pytest.mark.anyio, pytest.mark.every_redis]

LUA = Path(scripts.__file__).parent / "lua"
KEYS = Keys()
TURN = Turn("turn-1", "session-1", "ada")
NEXT = Turn("turn-2", "session-1", "ada")
TTL = 1000


class Engines:
    """Two engines on one server."""

    def __init__(self, redis: Any) -> None:
        self.redis = redis
        self.one, self.two = (RedisRuns(redis, KEYS, name, ttl_seconds=TTL) for name in ("one", "two"))

    async def share(
        self,
        engine: RedisRuns,
        turn: Turn,
        step: Step,
        status: str = "running",
        of: Turn | None = None,
        error_code: str | None = None,
        **head: Any,
    ) -> Any:
        """What came of sharing how a turn is doing: that one, or the one that it is told `of`."""
        row = TurnRow(
            turn_id=(of or turn).turn_id, status=status, rounds=0, reason=None, input_tokens=0, output_tokens=0,
            ttft_ms=None, error_code=error_code, error_message=None, traceparent=None, created_at=1, finished_at=None,
        )  # fmt: skip
        change = Change(subject=turn.subject, rows={n: msgspec.Raw(d) for n, d in encoded([row]).items()}, **head)
        entry = JournalEntry(1, turn.session_id, turn.turn_id, turn.epoch, step, b"")
        keys, args = engine.share_command(entry, change)
        return (await scripts.run(self.redis, "share", keys, args))[0].decode()

    async def begin(self, turn: Turn = TURN) -> None:
        """The first engine begins a turn."""
        assert await self.share(self.one, turn, Step.BEGINS, title="Hi", created_at=1, updated_at=2) == "OK"

    async def lapse(self, turn: Turn = TURN) -> None:
        """The lease of the turn runs out."""
        await self.redis.zadd(KEYS.runs, {turn.turn_id: 1})

    async def taken(self, engine: RedisRuns, turn: Turn = TURN) -> Taken | NotTaken:
        """An engine looks who runs the turn, and takes it if it may."""
        run = await engine.look(turn.turn_id)
        assert run is not None
        return await engine.take(turn.turn_id, run)

    async def version(self, session_id: str = TURN.session_id) -> int:
        """The version of the session's copy; 0 when there is none."""
        found = await self.two.head(session_id)
        return found[1] if isinstance(found, tuple) else 0

    async def later_than(self, version: int) -> None:
        """Let that millisecond pass: what is lost and made anew within one is not what tests are about."""
        seconds, microseconds = await self.redis.time()
        while seconds * 1000 + microseconds // 1000 <= version:
            seconds, microseconds = await self.redis.time()

    async def status(self, turn: Turn = TURN) -> str:
        """How the turn is doing, as every engine reads it."""
        copy = await self.two.whole(turn.session_id)
        assert copy is not None
        assert not isinstance(copy, Forgotten)
        return next(row.status for row in copy.rows if isinstance(row, TurnRow) and row.turn_id == turn.turn_id)


@pytest.fixture
def engines(redis: Any) -> Engines:
    return Engines(redis)


async def test_a_session_is_claimed_for_one_turn(engines: Engines) -> None:
    await engines.begin()
    assert await engines.two.claim(NEXT, known=True) == Busy("turn-1")
    await engines.share(engines.one, TURN, Step.ENDS, "done")
    assert isinstance(await engines.two.claim(NEXT, known=True), Claimed)
    assert await engines.one.claim(Turn("turn-3", "session-1", "ada"), known=True) == Busy("turn-2")


async def test_a_claim_whose_answer_was_lost_is_made_again(engines: Engines) -> None:
    for _ in range(2):
        assert isinstance(await engines.one.claim(TURN, known=True), Claimed)


async def test_a_session_that_nobody_knows_cannot_be_claimed(engines: Engines) -> None:
    assert await engines.one.claim(TURN, known=False) == UnknownSession()
    assert await engines.one.claim(TURN, known=True) == Claimed(0)


async def test_a_session_of_somebody_else_cannot_be_claimed(engines: Engines) -> None:
    await engines.begin()
    await engines.share(engines.one, TURN, Step.ENDS, "done")
    assert await engines.two.claim(replace(NEXT, subject="eve"), known=True) == UnknownSession()


async def test_a_claim_is_withdrawn_as_if_it_never_was(engines: Engines) -> None:
    await engines.one.claim(TURN, known=True)
    await engines.one.withdraw(TURN)
    assert await engines.one.look(TURN.turn_id) is None
    assert isinstance(await engines.two.claim(NEXT, known=True), Claimed)


async def test_only_the_owner_gives_a_turn_up(engines: Engines) -> None:
    await engines.begin()
    await engines.two.give_up(TURN)
    await engines.two.withdraw(TURN)
    assert await engines.two.given_up() == []
    await engines.one.give_up(TURN)
    assert await engines.two.given_up() == ["turn-1"]
    assert await engines.two.run_out() == []


async def test_a_turn_that_has_ended_is_not_given_up_to_anybody(engines: Engines) -> None:
    await engines.begin()
    await engines.share(engines.one, TURN, Step.ENDS, "done")
    await engines.one.give_up(TURN)
    assert await engines.two.given_up() == []


async def test_a_turn_is_not_taken_from_an_engine_that_keeps_its_lease(engines: Engines) -> None:
    await engines.begin()
    assert await engines.two.run_out() == []
    assert await engines.taken(engines.two) == NotTaken()
    await engines.lapse()
    assert await engines.two.run_out() == ["turn-1"]
    assert await engines.one.renew([TURN]) == [Renewal.KEPT]
    assert await engines.taken(engines.two) == NotTaken()


async def test_of_all_who_saw_the_lease_run_out_one_gets_the_turn(engines: Engines) -> None:
    await engines.begin()
    await engines.lapse()
    seen = await engines.one.look(TURN.turn_id)
    assert seen is not None
    three = RedisRuns(engines.redis, KEYS, "three", ttl_seconds=TTL)
    assert await engines.two.take(TURN.turn_id, seen) == Taken(2, stopped=False, cut_short=1)
    await engines.lapse()
    assert await three.take(TURN.turn_id, seen) == NotTaken()


async def test_an_engine_takes_its_own_turn_up_at_once(engines: Engines) -> None:
    await engines.begin()
    assert await engines.taken(engines.one) == Taken(2, stopped=False, cut_short=1)


async def test_lives_that_are_cut_short_are_counted_until_the_turn_comes_further(engines: Engines) -> None:
    await engines.begin()
    for lives in (1, 2):
        await engines.lapse()
        assert await engines.taken(engines.two) == Taken(lives + 1, stopped=False, cut_short=lives)
    await engines.share(engines.two, replace(TURN, epoch=3), Step.GOES_ON)
    assert await engines.taken(engines.two) == Taken(4, stopped=False, cut_short=1)


async def test_a_life_that_was_given_up_in_good_order_was_not_cut_short(engines: Engines) -> None:
    await engines.begin()
    await engines.taken(engines.one)
    await engines.one.give_up(replace(TURN, epoch=2))
    assert await engines.taken(engines.two) == Taken(3, stopped=False, cut_short=0)


async def test_a_long_life_was_not_cut_short(engines: Engines) -> None:
    await engines.begin()
    await engines.taken(engines.one)
    await engines.redis.hincrby(KEYS.run(TURN.turn_id), "since", -LONG_LIFE_MS)
    assert await engines.taken(engines.one) == Taken(3, stopped=False, cut_short=0)


async def test_who_was_passed_over_writes_nothing_and_keeps_nothing(engines: Engines) -> None:
    await engines.begin()
    await engines.lapse()
    await engines.taken(engines.two)
    assert await engines.share(engines.one, TURN, Step.ENDS, "failed") == "MOVED"
    assert await engines.one.renew([TURN]) == [Renewal.MOVED]
    assert await engines.status() == "running"
    assert await engines.share(engines.two, replace(TURN, epoch=2), Step.ENDS, "done") == "OK"
    assert await engines.status() == "done"


async def test_an_earlier_life_of_the_same_engine_writes_nothing_either(engines: Engines) -> None:
    await engines.begin()
    await engines.taken(engines.one)
    assert await engines.share(engines.one, TURN, Step.GOES_ON) == "MOVED"
    assert await engines.one.renew([TURN]) == [Renewal.MOVED]


async def test_a_turn_that_has_ended_is_nobodys_to_take(engines: Engines) -> None:
    await engines.begin()
    await engines.share(engines.one, TURN, Step.ENDS, "done")
    assert await engines.one.renew([TURN]) == [Renewal.KEPT]
    assert await engines.two.run_out() == []
    await engines.lapse()
    assert await engines.taken(engines.two) == NotTaken()
    assert await engines.two.run_out() == [], "it is not looked at again"


async def test_a_turn_that_has_ended_is_looked_at_by_nobody(engines: Engines) -> None:
    await engines.begin()
    await engines.share(engines.one, TURN, Step.ENDS, "done")
    await engines.one.renew([TURN])
    assert await engines.redis.zcard(KEYS.runs) == 0


async def test_the_end_of_another_turn_does_not_free_the_session(engines: Engines) -> None:
    await engines.begin()
    await engines.share(engines.two, NEXT, Step.BEGINS)
    await engines.share(engines.two, NEXT, Step.ENDS, "done")
    assert await engines.two.claim(Turn("turn-3", "session-1", "ada"), known=True) == Busy("turn-1")


async def test_the_wish_to_stop_a_turn_outlives_its_owner(engines: Engines) -> None:
    assert not await engines.two.stop(TURN.turn_id)
    await engines.begin()
    async with engines.redis.pubsub() as heard:
        await heard.subscribe(KEYS.engines)
        await heard.get_message(timeout=2)
        assert await engines.two.stop(TURN.turn_id)
        assert msgspec.json.decode((await heard.get_message(timeout=2))["data"]) == {"kind": "stop", "turnId": "turn-1"}
    assert await engines.one.renew([TURN]) == [Renewal.STOP]
    await engines.lapse()
    assert await engines.taken(engines.two) == Taken(2, stopped=True, cut_short=1)
    await engines.share(engines.two, replace(TURN, epoch=2), Step.ENDS, "cancelled")
    assert not await engines.one.stop(TURN.turn_id)


async def test_of_a_turn_that_redis_does_not_know_the_whole_session_is_wanted(engines: Engines) -> None:
    assert await engines.share(engines.one, TURN, Step.GOES_ON) == "GONE"
    assert await engines.one.renew([TURN]) == [Renewal.GONE]
    assert await engines.two.head("session-1") is None


async def test_no_version_of_a_session_comes_twice_whatever_redis_has_lost(engines: Engines) -> None:
    seen = [await engines.version()]
    for loses in (False, True, False):
        if loses:
            await engines.redis.flushall()
            await engines.later_than(seen[-1])
        await engines.begin()
        seen.append(await engines.version())
    assert seen[0] == 0
    assert len(set(seen)) == len(seen)
    # Several changes within a millisecond, and a clock that is set back.
    ahead = seen[-1] + 1_000_000
    await engines.redis.hset(KEYS.session(TURN.session_id), "version", ahead)
    await engines.begin()
    assert await engines.version() == ahead + 1


async def test_what_is_shared_again_because_it_was_lost_overwrites_nothing(engines: Engines) -> None:
    nobody = replace(TURN, turn_id="")
    await engines.begin()
    version = await engines.version()
    assert await engines.share(engines.two, nobody, Step.AGAIN, "failed", of=TURN) == "OK"
    assert await engines.status() == "running"
    assert await engines.version() == version, "nothing has changed"

    assert await engines.share(engines.two, nobody, Step.AGAIN, "done", of=NEXT) == "OK"
    assert await engines.status(NEXT) == "done"
    assert await engines.version() > version
    assert isinstance(await engines.two.claim(LATER, known=True), Busy)


async def test_an_end_that_was_only_supposed_stands_until_one_comes_who_knows(engines: Engines) -> None:
    nobody = replace(TURN, turn_id="")
    for status, code, stands in (
        ("failed", "TURN_LOST", "failed"),
        ("done", None, "done"),
        ("failed", "TURN_LOST", "done"),
        ("cancelled", None, "done"),
    ):
        before = await engines.version()
        assert await engines.share(engines.two, nobody, Step.AGAIN, status, of=TURN, error_code=code) == "OK"
        assert await engines.status() == stands
        assert (await engines.version() > before) == (status == stands)


async def test_a_deleted_session_does_not_come_back(engines: Engines) -> None:
    await engines.begin()
    assert await engines.two.forget("session-1", "ada") == Busy("turn-1")
    await engines.share(engines.one, TURN, Step.ENDS, "done")
    assert await engines.two.forget("session-1", "eve") == UnknownSession()
    for _ in range(2):
        assert await engines.two.forget("session-1", "ada") is None
    assert await engines.one.head("session-1") == Forgotten()
    assert await engines.share(engines.one, NEXT, Step.BEGINS) == "FORGOTTEN"
    assert await engines.one.claim(NEXT, known=True) == Forgotten()
    assert await engines.one.newest("ada", limit=9, before=None) == []
    assert [session_id for session_id, _ in await engines.one.forgotten_since(0)] == ["session-1"]


async def test_deleted_sessions_are_told_of_some_at_a_time_the_first_first(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_module, "FORGOTTEN_AT_ONCE", 2)
    await engines.redis.zadd(KEYS.forgotten, {"a": 1, "b": 2, "c": 3})
    await engines.redis.expire(KEYS.forgotten, TTL)
    assert await engines.one.forgotten_since(0) == [("a", 1), ("b", 2)]
    assert await engines.one.forgotten_since(2) == [("b", 2), ("c", 3)]


async def test_a_title_is_given_once_and_the_last_change_only_rises(engines: Engines) -> None:
    await engines.begin()
    await engines.share(engines.one, TURN, Step.ENDS, "done", title="Other", created_at=9, updated_at=1)
    [head] = await engines.two.newest("ada", limit=9, before=None)
    assert (head.title, head.created_at, head.updated_at) == ("Hi", 1, 2)
    assert await engines.two.newest("ada", limit=9, before=2) == []


async def test_a_redis_that_is_known_to_be_away_is_not_asked(engines: Engines) -> None:
    await engines.begin()
    patient = RedisRuns(engines.redis, KEYS, "three", ttl_seconds=TTL, available=lambda: False)
    with pytest.raises(RunsUnavailableError):
        await patient.look(TURN.turn_id)
    with pytest.raises(RunsUnavailableError):
        await patient.claim(NEXT, known=True)


# --- The line of those who wait for a session ---

LATER = Turn("turn-3", "session-1", "ada")
KEPT = 60.0


async def test_who_came_first_is_next_and_who_does_not_wait_passes_nobody(engines: Engines) -> None:
    await engines.begin()
    assert await engines.two.claim(LATER, known=True, wait_seconds=KEPT) == Busy("turn-1")
    assert await engines.one.claim(NEXT, known=True, wait_seconds=KEPT) == Busy("turn-1")
    await engines.share(engines.one, TURN, Step.ENDS, "done")

    assert await engines.one.claim(NEXT, known=True, wait_seconds=KEPT) == Busy("turn-3")
    assert await engines.one.claim(Turn("turn-4", "session-1", "ada"), known=True) == Busy("turn-3")
    assert isinstance(await engines.two.claim(LATER, known=True, wait_seconds=KEPT), Claimed)
    assert await engines.one.claim(NEXT, known=True, wait_seconds=KEPT) == Busy("turn-3")
    # Asked again, because the answer was lost, with somebody else in the line.
    assert isinstance(await engines.two.claim(LATER, known=True, wait_seconds=KEPT), Claimed)
    await engines.two.withdraw(LATER)
    assert isinstance(await engines.one.claim(NEXT, known=True, wait_seconds=KEPT), Claimed)
    assert not await engines.redis.exists(KEYS.waiting("session-1"))


async def test_a_place_is_given_up(engines: Engines) -> None:
    await engines.begin()
    await engines.one.claim(NEXT, known=True, wait_seconds=KEPT)
    await engines.two.claim(LATER, known=True, wait_seconds=KEPT)
    await engines.share(engines.one, TURN, Step.ENDS, "done")
    await engines.one.leave(NEXT)
    assert isinstance(await engines.two.claim(LATER, known=True, wait_seconds=KEPT), Claimed)


async def test_the_place_of_an_engine_that_is_gone_is_nobodys(engines: Engines) -> None:
    await engines.begin()
    await engines.one.claim(NEXT, known=True, wait_seconds=KEPT)
    await engines.redis.hset(KEYS.waiting("session-1"), NEXT.turn_id, "1 2")  # kept until long ago
    await engines.share(engines.one, TURN, Step.ENDS, "done")
    assert isinstance(await engines.two.claim(LATER, known=True, wait_seconds=KEPT), Claimed)


async def test_those_who_wait_hear_that_the_session_is_free(engines: Engines) -> None:
    await engines.begin()
    async with engines.redis.pubsub() as ear:
        await ear.subscribe(KEYS.engines)
        await ear.get_message(timeout=5)
        await engines.one.claim(NEXT, known=True, wait_seconds=KEPT)
        await engines.two.claim(LATER, known=True, wait_seconds=KEPT)
        await engines.one.leave(NEXT)
        await engines.share(engines.one, TURN, Step.ENDS, "done")
        await engines.two.claim(LATER, known=True)
        await engines.one.claim(NEXT, known=True, wait_seconds=KEPT)
        await engines.two.withdraw(LATER)
        heard = [await ear.get_message(timeout=2) for _ in range(3)]
        assert [msgspec.json.decode(each["data"]) for each in heard if each] == [FREE] * 3
        await engines.one.leave(NEXT)
        assert await ear.get_message(timeout=0.1) is None  # nobody is left to hear it


FREE = {"kind": "free", "sessionId": "session-1"}


@dataclass(frozen=True, slots=True)
class Guard:
    """`text`, in the script `script`, is what makes `scenario` hold; `without` stands there once it is gone."""

    script: str
    text: str
    without: str
    scenario: Callable[[Engines], Awaitable[None]]


GUARDS = [
    Guard("claim", "found[2] and found[2] ~= turn", "false", test_a_session_is_claimed_for_one_turn),
    Guard("claim", " and found[2] ~= turn", "", test_a_claim_whose_answer_was_lost_is_made_again),
    Guard("claim", "not found[1] and ARGV[5] ~= '1'", "false", test_a_session_that_nobody_knows_cannot_be_claimed),
    Guard("claim", "found[1] and found[1] ~= ARGV[4]", "false", test_a_session_of_somebody_else_cannot_be_claimed),
    Guard("claim", "if found[4] then return", "if false then return", test_a_deleted_session_does_not_come_back),
    Guard("claim", "came < since", "came > since", test_who_came_first_is_next_and_who_does_not_wait_passes_nobody),
    Guard(
        "claim",
        "first and first ~= turn",
        "false",
        test_who_came_first_is_next_and_who_does_not_wait_passes_nobody,
    ),
    Guard(
        "claim",
        "if not found[2] and first",
        "if first",
        test_who_came_first_is_next_and_who_does_not_wait_passes_nobody,
    ),
    Guard(
        "claim",
        "redis.call('HDEL', waiting, turn)",
        "",
        test_who_came_first_is_next_and_who_does_not_wait_passes_nobody,
    ),
    Guard("claim", "tonumber(ends) < now", "false", test_the_place_of_an_engine_that_is_gone_is_nobodys),
    Guard("leave", "redis.call('HDEL', KEYS[1], ARGV[1]) == 1", "true", test_a_place_is_given_up),
    Guard("share", "ring_line(KEYS[5], ARGV[12], ARGV[13])", "", test_those_who_wait_hear_that_the_session_is_free),
    Guard("release", "ring_line(KEYS[4], ARGV[5], ARGV[6])", "", test_those_who_wait_hear_that_the_session_is_free),
    Guard(
        "share",
        "owner[1] ~= engine or owner[2] ~= epoch",
        "false",
        test_who_was_passed_over_writes_nothing_and_keeps_nothing,
    ),
    Guard("share", " or owner[2] ~= epoch", "", test_an_earlier_life_of_the_same_engine_writes_nothing_either),
    Guard("share", "step ~= 'begins'", "false", test_of_a_turn_that_redis_does_not_know_the_whole_session_is_wanted),
    Guard("share", "if found[4] then return", "if false then return", test_a_deleted_session_does_not_come_back),
    Guard(
        "share",
        "if not found[1] then redis",
        "if true then redis",
        test_the_end_of_another_turn_does_not_free_the_session,
    ),
    Guard(
        "share",
        "if redis.call('HGET', session, 'running') == turn",
        "if true",
        test_the_end_of_another_turn_does_not_free_the_session,
    ),
    Guard(
        "share", "and (not found[2] or found[2] == '')", "", test_a_title_is_given_once_and_the_last_change_only_rises
    ),
    Guard(
        "share",
        "and tonumber(updated) > tonumber(found[3] or 0)",
        "",
        test_a_title_is_given_once_and_the_last_change_only_rises,
    ),
    Guard(
        "share",
        "step == 'again' and 'HSETNX' or",
        "",
        test_what_is_shared_again_because_it_was_lost_overwrites_nothing,
    ),
    Guard(
        "share",
        "if there and lost(there)",
        "if false",
        test_an_end_that_was_only_supposed_stands_until_one_comes_who_knows,
    ),
    Guard(
        "share",
        "and lost(there)",
        "",
        test_an_end_that_was_only_supposed_stands_until_one_comes_who_knows,
    ),
    Guard(
        "share",
        "step == 'again' and new == 0",
        "false",
        test_what_is_shared_again_because_it_was_lost_overwrites_nothing,
    ),
    Guard(
        "share",
        "new == 0 and before > 0",
        "before > 0",
        test_what_is_shared_again_because_it_was_lost_overwrites_nothing,
    ),
    Guard(
        "share", "before + 1, now_ms()", "before + 1", test_no_version_of_a_session_comes_twice_whatever_redis_has_lost
    ),
    Guard(
        "share",
        "math.max(before + 1, now_ms())",
        "now_ms()",
        test_no_version_of_a_session_comes_twice_whatever_redis_has_lost,
    ),
    Guard("share", "redis.call('HSET', run, 'ended', 1)", "", test_a_turn_that_has_ended_is_nobodys_to_take),
    Guard("share", "\n  redis.call('ZREM', runs, turn)", "", test_a_turn_that_has_ended_is_not_given_up_to_anybody),
    Guard(
        "renew",
        "found[1] ~= engine or found[2] ~= epoch",
        "false",
        test_who_was_passed_over_writes_nothing_and_keeps_nothing,
    ),
    Guard("renew", " or found[2] ~= epoch", "", test_an_earlier_life_of_the_same_engine_writes_nothing_either),
    Guard("renew", "if not found[4] then", "if true then", test_a_turn_that_has_ended_is_looked_at_by_nobody),
    Guard("renew", "found[3] and 'CANCEL' or 'OK'", "'OK'", test_the_wish_to_stop_a_turn_outlives_its_owner),
    Guard("take", "found[2] ~= ARGV[3]", "false", test_of_all_who_saw_the_lease_run_out_one_gets_the_turn),
    Guard("take", "ends > now then", "false then", test_a_turn_is_not_taken_from_an_engine_that_keeps_its_lease),
    Guard("take", "found[1] ~= engine and", "", test_an_engine_takes_its_own_turn_up_at_once),
    Guard("take", "ends ~= 0 and", "", test_a_life_that_was_given_up_in_good_order_was_not_cut_short),
    Guard("take", "now - tonumber(found[6] or now) < tonumber(ARGV[6])", "true", test_a_long_life_was_not_cut_short),
    Guard(
        "take",
        "cut = tonumber(found[5] or 0) + 1",
        "cut = 1",
        test_lives_that_are_cut_short_are_counted_until_the_turn_comes_further,
    ),
    Guard(
        "share",
        "redis.call('HDEL', run, 'cut')",
        "",
        test_lives_that_are_cut_short_are_counted_until_the_turn_comes_further,
    ),
    Guard("take", "or found[4] then", "then", test_a_turn_that_has_ended_is_nobodys_to_take),
    Guard("take", "\n  redis.call('ZREM', runs, turn)", "", test_a_turn_that_has_ended_is_nobodys_to_take),
    Guard("release", "found[1] ~= ARGV[2] or found[2] ~= ARGV[3]", "false", test_only_the_owner_gives_a_turn_up),
    Guard(
        "release",
        "elseif redis.call('ZSCORE', runs, turn) then",
        "else",
        test_a_turn_that_has_ended_is_not_given_up_to_anybody,
    ),
    Guard("stop", "redis.call('HSET', KEYS[1], 'cancel', 1)", "", test_the_wish_to_stop_a_turn_outlives_its_owner),
    Guard("stop", "redis.call('PUBLISH', ARGV[1], ARGV[2])", "", test_the_wish_to_stop_a_turn_outlives_its_owner),
    Guard("stop", "if found[2] then", "if false then", test_the_wish_to_stop_a_turn_outlives_its_owner),
    Guard("forget", "if found[2] then", "if false then", test_a_deleted_session_does_not_come_back),
    Guard("forget", "found[1] ~= ARGV[2]", "false", test_a_deleted_session_does_not_come_back),
]


def named(guard: Guard) -> str:
    return f"{guard.script}: {guard.text.strip()}"


@pytest.mark.parametrize("guard", GUARDS, ids=named)
async def test_without_the_guard_its_test_fails(
    guard: Guard, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (LUA / f"{guard.script}.lua").read_text()
    assert text.count(guard.text) == 1, "this guard reads differently by now"
    shipped = scripts.load

    def crippled(name: str) -> Any:
        loaded = shipped(name)
        return script(name, loaded.text.replace(text, text.replace(guard.text, guard.without)))

    monkeypatch.setattr(scripts, "load", crippled)
    with pytest.raises((AssertionError, TimeoutError, TypeError)):
        await guard.scenario(engines)
    await engines.redis.flushall()
