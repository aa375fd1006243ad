"""CANCEL: at once before a call has begun, on request while it runs, too late when it is finished."""

import msgspec
import pytest

from plugins_contract.ledger import replies
from plugins_contract.outcomes import CallFinished
from tests.marks import promise
from tests.support.ledger import CANCELLED, UNKNOWN, Bench
from tests.support.waiting import wait_until

pytestmark = pytest.mark.every_redis


@promise("unstarted calls are cancelled at once")
@pytest.mark.guard("cancel", "if known[1] == 'started'", "if known[1]")
async def test_a_call_that_was_not_started_ends_at_once(bench: Bench) -> None:
    request = await bench.request()
    await bench.engine.enqueue(request)

    assert await bench.cancel(request) == replies.CancelledAtOnce()
    assert (await bench.ledger(request))["state"] == "cancelled"
    assert await bench.channel(request) == [CallFinished(CANCELLED)]
    assert await bench.backlog() == 0


@promise("unstarted calls are cancelled at once")
@pytest.mark.guard("cancel", "local unseen\n", "local unseen\nif not known[1] then return {'UNSEEN'} end\n")
@pytest.mark.guard("enqueue", "known[2] and known[2]", "known[2]")
async def test_a_call_that_was_not_enqueued_yet_leaves_a_tombstone_and_is_never_queued(bench: Bench) -> None:
    request = await bench.request()

    assert await bench.cancel(request) == replies.CancelledUnseen()
    assert await bench.channel(request) == [CallFinished(CANCELLED)]
    assert await bench.engine.enqueue(request) == replies.AlreadyFinished(CANCELLED)
    assert await bench.backlog() == 0


@pytest.mark.guard("cancel", "if known[1] == 'started'", "if false")
async def test_the_cancellation_of_a_running_call_is_requested(bench: Bench) -> None:
    delivery, fence = await bench.running()

    assert await bench.cancel(delivery.request) == replies.CancelRequested()
    assert (await bench.ledger(delivery.request))["state"] == "started"
    assert len(await bench.pending()) == 1
    assert await bench.worker.complete(delivery, fence, CANCELLED) == replies.Completed()


@pytest.mark.guard("cancel", "redis.call('PUBLISH', control, message)", known="queued")
@pytest.mark.parametrize("known", ["started", "queued", "lost"])
async def test_the_workers_are_notified_at_once(bench: Bench, known: str) -> None:
    """Also of a call that has not begun: a server that has lost this end would have a worker start it."""
    request = await bench.request()
    await bench.engine.enqueue(request)
    if known == "started":
        await bench.run(await bench.deliver())
    elif known == "lost":
        await bench.flush()
    listener = bench.redis.pubsub()
    await listener.subscribe(bench.keys.control)
    await wait_until(lambda: listener.get_message(timeout=1), what="the subscription")

    await bench.cancel(request, unseen=UNKNOWN)

    message = await wait_until(lambda: listener.get_message(ignore_subscribe_messages=True, timeout=1), 8)
    assert msgspec.json.decode(message["data"]) == {"kind": "cancel", "correlationId": request.correlation_id}
    await listener.aclose()
