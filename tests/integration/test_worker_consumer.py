"""What a consumer takes from the stream and what it leaves there, on real Redis and with a handler that obeys."""

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from callstream_runtime.clock import RedisClock
from callstream_runtime.connections import blocking_client, command_client
from callstream_runtime.pool_directory import PoolDirectory
from plugins_contract.catalog import ToolEntry
from plugins_contract.encryption import CLEAR
from plugins_contract.keys import GROUP, Keys
from plugins_contract.ledger import Delivery, EngineLedger, WorkerLedger
from plugins_contract.messages import NEWEST_VERSION, ToolCallRequested, encode_request
from plugins_contract.outcomes import CallState
from plugins_contract.pools import Route
from plugins_mcp.adoption import RequestAdopter
from plugins_mcp.consumer import BLOCK_SECONDS, TURN_SECONDS, Consumer
from plugins_mcp.leases import LeaseTimes
from plugins_mcp.observe.calls import CallObserver
from plugins_mcp.observe.metrics import Metrics
from plugins_mcp.ports import Handler, PoolFinder, ToolLookup
from tests.marks import promise
from tests.support.ledger import DONE, LEASE_MS
from tests.support.waiting import wait_until
from tests.support.working import Caller, calling

pytestmark = pytest.mark.every_redis

OFTEN = LeaseTimes(lease=LEASE_MS / 1000, sweep=0.02)


@dataclass
class Gate(Handler):
    """Starts every delivery, and ends it on demand. Calls of the server `elsewhere` it leaves to others."""

    ledger: WorkerLedger
    open: asyncio.Event = field(default_factory=asyncio.Event)
    taken: list[Delivery] = field(default_factory=list[Delivery])
    running: int = 0
    most: int = 0

    def serves(self, request: ToolCallRequested) -> bool:
        return request.server != "elsewhere"

    async def handle(self, delivery: Delivery) -> None:
        self.taken.append(delivery)
        if not self.serves(delivery.request):
            await self.ledger.pass_on(delivery, lease_ms=LEASE_MS)
            return
        self.running += 1
        self.most = max(self.most, self.running)
        started = await self.ledger.start(delivery, max_starts=3, expired=DONE)
        try:
            await self.open.wait()
            await self.ledger.complete(delivery, getattr(started, "fence", 0), DONE)
        finally:
            self.running -= 1


class OneTool(ToolLookup):
    """The tool `echo` of the server `demo`."""

    def own(self, name: str) -> ToolEntry | None:
        return ToolEntry(name=name, server="demo", tool="echo", input_schema={}) if name == "demo__echo" else None

    async def find(self, name: str) -> Sequence[ToolEntry]:
        return [entry] if (entry := self.own(name)) else []


@dataclass(frozen=True)
class Only(PoolFinder):
    """One pool fits every call."""

    pool: str

    async def lives(self, own: str) -> bool:
        return True

    async def find(self, server: str, version: int) -> str | None:
        return self.pool

    async def route(self, server: str, version: int) -> Route:
        return Route(self.pool)


@dataclass
class Crew:
    """A caller, and consumers under test."""

    caller: Caller
    url: str
    steady: float = 1000.0
    seen: float | None = None
    """For how long Redis turns out to have been steady when it is looked at; None: no news."""
    settle: float = 0.0
    member_of: Sequence[str] = ()
    metrics: Metrics = field(default_factory=Metrics)
    checks: int = 0
    """How often consumers have asked for how long Redis has been steady: several times in each sweep and read."""

    @asynccontextmanager
    async def consuming(
        self, name: str = "b", *, concurrency: int = 4, times: LeaseTimes = OFTEN, turn_seconds: float = TURN_SECONDS
    ) -> AsyncGenerator[tuple[Consumer, Gate]]:
        """A consumer that runs for as long as the block, and then waits for what it has in hand."""
        redis, reader = command_client(self.url), blocking_client(self.url, block_seconds=BLOCK_SECONDS)
        ledger = WorkerLedger(redis, Keys(), cipher=CLEAR)
        gate = Gate(ledger)
        consumer = Consumer(
            reader,
            redis,
            Keys(),
            ledger,
            gate,
            RequestAdopter(ledger, OneTool(), Keys(), RedisClock(), default_timeout_ms=30_000),
            PoolDirectory(redis, Keys(), RedisClock()),
            name=name,
            member_of=lambda: self.member_of,
            concurrency=concurrency,
            steady_for=self._steady_for,
            check_redis=self._look,
            times=times,
            settle_seconds=self.settle,
            turn_seconds=turn_seconds,
            observer=CallObserver(self.metrics),
            cipher=CLEAR,
        )
        work = asyncio.create_task(consumer.run())
        try:
            yield consumer, gate
        finally:
            work.cancel()
            await asyncio.wait([work])
            gate.open.set()
            await consumer.drain(5)
            await redis.aclose()
            await reader.aclose()

    def _steady_for(self) -> float:
        self.checks += 1
        return self.steady

    async def checks_again(self, times: int) -> None:
        before = self.checks
        await wait_until(lambda: self.checks >= before + times)

    def redelivered(self, how: str) -> float | None:
        return self.metrics.registry.get_sample_value("plugins_redeliveries_total", {"how": how})

    async def _look(self) -> None:
        if self.seen is not None:
            self.steady = self.seen

    async def dropped(self, count: int, *, consumer: str = "gone") -> list[Delivery]:
        """Requests that a consumer took and left lying for longer than a lease."""
        for _ in range(count):
            await self.caller.call()
        deliveries = [await self.caller.deliver(consumer) for _ in range(count)]
        for delivery in deliveries:
            await self.caller.age(delivery)
        return deliveries


@pytest.fixture
async def crew(redis: Redis, redis_url: str) -> AsyncGenerator[Crew]:
    async with calling(redis_url) as caller:
        yield Crew(caller, redis_url)


@promise("stream and group are made where there are none")
@promise("consumers leave the group without taking work along")
async def test_stream_and_group_are_made_where_there_is_none_and_a_consumer_leaves_them(crew: Crew) -> None:
    async with crew.consuming() as (consumer, gate):
        await wait_until(lambda: consumer.reading)
        groups = await crew.caller.redis.xinfo_groups(crew.caller.keys.requests)
        assert [(group["name"], group["last-delivered-id"]) for group in groups] == [(GROUP.encode(), b"0-0")]
        gate.open.set()
        await crew.caller.outcome(await crew.caller.call())
        assert await crew.caller.consumers() == {"b": 0}
    assert await crew.caller.worker.retire("b", lease_ms=LEASE_MS)
    assert await crew.caller.consumers() == {}


@promise("a group that vanished is made again and nothing is passed over")
@pytest.mark.parametrize("loss", ["the group", "the stream", "everything"])
async def test_a_group_that_vanished_is_made_again_and_nothing_is_passed_over(
    crew: Crew, loss: str, caplog: pytest.LogCaptureFixture
) -> None:
    caller = crew.caller
    async with crew.consuming() as (consumer, gate):
        gate.open.set()
        await wait_until(lambda: consumer.reading)
        match loss:
            case "the group":
                await caller.command("XGROUP", "DESTROY", caller.keys.requests, GROUP)
            case "the stream":
                await caller.command("DEL", caller.keys.requests)
            case _:
                await caller.command("FLUSHALL")
        request = await caller.call()
        assert (await caller.outcome(request)).state is CallState.SUCCEEDED
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@promise("a worker takes no more than it has slots")
async def test_no_more_is_taken_than_there_are_slots_by_reading_and_taking_over_together(crew: Crew) -> None:
    await crew.caller.open()
    await crew.dropped(12)
    waiting = [await crew.caller.call() for _ in range(12)]
    async with crew.consuming(concurrency=3) as (_, gate):
        await wait_until(lambda: gate.running == 3)
        pending = await crew.caller.pending()
        assert sum(row.consumer == "b" for row in pending) == 3
        gate.open.set()
        for request in waiting:
            await crew.caller.outcome(request)
        await wait_until(lambda: len(gate.taken) == 24)
        assert gate.most == 3
    assert await crew.caller.backlog() == 0


@pytest.mark.parametrize("slots", [2, 4])
async def test_no_more_is_taken_from_all_streams_together_than_there_are_slots(crew: Crew, slots: int) -> None:
    crew.member_of = ("p", "q")
    caller, requests = crew.caller, [await crew.caller.request() for _ in range(18)]
    streams = [caller.keys.requests_of(pool) for pool in ("", "p", "q")]
    async with crew.consuming(concurrency=slots) as (consumer, gate):
        await wait_until(lambda: consumer.reading)
        for request, pool in zip(requests, ("", "p", "q") * 6, strict=True):
            await EngineLedger(caller.redis, caller.keys, pools=Only(pool), cipher=CLEAR).enqueue(request)
        await wait_until(lambda: gate.running == slots)
        gate.open.set()
        for request in requests:
            await caller.outcome(request)
        assert gate.most == slots
        assert {delivery.stream for delivery in gate.taken} == set(streams)
    assert [await caller.redis.xlen(stream) for stream in streams] == [0, 0, 0]


async def test_a_stream_that_has_more_requests_is_read_for_all_free_slots(crew: Crew) -> None:
    crew.member_of = ("p", "q")
    for _ in range(20):
        await crew.caller.call()
    await crew.caller.command("CONFIG", "RESETSTAT")
    async with crew.consuming(concurrency=12, times=LeaseTimes(sweep=60)) as (_, gate):
        await wait_until(lambda: gate.running == 12)
        reads = (await crew.caller.redis.info("commandstats"))["cmdstat_xreadgroup"]["calls"]
        assert reads <= 3 + 2, "one of each stream's own entries, one of all streams, and one of this"


async def test_a_single_slot_waits_at_no_empty_stream_while_another_has_requests(crew: Crew) -> None:
    crew.member_of = ("p", "q")
    requests = [await crew.caller.call() for _ in range(40)]
    async with crew.consuming(concurrency=1, times=LeaseTimes(sweep=60), turn_seconds=BLOCK_SECONDS) as (_, gate):
        gate.open.set()
        await wait_until(lambda: len(gate.taken) == len(requests))


async def test_while_the_watch_sees_no_redis_that_serves_nothing_is_read_and_that_is_said(crew: Crew) -> None:
    crew.settle = 0.5
    async with crew.consuming() as (consumer, _):
        await wait_until(lambda: consumer.reading)
        crew.steady = 0.0
        await wait_until(lambda: not consumer.reading)
        crew.steady = 1000.0
        await wait_until(lambda: consumer.reading)


@promise("nothing is taken over right after an outage or a clock step")
@pytest.mark.parametrize("seen", ["in time", "at the takeover"])
async def test_nothing_is_taken_over_before_redis_has_been_steady_for_a_while(crew: Crew, seen: str) -> None:
    """A takeover looks at Redis first, because its clock may have been set."""
    await crew.caller.open()
    (old,) = await crew.dropped(1)
    if seen == "in time":
        crew.steady = OFTEN.grace - 0.1
    else:
        crew.seen = 0.0
    async with crew.consuming() as (_, gate):
        gate.open.set()
        await wait_until(lambda: crew.steady < OFTEN.grace)
        await crew.checks_again(10)
        await crew.caller.outcome(await crew.caller.call())
        assert old.entry not in [delivery.entry for delivery in gate.taken]
        crew.seen, crew.steady = None, OFTEN.grace
        await crew.caller.outcome(old.request)


async def test_one_sweep_finds_what_was_dropped_among_much_that_is_not_whatever_room_there_is(crew: Crew) -> None:
    caller = crew.caller
    await caller.open()
    for _ in range(60):
        await caller.call()
        await caller.age(await caller.deliver("busy"), ms=0)
    (old,) = await crew.dropped(1)
    async with crew.consuming(concurrency=1, times=LeaseTimes(lease=3.0, sweep=3600.0)) as (_, gate):
        gate.open.set()
        await caller.outcome(old.request, timeout=2.0)
        assert [delivery.entry for delivery in gate.taken] == [old.entry]
    assert crew.redelivered("takeover") == 1
    assert {row.consumer for row in await caller.pending()} == {"busy"}


async def test_what_was_dropped_goes_before_what_is_new(crew: Crew) -> None:
    caller = crew.caller
    await caller.open()
    dropped = await crew.dropped(3)
    new = [await caller.call() for _ in range(5)]
    async with crew.consuming(concurrency=1, times=LeaseTimes(lease=3.0, sweep=3600.0)) as (_, gate):
        gate.open.set()
        for request in new:
            await caller.outcome(request)
        assert [delivery.entry for delivery in gate.taken[:3]] == [old.entry for old in dropped]


async def test_what_is_left_to_other_workers_is_no_reason_to_hurry(crew: Crew) -> None:
    caller = crew.caller
    await caller.open()
    for _ in range(20):
        await caller.call(server="elsewhere")
    async with crew.consuming(concurrency=2, times=LeaseTimes(lease=3.0, sweep=1.0)) as (_, gate):
        gate.open.set()
        await wait_until(lambda: len(gate.taken) >= 22)
        began, before = asyncio.get_running_loop().time(), len(gate.taken)
        await wait_until(lambda: len(gate.taken) >= before + 4)
        assert asyncio.get_running_loop().time() - began > 0.7, "two at a time, about once a second"
        old = await caller.call()
        await caller.outcome(old)


async def test_nothing_new_is_taken_before_those_who_run_calls_had_the_time_to_say_so(crew: Crew) -> None:
    await crew.caller.open()
    ours = await crew.caller.call()
    await crew.caller.deliver("b")
    new = await crew.caller.call()
    crew.settle, crew.steady = 1.0, 0.9
    async with crew.consuming("b") as (consumer, gate):
        gate.open.set()
        await crew.caller.outcome(ours)
        await wait_until(lambda: consumer.reading)
        await crew.checks_again(4)
        assert [delivery.request for delivery in gate.taken] == [ours]
        crew.steady = 1.1
        await crew.caller.outcome(new)


@promise("nothing is taken over right after an outage or a clock step")
async def test_after_an_outage_of_its_own_a_consumer_waits_though_the_watch_saw_nothing(crew: Crew) -> None:
    caller = crew.caller
    await caller.open()
    crew.settle, crew.steady = 0.5, 0.6
    async with crew.consuming() as (consumer, gate):
        gate.open.set()
        await caller.outcome(await caller.call())
        await caller.command("CLIENT", "KILL", "TYPE", "normal")
        await wait_until(lambda: not consumer.reading)
        crew.steady = 1000.0
        await wait_until(lambda: consumer.reading)
        back_at = time.monotonic()
        await caller.outcome(await caller.call())
        assert time.monotonic() - back_at > crew.settle - 0.1


async def test_a_consumer_whose_connections_break_all_the_time_still_takes_over(crew: Crew) -> None:
    caller = crew.caller
    await caller.open()
    (old,) = await crew.dropped(1)
    began = time.monotonic()
    crew.steady = 0.0
    async with crew.consuming(times=LeaseTimes(lease=OFTEN.lease, sweep=0.02, grace=1.0)) as (_, gate):
        gate.open.set()
        while not await caller.has_ended(old.request):
            assert time.monotonic() - began < 15
            await caller.command("CLIENT", "KILL", "TYPE", "normal")
            # The watch, on a connection of its own, has had its answers all the while.
            crew.steady = time.monotonic() - began
            with suppress(TimeoutError):  # shorter than the grace, and long enough for a recovery
                await wait_until(lambda: caller.has_ended(old.request), 0.4)


async def test_what_a_worker_has_in_hand_is_not_taken_again_when_the_group_is_made_anew(crew: Crew) -> None:
    caller = crew.caller
    async with crew.consuming(concurrency=4) as (consumer, gate):
        requests = [await caller.call() for _ in range(3)]
        await wait_until(lambda: gate.running == 3)
        await caller.command("XGROUP", "DESTROY", caller.keys.requests, GROUP)
        await wait_until(lambda: not consumer.reading)
        # Delivered once more, as new, and to the one who runs them.
        await wait_until(lambda: _pending_of(caller, "b", 3))
        requests.append(await caller.call())
        await wait_until(lambda: gate.running == 4)
        # Not looked at later: leases are not renewed here, and a call that ends while it is claimed is taken once more.
        assert len(gate.taken) == 4
        gate.open.set()
        for request in requests:
            assert (await caller.outcome(request)).state is CallState.SUCCEEDED
            assert await caller.starts(request) == 1
        await wait_until(caller.backlog_is_empty)
        await wait_until(caller.nothing_pending)


async def _pending_of(caller: Caller, consumer: str, count: int) -> bool:
    try:
        return [row.consumer for row in await caller.pending()] == [consumer] * count
    except ResponseError:
        return False  # there is no group yet


async def test_a_stream_that_cannot_be_read_is_not_asked_for_in_a_hurry(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    read = Redis.xreadgroup

    async def group_gone(self: Redis, group: str, name: str, streams: dict[str, str], **options: Any) -> Any:
        nonlocal asked
        if [*streams.values()] != [">"]:
            return await read(self, group, name, streams, **options)  # pyright: ignore[reportArgumentType]
        asked += 1
        raise ResponseError("NOGROUP No such key 'events.plugins' or consumer group")

    # The group is there for who makes it and looks for what is its own, and not for who reads on.
    monkeypatch.setattr("redis.asyncio.Redis.xreadgroup", group_gone)
    async with crew.consuming(times=LeaseTimes()) as (consumer, gate):
        await wait_until(lambda: asked >= 2)
        begun, before = time.monotonic(), asked
        await wait_until(lambda: asked >= before + 2)
        assert time.monotonic() - begun > 0.5
        assert not gate.taken
        assert not consumer.reading


@promise("our own pending entries are found again")
@promise("one reply in a hundred of Redis is lost: no duplicate entry, no lost delivery")
async def test_our_own_pending_list_is_taken_in_pages_and_no_faster_than_slots_come_free(crew: Crew) -> None:
    """They are deliveries whose replies were lost."""
    await crew.caller.open()
    requests = [await crew.caller.call() for _ in range(120)]
    for _ in requests:
        await crew.caller.deliver("b")
    async with crew.consuming("b", concurrency=5) as (_, gate):
        gate.open.set()
        await wait_until(crew.caller.backlog_is_empty)
        assert gate.most <= 5
        assert len(gate.taken) == 120
    assert crew.redelivered("recovery") == 120


@pytest.mark.parametrize("holder", ["b", "gone"])
async def test_pending_entries_whose_requests_were_deleted_are_let_go(
    crew: Crew, holder: str, caplog: pytest.LogCaptureFixture
) -> None:
    await crew.caller.open()
    for delivery in await crew.dropped(3, consumer=holder):
        await crew.caller.command("XDEL", crew.caller.keys.requests, delivery.entry)
    async with crew.consuming("b") as (consumer, gate):
        await wait_until(lambda: consumer.reading)
        await wait_until(crew.caller.nothing_pending)
        # Leases that expire one by one may be seen by more than one sweep.
        await wait_until(lambda: sum(map(int, re.findall(r"(\d+) pending requests were deleted", caplog.text))) == 3)
        assert not gate.taken


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (b"not json", "not a PluginToolCallRequested event: JSON is malformed"),
        (b'{"subject": "\xff"}', "not a PluginToolCallRequested event: 'utf-8' codec can't decode"),
        (b'{"arguments": {"a": ' + b"[" * 5000 + b"]" * 5000 + b"}}", "maximum recursion depth exceeded"),
        (b"{}", "missing required field `eventType`"),
        (b'{"eventVersion": "x"}', "Expected `int`, got `str` - at `$.eventVersion`"),
    ],
)
async def test_what_cannot_be_read_goes_to_the_dead_letters_and_the_rest_goes_on(
    crew: Crew, event: bytes, reason: str
) -> None:
    caller = crew.caller
    async with crew.consuming() as (_, gate):
        gate.open.set()
        await caller.redis.xadd(caller.keys.requests, {"event": event})
        await caller.outcome(await caller.call())
        await wait_until(caller.backlog_is_empty)
    (letter,) = await caller.raw_dead_letters()
    assert letter[b"event"] == event
    assert reason in letter[b"reason"].decode()


@promise("a dead letter answers its caller too")
async def test_the_caller_of_a_request_that_is_too_new_for_all_workers_is_answered_at_its_deadline(crew: Crew) -> None:
    caller = crew.caller
    request = await caller.call(expires_in_ms=1000)
    row = (await caller.redis.xrange(caller.keys.requests))[0]
    newer = encode_request(request).replace(b'"eventVersion":1', b'"eventVersion":%d' % (NEWEST_VERSION + 1))
    await caller.command("XDEL", caller.keys.requests, row[0])
    entry = await caller.redis.xadd(caller.keys.requests, {**row[1], b"event": newer})
    await caller.redis.hset(caller.keys.call(request.correlation_id), "entry", entry)
    async with crew.consuming() as (_, gate):
        outcome = await caller.outcome(request)
        assert not gate.taken
    assert await caller.now_ms() >= request.deadline, "until then a newer worker may start"
    assert outcome.state is CallState.DEAD
    assert outcome.error is not None
    assert f"eventVersion is {NEWEST_VERSION + 1}, this release reads 1" in outcome.error.message
    assert [identity for identity, _ in await caller.mailbox()] == [request.correlation_id]


async def test_an_entry_without_our_fields_or_that_cannot_even_be_buried_does_not_hold_up_the_others(
    crew: Crew,
) -> None:
    caller = crew.caller
    await caller.redis.set(caller.keys.call("odd"), "not a hash", ex=60)
    async with crew.consuming() as (_, gate):
        gate.open.set()
        await caller.redis.xadd(caller.keys.requests, {"event": "x", "correlationId": "odd"})
        await caller.redis.xadd(caller.keys.requests, {"what": "ever"})
        for _ in range(3):
            await caller.outcome(await caller.call())
        await wait_until(caller.raw_dead_letters)


@promise("the same request twice is one call; other arguments are a conflict")
@promise("what comes twice is done once; a lost notification delays an answer and loses none")
async def test_the_same_request_twice_in_the_stream_runs_once(crew: Crew) -> None:
    caller = crew.caller
    request = await caller.call()
    fields = (await caller.redis.xrange(caller.keys.requests))[0][1]
    await caller.redis.xadd(caller.keys.requests, fields)
    async with crew.consuming() as (_, gate):
        await wait_until(lambda: len(gate.taken) == 2)
        gate.open.set()
        await caller.outcome(request)
        await wait_until(caller.backlog_is_empty)
    assert await caller.starts(request) == 1
    assert len(await caller.channel(request)) == 1
