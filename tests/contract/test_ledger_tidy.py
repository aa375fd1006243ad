"""TIDY: consumers whose workers are gone are taken out of the group, and nothing with them."""

import asyncio
import time
from functools import partial

import pytest

from callstream_runtime.connections import blocking_client
from plugins_contract.keys import GROUP
from plugins_contract.ledger import replies
from plugins_contract.ledger.group import show_consumer, tidy_consumers
from plugins_mcp.dead_consumers import CleanupTimes, remove_dead_consumers
from tests.integration.engines import at_work
from tests.marks import promise
from tests.support.ledger import Bench
from tests.support.waiting import wait_until

pytestmark = pytest.mark.every_redis

SILENT_MS = 300


async def tidy(bench: Bench, *, silent_ms: int = SILENT_MS) -> list[str]:
    return await tidy_consumers(bench.redis, bench.keys, "me", silent_ms=silent_ms)


async def test_without_a_stream_or_a_group_no_consumer_is_removed(bench: Bench) -> None:
    await bench.command("XGROUP", "DESTROY", bench.keys.requests, GROUP)
    assert await tidy(bench) == []
    await bench.command("DEL", bench.keys.requests)
    assert await tidy(bench) == []


@promise("consumers leave the group without taking work along")
async def test_a_thousand_workers_that_were_killed_are_taken_out_together(bench: Bench) -> None:
    killed = "for n = 1, 1000 do redis.call('XGROUP', 'CREATECONSUMER', KEYS[1], ARGV[1], 'killed-' .. n) end"
    await bench.command("EVAL", killed, 1, bench.keys.requests, GROUP)
    await bench.command("XGROUP", "CREATECONSUMER", bench.keys.requests, GROUP, "me")
    await wait_until(lambda: tidy(bench))
    await wait_until(lambda: _only_me(bench))


async def _only_me(bench: Bench) -> bool:
    await tidy(bench)
    return await bench.consumers() == {"me": 0}


@promise("consumers leave the group without taking work along")
@pytest.mark.guard("tidy", "info.pending == 0 and")
async def test_a_consumer_that_holds_something_is_never_taken_out(bench: Bench) -> None:
    await bench.queued()
    delivery = await bench.deliver("killed")
    assert await tidy(bench, silent_ms=0) == []
    assert await bench.consumers() == {"killed": 1}

    other = await bench.claim(delivery, "me")
    assert isinstance(await bench.start(other), replies.Run)
    assert await tidy(bench, silent_ms=0) == ["killed"]
    assert [(row.entry, row.consumer) for row in await bench.pending()] == [(delivery.entry, "me")]


@pytest.mark.guard("tidy", "name ~= consumer and info", "info")
@pytest.mark.guard("tidy", "info.idle >= silent_ms", "true")
async def test_the_consumer_that_tidies_and_those_that_read_recently_stay(bench: Bench) -> None:
    for name in ("me", "gone"):
        await show_consumer(bench.redis, bench.keys, name)
    assert await tidy(bench, silent_ms=60_000) == []
    assert await tidy(bench, silent_ms=0) == ["gone"]
    assert await bench.consumers() == {"me": 0}


async def test_a_consumer_that_shows_itself_is_alive_though_there_is_nothing_to_read(bench: Bench) -> None:
    await show_consumer(bench.redis, bench.keys, "gone")
    times = CleanupTimes(silent=SILENT_MS / 1000, every=SILENT_MS / 3000)
    removed = list[str]()
    tidying = partial(remove_dead_consumers, bench.redis, bench.keys, steady_for=lambda: 1000.0, times=times)
    async with at_work(*(partial(tidying, name, removed=removed.extend) for name in ("one", "two"))):
        await wait_until(lambda: _are(bench, {"one", "two", "gone"}))
        await wait_until(lambda: _are(bench, {"one", "two"}))
        ends_at = time.monotonic() + 3 * SILENT_MS / 1000

        async def both_stay() -> bool:
            assert await _are(bench, {"one", "two"})
            return time.monotonic() >= ends_at

        await wait_until(both_stay)
        assert removed == ["gone"]


async def _are(bench: Bench, names: set[str]) -> bool:
    return (await bench.consumers()).keys() == names


async def test_after_an_outage_no_consumer_is_removed_before_all_had_time_to_show_themselves(bench: Bench) -> None:
    await show_consumer(bench.redis, bench.keys, "other")
    steady, looks = 0.0, 0

    def steady_for() -> float:
        nonlocal looks
        looks += 1
        return steady

    times, removed = CleanupTimes(silent=0.001, every=0.02), list[str]()
    tidying = partial(
        remove_dead_consumers, bench.redis, bench.keys, "me", steady_for=steady_for, removed=removed.extend, times=times
    )
    async with at_work(tidying):
        await wait_until(lambda: _are(bench, {"me", "other"}))
        await wait_until(lambda: looks > 10)
        assert await _are(bench, {"me", "other"})
        steady = 1.0
        await wait_until(lambda: _are(bench, {"me"}))


async def test_a_consumer_that_is_removed_while_it_waits_gets_the_next_request(bench: Bench, redis_url: str) -> None:
    blocking = blocking_client(redis_url, block_seconds=2)
    await show_consumer(bench.redis, bench.keys, "asleep")
    reading = asyncio.ensure_future(blocking.xreadgroup(GROUP, "asleep", {bench.keys.requests: ">"}, block=2000))
    try:
        assert await wait_until(lambda: tidy(bench, silent_ms=1)) == ["asleep"]
        await bench.engine.enqueue(await bench.request())
        assert await reading
        assert await bench.consumers() == {"asleep": 1}
    finally:
        reading.cancel()
        await asyncio.wait([reading])
        await blocking.aclose()
