"""Leases: kept from a thread while the loop is alive, given up in time, and reported as lost at most once."""

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from callstream_runtime.redis_errors import RedisUnavailable
from plugins_contract.keys import Keys
from plugins_contract.ledger import Delivery, RecentCompletions
from plugins_contract.ledger.scripts import Command
from plugins_contract.messages import ExecutionClass
from plugins_mcp.consumer import SETTLE_SECONDS
from plugins_mcp.errors import ServerChangedError
from plugins_mcp.leases import LeaseKeeper, LeaseTimes
from tests.marks import promise
from tests.support.handling import delivery
from tests.support.waiting import stays, wait_until

TIMES = LeaseTimes(lease=0.5, renew=0.05, renew_again=0.02, give_up=0.4, loop_alive=0.25, heartbeat=0.02, settle=0.0)
PATIENT = replace(TIMES, lease=50.0, give_up=40.0, loop_alive=25.0)
"""Renewed as often, and not lost when the machine has something else to do for a moment."""


@dataclass
class Scripts:
    """The RENEW script of a server, by what it answers."""

    answer: list[Any] = field(default_factory=lambda: [b"OK", 0])
    refused: dict[str, Exception] = field(default_factory=dict[str, Exception])
    """By the key of a call."""
    away: bool = False
    outage: Exception = field(default_factory=lambda: RedisUnavailable("away"))
    disconnects: int = 0
    hangs: threading.Event | None = None
    asked_at: list[float] = field(default_factory=list[float])
    renewals: Counter[str] = field(default_factory=Counter[str])
    """How often the lease of each call was asked for, by the call's key."""
    threads: set[str] = field(default_factory=set[str])
    looks: int = 0
    marked: bool = False
    server: bytes = b"server"
    order: list[str] = field(default_factory=list[str])
    """What was written: the keys of calls, and reports."""
    round_trips: int = 0
    answered: bool = False
    """Whether a renewal has its answer."""

    def register_script(self, text: str) -> "Registered":
        return Registered()

    def script_exists(self, sha: str) -> list[bool]:
        self.looks += 1
        if self.away:
            raise self.outage
        return [self.marked]

    @property
    def connection_pool(self) -> "Scripts":
        return self

    def disconnect(self) -> None:
        self.disconnects += 1

    def script_load(self, text: str) -> None:
        self.marked = True

    def pipeline(self, transaction: bool = True) -> "Pipeline":
        return Pipeline(self)

    def renewed(self, call: str) -> Any:
        self.order.append(call)
        self.asked_at.append(time.monotonic())
        self.renewals[call] += 1
        self.threads.add(threading.current_thread().name)
        if self.hangs is not None:
            self.hangs.wait(5)
        if self.away:
            raise self.outage
        return self.refused.get(call, self.answer)


class Registered:
    """A script of redis-py."""

    sha = "sha"

    def __call__(self, keys: list[str], args: list[Any], client: "Pipeline") -> None:
        client.calls.append(keys[0])


@dataclass
class Pipeline:
    """Renewals on their way there."""

    scripts: Scripts
    calls: list[str] = field(default_factory=list[str])

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        assert not raise_on_error
        if self.calls == [Keys().workers]:  # a report
            self.scripts.order.append("report")
            return [self.scripts.server]
        self.scripts.round_trips += 1
        answers = [self.scripts.renewed(call) for call in self.calls]
        self.scripts.answered = True
        return answers


@dataclass
class Reports:
    """What a holder was informed of."""

    cancels: int = 0
    losses: list[float] = field(default_factory=list[float])

    def on_cancel(self) -> None:
        self.cancels += 1

    def on_lost(self) -> None:
        self.losses.append(time.monotonic())


@asynccontextmanager
async def keeping(
    scripts: Scripts, times: LeaseTimes = TIMES, recent: RecentCompletions | None = None
) -> AsyncGenerator[LeaseKeeper]:
    """A keeper that runs. It is cancelled as the worker does it, once: a cancel scope would not wait for its thread."""
    recent = recent or RecentCompletions()
    keeper = LeaseKeeper(cast("Redis", scripts), Keys(), times, worker="me", recent=recent, count=lambda _: None)
    running = asyncio.create_task(keeper.run())
    try:
        yield keeper
    finally:
        running.cancel()
        await asyncio.wait([running])


def hold(keeper: LeaseKeeper, reports: Reports, what: Delivery | None = None, *, started_at: str | None = None) -> Any:
    return keeper.held(
        what or delivery(ExecutionClass.REPEATABLE),
        1,
        since=time.monotonic(),
        on_cancel=reports.on_cancel,
        on_lost=reports.on_lost,
        started_at=started_at,
    )


@promise("leases are renewed from a thread, and fenced")
async def test_a_lease_is_renewed_from_a_thread_of_its_own_for_as_long_as_it_is_held() -> None:
    scripts, reports = Scripts(), Reports()
    times = replace(PATIENT, give_up=1.0)
    async with keeping(scripts, times) as keeper:
        with hold(keeper, reports):
            begun = time.monotonic()
            await wait_until(lambda: time.monotonic() - begun > 2 * times.give_up)
        (ours,) = scripts.renewals
        asked = scripts.renewals[ours]
        assert asked >= 8
        with hold(keeper, reports):
            await wait_until(lambda: scripts.renewals.total() > scripts.renewals[ours] + 3)
        assert scripts.renewals[ours] <= asked + 1
    assert scripts.threads == {"lease renewal"}
    assert reports == Reports()


async def test_a_cancel_request_is_reported_once() -> None:
    scripts, reports = Scripts(answer=[b"OK", 1]), Reports()
    async with keeping(scripts, PATIENT) as keeper:
        with hold(keeper, reports):
            await wait_until(lambda: len(scripts.asked_at) > 5)
    assert reports.cancels == 1
    assert not reports.losses


async def test_a_lease_that_another_worker_has_is_lost_once_and_asked_for_no_more() -> None:
    scripts, reports = Scripts(answer=[b"STALE"]), Reports()
    async with keeping(scripts, PATIENT) as keeper:
        with hold(keeper, reports):
            await wait_until(lambda: reports.losses)
            (ours,) = scripts.renewals
            asked = scripts.renewals[ours]
            scripts.answer = [b"OK", 0]
            with hold(keeper, Reports()):
                await wait_until(lambda: scripts.renewals.total() > asked + 3)
            assert scripts.renewals[ours] == asked
    assert len(reports.losses) == 1


async def test_a_call_that_ended_while_it_was_renewed_has_not_lost_its_lease(caplog: pytest.LogCaptureFixture) -> None:
    scripts, reports = Scripts(answer=[b"STALE"]), Reports()
    async with keeping(scripts, replace(TIMES, heartbeat=0.5, loop_alive=5.0, give_up=5.0)) as keeper:
        with hold(keeper, reports):
            await wait_until(lambda: scripts.asked_at)
            # The keeper knows the answer then, and reports it at the next heartbeat: the call has ended by then.
            await wait_until(lambda: scripts.answered)
        await stays(lambda: not reports.losses, 0.6)
    assert not caplog.records


async def test_while_redis_is_away_it_is_asked_again_soon_and_the_lease_is_given_up_in_time() -> None:
    scripts, reports = Scripts(away=True), Reports()
    times = replace(TIMES, renew=0.15, lease=5.0, loop_alive=5.0)
    async with keeping(scripts, times) as keeper:
        begun = time.monotonic()
        with hold(keeper, reports):
            await wait_until(lambda: reports.losses)
    assert times.give_up <= reports.losses[0] - begun < times.lease
    assert scripts.looks > 4


async def test_a_call_that_must_not_run_twice_goes_on_through_any_outage_until_another_worker_has_ended_it() -> None:
    scripts, reports, other = Scripts(away=True), Reports(), Reports()
    async with keeping(scripts) as keeper:
        with hold(keeper, reports, delivery(ExecutionClass.ONCE)), hold(keeper, other):
            await wait_until(lambda: other.losses)
            begun = time.monotonic()
            await wait_until(lambda: time.monotonic() - begun > TIMES.lease)
            assert not reports.losses
            scripts.away, scripts.answer = False, [b"STALE"]
            await wait_until(lambda: reports.losses)


@promise("Redis is killed again and again: nothing lost, no live lease taken")
async def test_an_outage_shorter_than_that_loses_nothing() -> None:
    scripts, reports = Scripts(away=True), Reports()
    async with keeping(scripts) as keeper:
        with hold(keeper, reports):
            await wait_until(lambda: scripts.looks > 3)
            scripts.away = False
            begun = time.monotonic()
            await wait_until(lambda: time.monotonic() - begun > TIMES.give_up)
    assert not reports.losses


async def test_an_outage_between_two_renewals_is_noticed_and_leases_are_renewed_as_soon_as_it_is_over() -> None:
    scripts, reports = Scripts(), Reports()
    async with keeping(scripts, replace(TIMES, renew=60.0, give_up=60.0)) as keeper:
        with hold(keeper, reports):
            await wait_until(lambda: scripts.asked_at and scripts.looks > 3)
            assert len(scripts.asked_at) == 1
            scripts.away = True
            looks = scripts.looks
            await wait_until(lambda: scripts.looks > looks + 1)
            scripts.away = False
            asked, back_at = len(scripts.asked_at), time.monotonic()
            await wait_until(lambda: len(scripts.asked_at) > asked)
            assert scripts.asked_at[asked] - back_at < 10  # not with the next renewal, which is a minute away
            looks = scripts.looks
            await wait_until(lambda: scripts.looks > looks + 2)
            assert len(scripts.asked_at) == asked + 1
    assert not reports.losses


async def test_a_server_that_was_started_anew_unnoticed_gets_all_renewals_at_once() -> None:
    scripts, reports = Scripts(), Reports()
    async with keeping(scripts, replace(TIMES, renew=60.0, give_up=60.0)) as keeper:
        with hold(keeper, reports), hold(keeper, reports):
            await wait_until(lambda: len(scripts.asked_at) == 2 and scripts.looks > 3)
            scripts.marked = False
            await wait_until(lambda: len(scripts.asked_at) == 4)


@promise("a blocked loop loses its leases")
async def test_however_many_leases_there_are_they_are_renewed_in_one_round_trip() -> None:
    scripts, reports = Scripts(), Reports()
    async with keeping(scripts, PATIENT) as keeper:
        with contextlib.ExitStack() as held:
            for _ in range(500):
                held.enter_context(hold(keeper, reports))
            await wait_until(lambda: scripts.round_trips >= 3)
    # The first may have been on its way before all were held.
    assert len(scripts.asked_at) > 500 * (scripts.round_trips - 1)
    assert reports == Reports()


@promise("a blocked loop loses its leases")
@pytest.mark.parametrize("error", [ResponseError("WRONGTYPE"), ResponseError("OOM command not allowed")])
async def test_a_lease_that_cannot_be_renewed_hides_no_other(error: Exception) -> None:
    scripts, reports, other, stuck = Scripts(), Reports(), Reports(), delivery(ExecutionClass.REPEATABLE)
    scripts.refused[Keys().call(stuck.request.correlation_id)] = error
    async with keeping(scripts, replace(PATIENT, give_up=1.0, lease=2.0)) as keeper:
        with hold(keeper, reports, stuck), contextlib.ExitStack() as others:
            for _ in range(5):
                others.enter_context(hold(keeper, other))
            await wait_until(lambda: reports.losses)
            assert not other.losses


async def test_a_renewal_that_hangs_holds_up_neither_the_end_of_its_lease_nor_that_of_others() -> None:
    scripts, reports, other = Scripts(hangs=threading.Event()), Reports(), Reports()
    async with keeping(scripts) as keeper:
        begun = time.monotonic()
        with hold(keeper, reports), hold(keeper, other):
            await wait_until(lambda: reports.losses and other.losses)
        assert max(*reports.losses, *other.losses) - begun < TIMES.lease
        assert scripts.hangs is not None
        scripts.hangs.set()


@promise("a blocked loop loses its leases")
async def test_a_loop_that_stands_still_gets_no_renewals_and_then_loses_its_leases() -> None:
    scripts, reports = Scripts(), Reports()
    async with keeping(scripts) as keeper:
        with hold(keeper, reports):
            await wait_until(lambda: scripts.asked_at)
            still_since = time.monotonic()
            time.sleep(TIMES.loop_alive + TIMES.give_up + 0.1)  # noqa: ASYNC251 -- this is the fault
            woken = time.monotonic()
            assert max(at for at in scripts.asked_at if at < woken) - still_since < TIMES.loop_alive + 2 * TIMES.renew
            await wait_until(lambda: reports.losses)


async def test_the_keeper_ends_with_its_thread_whatever_that_waits_for() -> None:
    scripts = Scripts(hangs=threading.Event())
    assert scripts.hangs is not None
    async with keeping(scripts) as keeper:
        with hold(keeper, Reports()):
            await wait_until(lambda: scripts.asked_at)
        asyncio.get_running_loop().call_later(5 * TIMES.renew, scripts.hangs.set)
    assert scripts.hangs.is_set()
    assert "lease renewal" not in {thread.name for thread in threading.enumerate()}


def test_after_an_outage_all_leases_are_renewed_before_anything_new_is_taken() -> None:
    assert 2 * LeaseTimes().renew_again < SETTLE_SECONDS


@promise("a once call that an earlier server of Redis may have started is not started at the next one")
async def test_at_another_server_a_worker_writes_all_that_it_knows_before_it_reports() -> None:
    scripts, running, ended = Scripts(), delivery(ExecutionClass.ONCE), "plugins.calls:ended"
    recent = RecentCompletions()
    recent.add(Command("complete", [ended], []))
    async with keeping(scripts, replace(TIMES, renew=60.0), recent=recent) as keeper:
        assert await keeper.reported() == "server"
        with hold(keeper, Reports(), running):
            scripts.order.clear()
            scripts.server, scripts.marked = b"another", False
            await wait_until(lambda: scripts.order.count("report") == 2)
            assert await keeper.reported() == "another"
    # It asks which server this is, writes, and reports there.
    assert scripts.order == ["report", Keys().call(running.request.correlation_id), ended, "report"]


async def test_a_new_worker_starts_nothing_before_its_report_is_old_enough_to_be_kept() -> None:
    scripts, times = Scripts(), replace(TIMES, renew=60.0, settle=0.4)
    async with keeping(scripts, times) as keeper:
        begun = time.monotonic()
        reported = asyncio.create_task(keeper.reported())
        await wait_until(lambda: scripts.order.count("report") == 2)
        scripts.server, scripts.marked = b"another", False  # which may have lost the first report
        await wait_until(lambda: scripts.order.count("report") >= 4)
        again = time.monotonic()
        assert (await reported, time.monotonic() - begun > times.settle) == ("another", True)
        assert time.monotonic() - again > times.settle / 2
        scripts.server, scripts.marked = b"a third", False
        await wait_until(lambda: scripts.order.count("report") >= 6)
        async with asyncio.timeout(times.settle / 2):  # that one has the report of the second server, or an older one
            assert await keeper.reported() == "a third"


@pytest.mark.parametrize(
    "error",
    [
        RedisUnavailable("no right to run 'script|exists'", code="NOPERM"),
        RedisUnavailable("a replica", code="READONLY"),
    ],
)
async def test_why_a_worker_cannot_report_is_logged_once_and_a_demoted_master_is_left(
    error: RedisUnavailable, caplog: pytest.LogCaptureFixture
) -> None:
    scripts = Scripts(away=True, outage=error)
    async with keeping(scripts) as keeper:
        await wait_until(lambda: scripts.looks > 3)
        scripts.away = False
        await keeper.reported()
    [record] = caplog.records
    assert str(error) in record.getMessage()
    assert (scripts.disconnects > 1) == (error.code == "READONLY")


async def test_a_call_that_was_started_at_the_server_before_is_not_held_at_the_next_one() -> None:
    scripts = Scripts()
    async with keeping(scripts) as keeper:
        before = await keeper.reported()
        scripts.server, scripts.marked = b"another", False
        await wait_until(lambda: scripts.order.count("report") >= 4)
        assert await keeper.reported() == "another"
        with pytest.raises(ServerChangedError), hold(keeper, Reports(), started_at=before):
            pass
        with hold(keeper, Reports(), started_at="another"):
            pass
