"""Requests on the stream of a pool: they get there, are found by every step of the ledger, and come back."""

import msgspec
import pytest

from callstream_runtime.connections import command_client
from callstream_runtime.pool_directory import PoolDirectory
from callstream_runtime.redis_errors import RedisUnavailable
from deploy.local.ports import free_port
from plugins_contract.encryption import CLEAR
from plugins_contract.keys import GROUP, Keys
from plugins_contract.ledger import EngineLedger, Offer, replies
from plugins_contract.messages import NEWEST_VERSION, ToolCallRequested
from plugins_contract.outcomes import CallState
from plugins_contract.pools import Member
from tests.support.handling import StoppedClock, delivery
from tests.support.ledger import DONE, LEASE_MS, LOST, Bench
from tests.support.waiting import wait_until

pytestmark = pytest.mark.every_redis

POOL = "browser"
STREAM = Keys().requests_of(POOL)


def member(*servers: str, at: int = 1_000_000, pools: tuple[str, ...] = (POOL,)) -> Member:
    return Member(at=at, servers=servers, pools=pools, reads=NEWEST_VERSION)


def directory(bench: Bench) -> PoolDirectory:
    return PoolDirectory(bench.redis, bench.keys, StoppedClock())


async def opened(bench: Bench) -> PoolDirectory:
    """A worker `b` in the pool, with the server `demo`, beside a worker `a` without it."""
    await bench.command("XGROUP", "CREATE", STREAM, GROUP, "0", "MKSTREAM")
    pools = directory(bench)
    await pools.announce("a", member("other", pools=("others",)))
    await pools.announce("b", member("demo"))
    return pools


def engine(bench: Bench) -> EngineLedger:
    return EngineLedger(bench.redis, bench.keys, pools=directory(bench), cipher=CLEAR)


async def moved(bench: Bench, execution_class: str = "once") -> ToolCallRequested:
    """A call that worker `a` has read from `events.plugins`, and has moved to the pool."""
    await opened(bench)
    request = await bench.queued(execution_class)
    assert await bench.worker.pass_on(await bench.deliver("a"), to=POOL, lease_ms=LEASE_MS)
    return request


async def test_a_call_is_put_where_its_workers_are_and_only_they_find_it(bench: Bench) -> None:
    await opened(bench)
    request = await bench.request()
    await engine(bench).enqueue(request)
    assert await bench.next_delivery("a") is None
    delivery = await bench.deliver("b", STREAM)
    assert await bench.worker.complete(delivery, await bench.run(delivery), DONE) == replies.Completed()
    assert await bench.redis.xlen(STREAM) == 0
    assert (await bench.ledger(request))["state"] == CallState.SUCCEEDED


@pytest.mark.guard(
    "enqueue",
    "if requests ~= common and redis.call('EXISTS', requests) == 0 then requests = common end",
    same_servers=False,
)
@pytest.mark.parametrize("same_servers", [True, False])
async def test_without_a_stream_of_its_pool_or_with_one_pool_a_call_is_on_the_common_stream(
    bench: Bench, same_servers: bool
) -> None:
    pools = await opened(bench)
    if same_servers:
        await pools.announce("a", member("other", "demo", pools=("others",)))
    else:
        await bench.command("DEL", STREAM)
    await engine(bench).enqueue(await bench.request())
    assert (await bench.backlog(), await bench.redis.xlen(STREAM)) == (1, 0)


async def test_a_call_in_the_hands_of_the_wrong_worker_moves_with_everything_it_has(bench: Bench) -> None:
    request = await moved(bench)
    assert (await bench.backlog(), await bench.pending()) == (0, [])
    delivery = await bench.deliver("b", STREAM)
    assert delivery.request == request
    await bench.run(delivery)


@pytest.mark.guard("pass", "and redis.call('EXISTS', to) == 1")
@pytest.mark.guard("pass", "'RETRYCOUNT', 0, ")
async def test_nothing_moves_to_a_pool_without_a_stream_and_the_next_worker_takes_nothing_over(bench: Bench) -> None:
    delivery = await bench.read()
    assert await bench.worker.pass_on(delivery, to=POOL, lease_ms=LEASE_MS)
    assert await bench.sweep("b") == [delivery.entry]
    await bench.claim(delivery, "b")
    assert [row.deliveries for row in await bench.pending()] == [1]


@pytest.mark.guard("pass", "and known[4] and", "and")
async def test_nothing_moves_of_an_engine_that_would_not_find_it(bench: Bench) -> None:
    await opened(bench)
    request = await bench.queued()
    await bench.redis.hdel(bench.keys.call(request.correlation_id), "stream")
    delivery = await bench.deliver("a")
    assert await bench.worker.pass_on(delivery, to=POOL, lease_ms=LEASE_MS)
    assert await bench.sweep("b") == [delivery.entry]


@pytest.mark.guard("loss", "out_of_reach(known[4] or requests", "out_of_reach(requests")
async def test_a_call_that_moved_is_not_lost(bench: Bench) -> None:
    request = await moved(bench)
    assert await bench.audit(request) == [None]
    await bench.redis.delete(STREAM)
    assert await bench.audit(request) == [replies.Loss.VANISHED]


@pytest.mark.guard("lose", "known[4] or requests", "requests")
async def test_a_lost_call_ends_on_the_stream_where_it_was(bench: Bench) -> None:
    request = await moved(bench)
    await bench.deliver("b", STREAM)
    await bench.redis.xgroup_delconsumer(STREAM, GROUP, "b")
    assert await bench.engine.lose(request, replies.Loss.VANISHED, LOST) == replies.EndedLost()
    assert await bench.redis.xlen(STREAM) == 0


@pytest.mark.guard("cancel", "known[6] or requests", "requests")
async def test_a_stop_finds_a_call_that_moved(bench: Bench) -> None:
    request = await moved(bench)
    assert await bench.cancel(request) == replies.CancelledAtOnce()
    assert await bench.redis.xlen(STREAM) == 0


async def test_a_released_call_waits_in_its_pool(bench: Bench) -> None:
    await moved(bench)
    delivery = await bench.deliver("b", STREAM)
    await bench.worker.release(delivery, await bench.run(delivery), lease_ms=LEASE_MS)
    claimed = await bench.redis.xautoclaim(STREAM, GROUP, "c", LEASE_MS, justid=True)
    assert [entry.decode() for entry in claimed] == [delivery.entry]


async def test_a_request_that_cannot_be_run_is_buried_in_the_pool_where_it_lies(bench: Bench) -> None:
    request = await moved(bench)
    delivery = await bench.deliver("b", STREAM)
    await bench.worker.bury(delivery.entry, "broken", b"{}", request.correlation_id, stream=STREAM)
    assert (await bench.redis.xlen(STREAM), len(await bench.dead_letters())) == (0, 1)
    assert (await bench.ledger(request))["state"] == CallState.DEAD


async def test_the_calls_of_a_pool_without_workers_come_back_in_order_and_the_pool_is_removed(bench: Bench) -> None:
    pools = await opened(bench)
    requests = [await bench.request() for _ in range(3)]
    for request in requests:
        await engine(bench).enqueue(request)
    await pools.announce("b", member("demo", at=0))
    assert await pools.recall(lease_ms=LEASE_MS) == 3
    assert [(await bench.deliver("a")).request for _ in requests] == requests
    assert await bench.command("HKEYS", bench.keys.pools) == [b"a"]
    assert not await bench.redis.exists(STREAM)


@pytest.mark.guard("recall", "if not owner or idle_ms >= lease_ms then", "if true then")
async def test_a_call_under_a_lease_stays_in_its_pool_until_the_lease_is_over(bench: Bench) -> None:
    await moved(bench)
    delivery = await bench.deliver("b", STREAM)
    await bench.run(delivery)
    pools = directory(bench)
    assert await pools.recall(lease_ms=LEASE_MS) == 0, "it has a worker"
    await pools.announce("b", member("demo", at=0))
    assert await pools.recall(lease_ms=LEASE_MS) == 0
    assert await bench.command("HKEYS", bench.keys.pools) == [b"a", b"b"]
    await bench.redis.xclaim(STREAM, GROUP, "b", 0, [delivery.entry], idle=2 * LEASE_MS, justid=True)
    await bench.redis.hset(bench.keys.call(delivery.request.correlation_id), "renewedAt", 0)
    assert await pools.recall(lease_ms=LEASE_MS) == 1
    assert isinstance(await bench.start(await bench.deliver("a")), replies.Abandoned)


@pytest.mark.guard("renew", "requests, entry = known[6], known[5]")
@pytest.mark.guard("complete", "forget_entry(known[5] or requests, group, known[4])")
async def test_a_worker_that_only_seemed_to_be_gone_keeps_the_call_that_came_back(bench: Bench) -> None:
    await moved(bench)
    delivery = await bench.deliver("b", STREAM)
    fence = await bench.run(delivery)
    await bench.redis.xclaim(STREAM, GROUP, "b", 0, [delivery.entry], idle=2 * LEASE_MS, justid=True)
    pools = directory(bench)
    await pools.announce("b", member("demo", at=0))
    assert await pools.recall(lease_ms=LEASE_MS) == 1
    again = await bench.deliver("c")
    assert isinstance(await bench.start(again), replies.NothingToDo)
    await bench.redis.xclaim(bench.keys.requests, GROUP, "b", 0, [again.entry], idle=2 * LEASE_MS, justid=True)
    assert bench.renew(delivery, fence) == replies.Renewed(cancel_requested=False)
    assert [(row.consumer, row.idle_ms < LEASE_MS) for row in await bench.pending()] == [("b", True)]
    assert await bench.worker.complete(delivery, fence, DONE) == replies.Completed()
    assert (await bench.backlog(), await bench.pending()) == (0, [])


@pytest.mark.guard("pass", "fields[#fields + 1], fields[#fields + 2] = 'correlationId', id")
async def test_a_request_of_another_producer_that_names_no_id_comes_back_with_its_ledger(bench: Bench) -> None:
    pools = await opened(bench)
    request = await bench.request()
    await bench.submit(request)
    delivery = await bench.deliver("a")
    assert isinstance(await bench.adopt(delivery), replies.Adopted)
    assert await bench.worker.pass_on(delivery, to=POOL, lease_ms=LEASE_MS)
    seconds, micros = await bench.redis.time()

    async def later() -> bool:
        return await bench.redis.time() >= (seconds, micros + 1000)

    await wait_until(later)  # two streams give the same id to what is added to both in one millisecond
    await pools.announce("b", member("demo", at=0))
    assert await pools.recall(lease_ms=LEASE_MS) == 1
    again = await bench.deliver("c")
    assert again.adopted
    assert isinstance(await bench.adopt(again), replies.Adopted)
    await bench.run(again)


async def test_a_worker_leaves_every_stream_and_keeps_what_it_holds_in_any(bench: Bench) -> None:
    await moved(bench)
    delivery = await bench.deliver("b", STREAM)
    assert not await bench.worker.retire("b", [POOL], lease_ms=LEASE_MS)
    assert await bench.redis.xpending_range(STREAM, GROUP, "-", "+", 1, idle=LEASE_MS)
    await bench.worker.complete(delivery, await bench.run(delivery), DONE)
    assert await bench.worker.retire("b", [POOL], lease_ms=LEASE_MS)
    assert await bench.redis.xinfo_consumers(STREAM, GROUP) == []


async def test_a_row_that_no_release_of_ours_wrote_is_nobody(bench: Bench) -> None:
    await bench.redis.hset(bench.keys.pools, "x", b'{"at": "\xff')
    await bench.redis.hset(bench.keys.pools, "y", b"[" * 5000)
    assert await directory(bench).find("demo", 1) is None
    request = msgspec.structs.replace(await bench.request(), server="x" * 100_000)
    assert isinstance(await engine(bench).enqueue(request), replies.Queued)


async def test_while_redis_is_away_calls_are_meant_for_the_pool_that_was_known_last() -> None:
    away = command_client(f"redis://127.0.0.1:{free_port()}/0")
    directory = PoolDirectory(away, Keys(), StoppedClock())
    assert await directory.find("demo", 1) is None
    ledger = EngineLedger(away, Keys(), pools=directory, cipher=CLEAR)
    [answer] = await ledger.enqueue_each([Offer(delivery().request, "*")], backlog_limit=0)
    assert isinstance(answer, RedisUnavailable)
    await away.aclose()
