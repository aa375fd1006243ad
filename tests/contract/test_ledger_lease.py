"""RENEW, RELEASE and PASS: who holds a running call, and how one is given back or left to others."""

import pytest
from redis.exceptions import ResponseError

from plugins_contract.keys import GROUP
from plugins_contract.ledger import renew_each, replies
from plugins_contract.outcomes import CallState
from tests.marks import promise
from tests.support.ledger import DONE, LEASE_MS, Bench, above

pytestmark = pytest.mark.every_redis


@pytest.mark.guard("renew", "if owner then redis.call('XCLAIM'", "if false then redis.call('XCLAIM'")
@pytest.mark.guard("renew", "'JUSTID'", "'FORCE'")
async def test_renewal_restarts_the_lease_and_does_not_count_as_a_delivery(bench: Bench) -> None:
    delivery, fence = await bench.running()
    await bench.age(delivery)

    for _ in range(5):
        assert bench.renew(delivery, fence) == replies.Renewed(cancel_requested=False)
    assert [row.deliveries for row in await bench.pending()] == [1]
    assert await bench.sweep("b") == []


@pytest.mark.guard("renew", "known[3] and 1 or 0", "0")
@pytest.mark.guard("cancel", "redis.call('HSET', call, 'cancel', 1)")
@pytest.mark.guard("release", "'owner', 'token', 'verdict')", "'owner', 'token', 'verdict', 'cancel')")
async def test_renewal_brings_word_of_a_cancellation_which_outlives_a_release(bench: Bench) -> None:
    delivery, fence = await bench.running()
    await bench.cancel(delivery.request)

    assert bench.renew(delivery, fence) == replies.Renewed(cancel_requested=True)
    await bench.worker.release(delivery, fence, lease_ms=LEASE_MS)
    assert isinstance(await bench.start(await bench.claim(delivery, "b")), replies.CancelledBefore)


@promise("leases are renewed from a thread, and fenced")
@pytest.mark.guard("renew", "if owner and owner ~= consumer and", "if false and")
@pytest.mark.guard("release", "pending_owner(requests, group, entry) ~= consumer", "false")
async def test_a_stalled_worker_that_wakes_up_neither_steals_the_entry_back_nor_releases_it(bench: Bench) -> None:
    delivery, fence = await bench.running()
    await bench.claim(delivery, "b")

    assert bench.renew(delivery, fence) == replies.Stale()
    assert await bench.worker.release(delivery, fence, lease_ms=LEASE_MS) == replies.Stale()
    assert [row.consumer for row in await bench.pending()] == ["b"]


@pytest.mark.guard("renew", "not speaks(fence, state, known[2], known[4])", "false")
@pytest.mark.guard("release", "known[2] ~= fence", "false")
async def test_a_stalled_worker_neither_renews_nor_releases_what_another_one_started(bench: Bench) -> None:
    delivery, fence = await bench.running("repeatable")
    await bench.start(await bench.claim(delivery, "b"))
    await bench.claim(delivery, "a")  # even if the entry comes back to it

    assert bench.renew(delivery, fence) == replies.Stale()
    assert await bench.worker.release(delivery, fence, lease_ms=LEASE_MS) == replies.Stale()
    assert (await bench.ledger(delivery.request))["starts"] == "2"


async def test_many_leases_are_renewed_at_once_and_each_has_its_own_answer(bench: Bench) -> None:
    """Also where the server has forgotten the script."""
    held = [await bench.running() for _ in range(4)]
    await bench.cancel(held[0][0].request)
    await bench.claim(held[1][0], "b")
    broken = bench.keys.call(held[2][0].request.correlation_id)
    await bench.redis.delete(broken)
    await bench.redis.set(broken, "no ledger", ex=9)
    await bench.redis.script_flush()

    cancelled, stolen, failed, well = renew_each(bench.thread, bench.keys, held)

    assert cancelled == replies.Renewed(cancel_requested=True)
    assert stolen == replies.Stale()
    assert isinstance(failed, ResponseError)
    assert "WRONGTYPE" in str(failed)
    assert well == replies.Renewed(cancel_requested=False)


@pytest.mark.guard("renew", "if owner and owner", "if not owner or owner", gone="request")
@pytest.mark.parametrize("gone", ["request", "group"])
async def test_a_running_call_whose_request_or_group_vanished_stays_with_its_worker(bench: Bench, gone: str) -> None:
    delivery, fence = await bench.running()
    if gone == "request":
        await bench.redis.xdel(bench.keys.requests, delivery.entry)
    else:
        await bench.redis.xgroup_destroy(bench.keys.requests, GROUP)

    assert [bench.renew(delivery, fence) for _ in range(3)] == [replies.Renewed(cancel_requested=False)] * 3
    assert await bench.worker.complete(delivery, fence, DONE) == replies.Completed()
    assert await bench.backlog() == 0


@promise("a call given back is free at once and does not count")
@pytest.mark.guard("release", "redis.call('XCLAIM'", "local _ = tostring('XCLAIM'")
@pytest.mark.guard("release", "redis.call('HINCRBY', call, 'starts', -1)")
async def test_a_released_once_call_can_be_claimed_at_once_and_runs_as_if_it_were_new(bench: Bench) -> None:
    delivery, fence = await bench.running("once")

    assert await bench.worker.release(delivery, fence, lease_ms=LEASE_MS) == replies.Completed()
    assert await bench.sweep("b") == [delivery.entry]
    started = await bench.start(await bench.claim(delivery, "b"), max_starts=1)
    assert started == replies.Run(above(fence), starts=1)


@pytest.mark.guard("common", "and fence <= tonumber(base or 0)")
@pytest.mark.guard("release", ", 'fence', next_fence(known[2])")
async def test_a_released_call_cannot_be_renewed_completed_or_released_by_its_former_worker(bench: Bench) -> None:
    delivery, fence = await bench.running()
    await bench.worker.release(delivery, fence, lease_ms=LEASE_MS)

    assert bench.renew(delivery, fence) == replies.Stale()
    assert await bench.worker.complete(delivery, fence, DONE) == replies.Stale()
    assert await bench.worker.release(delivery, fence, lease_ms=LEASE_MS) == replies.Stale()
    assert (await bench.ledger(delivery.request))["starts"] == "0"


@pytest.mark.guard("release", "known[3] ~= 'RUN'", "false")
async def test_an_abandoned_call_cannot_be_released_to_run_again(bench: Bench) -> None:
    delivery, _ = await bench.running("once")
    taken = await bench.claim(delivery, "b")
    abandoned = await bench.start(taken)

    assert isinstance(abandoned, replies.Abandoned)
    assert await bench.worker.release(taken, abandoned.fence, lease_ms=LEASE_MS) == replies.Stale()
    assert (await bench.ledger(delivery.request))["state"] == "started"


@promise("consumers leave the group without taking work along")
@pytest.mark.guard("retire", "and #rows == 0")
@pytest.mark.guard("retire", "  redis.call('XCLAIM'", "local _ = tostring('XCLAIM'")
async def test_a_consumer_is_retired_once_it_holds_nothing(bench: Bench) -> None:
    delivery, fence = await bench.running()
    assert not await bench.worker.retire("a", lease_ms=LEASE_MS)
    assert [row.consumer for row in await bench.pending()] == ["a"]
    assert await bench.sweep("b") == [delivery.entry]

    await bench.worker.complete(delivery, fence, DONE)
    assert await bench.worker.retire("a", lease_ms=LEASE_MS)
    assert await bench.consumers() == {"b": 0}


# --- PASS: a worker without the server of a call leaves it to others, before it begins ---


@pytest.mark.guard("pass", "'IDLE', lease_ms + 1", "'IDLE', 0")
@pytest.mark.guard("pass", "known[1] ~= 'published'", "false")
async def test_a_call_that_is_passed_on_can_be_claimed_at_once_until_it_has_begun(bench: Bench) -> None:
    request = await bench.queued()
    delivery = await bench.deliver("a")
    assert await bench.worker.pass_on(delivery, lease_ms=LEASE_MS)
    assert await bench.sweep("b") == [delivery.entry]
    assert await bench.channel(request) == []
    assert (await bench.ledger(request))["state"] == CallState.PUBLISHED

    begun = await bench.claim(delivery, "b")
    await bench.run(begun)
    assert not await bench.worker.pass_on(begun, lease_ms=LEASE_MS)
    assert await bench.sweep("c") == []


@pytest.mark.guard("pass", "pending_owner(requests, group, entry) ~= consumer", "false")
async def test_a_call_in_the_hands_of_another_is_not_passed_on(bench: Bench) -> None:
    delivery = await bench.read()
    await bench.claim(delivery, "b")
    assert not await bench.worker.pass_on(delivery, lease_ms=LEASE_MS)
    assert [(row.consumer, row.idle_ms < LEASE_MS) for row in await bench.pending()] == [("b", True)]


@pytest.mark.guard("pass", "now_ms() >= tonumber(known[2])", "false")
async def test_a_call_past_its_deadline_is_not_passed_on_but_answered(bench: Bench) -> None:
    delivery = await bench.read(expires_in_ms=-1)
    assert not await bench.worker.pass_on(delivery, lease_ms=LEASE_MS)


@pytest.mark.guard("pass", "known[3] ~= entry", "false")
async def test_a_second_entry_of_a_call_is_not_passed_on(bench: Bench) -> None:
    await bench.engine.enqueue(await bench.request())
    (_, fields) = (await bench.redis.xrange(bench.keys.requests))[0]
    await bench.redis.xadd(bench.keys.requests, fields)
    await bench.deliver("a")
    second = await bench.deliver("a")
    assert not await bench.worker.pass_on(second, lease_ms=LEASE_MS)
