"""PASS: a worker without the server of a call leaves it to others, before it begins."""

import pytest

from plugins_contract.outcomes import CallState
from tests.support.ledger import LEASE_MS, Bench

pytestmark = pytest.mark.every_redis


@pytest.mark.guard("pass", "'IDLE', lease_ms + 1", "'IDLE', 0")
@pytest.mark.guard("pass", "known[1] ~= 'published'", "false")
async def test_a_call_that_is_passed_on_can_be_claimed_at_once_until_it_has_begun(bench: Bench) -> None:
    request = await bench.request()
    await bench.engine.enqueue(request)
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
    await bench.engine.enqueue(await bench.request())
    delivery = await bench.deliver("a")
    await bench.claim(delivery, "b")
    assert not await bench.worker.pass_on(delivery, lease_ms=LEASE_MS)
    assert [(row.consumer, row.idle_ms < LEASE_MS) for row in await bench.pending()] == [("b", True)]


@pytest.mark.guard("pass", "now_ms() >= tonumber(known[2])", "false")
async def test_a_call_past_its_deadline_is_not_passed_on_but_answered(bench: Bench) -> None:
    await bench.engine.enqueue(await bench.request(expires_in_ms=-1))
    delivery = await bench.deliver("a")
    assert not await bench.worker.pass_on(delivery, lease_ms=LEASE_MS)


@pytest.mark.guard("pass", "known[3] ~= entry", "false")
async def test_a_second_entry_of_a_call_is_not_passed_on(bench: Bench) -> None:
    await bench.engine.enqueue(await bench.request())
    (_, fields) = (await bench.redis.xrange(bench.keys.requests))[0]
    await bench.redis.xadd(bench.keys.requests, fields)
    await bench.deliver("a")
    second = await bench.deliver("a")
    assert not await bench.worker.pass_on(second, lease_ms=LEASE_MS)
