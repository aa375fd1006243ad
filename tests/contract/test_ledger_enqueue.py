"""ENQUEUE and CANCEL: a request is on the stream once, however often it is sent, and can be stopped."""

import msgspec
import pytest

from plugins_contract.ledger import replies
from plugins_contract.messages import ToolCallRequested, decode_request
from plugins_contract.outcomes import CallFinished
from tests.marks import promise
from tests.support.ledger import CANCELLED, MINUTE_MS, UNKNOWN, Bench
from tests.support.waiting import wait_until

pytestmark = pytest.mark.every_redis

DAY_MS = 24 * 60 * MINUTE_MS


@pytest.mark.guard("enqueue", "'ledger', 1,")
async def test_puts_the_request_on_the_stream_and_says_how_many_stand_before_it(bench: Bench) -> None:
    requests = [await bench.request() for _ in range(2)]

    queued = [await bench.engine.enqueue(request) for request in requests]

    # A request without the mark is taken for one of a producer that knows no ledger.
    assert [fields.get(b"ledger") for _, fields in await bench.redis.xrange(bench.keys.requests)] == [b"1"] * 2
    deliveries = [await bench.deliver() for _ in requests]
    assert queued == [replies.Queued(delivery.entry, at) for at, delivery in enumerate(deliveries)]
    assert [delivery.request for delivery in deliveries] == requests


@pytest.mark.guard("enqueue", "backlog == 0 and redis.call('EXISTS', requests) == 0", "false")
async def test_makes_the_stream_and_its_group_when_they_are_missing(bench: Bench) -> None:
    """Also after a flush, and before any worker was ever there."""
    await bench.redis.delete(bench.keys.requests)

    queued = await _queued(bench, await bench.request())

    assert len(await bench.command("XINFO", "GROUPS", bench.keys.requests)) == 1
    assert (await bench.deliver()).entry == queued.entry


@promise("the same request twice is one call; other arguments are a conflict")
@pytest.mark.guard("enqueue", "if known[1] then", "if false then")
async def test_the_same_request_again_is_answered_with_the_first_entry(bench: Bench) -> None:
    """Also with its arguments in another order, and past the limit of the backlog."""
    request = await bench.request()
    first = await _queued(bench, request)
    turned = msgspec.structs.replace(request, arguments=dict(reversed(request.arguments.items())))

    for again in (request, turned):
        assert await bench.engine.enqueue(again, backlog_limit=1) == replies.AlreadyQueued(first.entry)
    assert await bench.backlog() == 1


@promise("the same request twice is one call; other arguments are a conflict")
@pytest.mark.guard("enqueue", "known[2] ~= hash", "false")
async def test_other_arguments_under_the_same_id_are_a_conflict(bench: Bench) -> None:
    request = await bench.queued()

    other = msgspec.structs.replace(request, arguments={"a": 2})

    assert await bench.engine.enqueue(other) == replies.Conflict()
    assert await bench.backlog() == 1
    assert (await bench.deliver()).request == request


@promise("past the backlog limit calls are refused with OVERLOADED")
@pytest.mark.guard("enqueue", "backlog >= limit", "false")
async def test_past_the_backlog_limit_nothing_is_written(bench: Bench) -> None:
    await bench.engine.enqueue(await bench.request(), backlog_limit=1)
    refused = await bench.request()

    assert await bench.engine.enqueue(refused, backlog_limit=1) == replies.Overloaded(backlog=1)
    assert await bench.backlog() == 1
    assert await bench.ledger(refused) == {}


@pytest.mark.guard("enqueue", "keep_while_open(call, deadline)")
@pytest.mark.guard(
    "enqueue", "keep_while_open(call, deadline)", "redis.call('PEXPIREAT', call, tonumber(deadline) + 86400000)"
)
async def test_the_ledger_of_an_open_call_outlives_its_deadline_by_a_day_also_when_it_comes_days_too_late(
    bench: Bench,
) -> None:
    late, request = await bench.request(expires_in_ms=-3 * DAY_MS), await bench.request()
    for each in (late, request):
        await bench.engine.enqueue(each)

    left = await bench.command("PTTL", bench.keys.call(request.correlation_id))
    assert DAY_MS < left <= DAY_MS + MINUTE_MS
    assert (await bench.ledger(late)).get("state") == "published"
    assert await bench.start(await bench.deliver()) == replies.NothingToDo("its deadline has passed")


@promise("I6 requests are never trimmed by length")
@pytest.mark.guard("enqueue", "'XADD', requests, '*'", "'XADD', requests, 'MAXLEN', '~', 10, '*'")
async def test_the_stream_is_never_trimmed(bench: Bench) -> None:
    requests = [await bench.request() for _ in range(300)]
    for request in requests:
        await bench.engine.enqueue(request)

    rows = await bench.redis.xrange(bench.keys.requests)
    assert [decode_request(fields[b"event"]) for _, fields in rows] == requests


async def _queued(bench: Bench, request: ToolCallRequested) -> replies.Queued:
    queued = await bench.engine.enqueue(request)
    assert isinstance(queued, replies.Queued)
    return queued


# --- CANCEL: at once before a call has begun, on request while it runs, too late when it is finished ---


@promise("unstarted calls are cancelled at once")
@pytest.mark.guard("cancel", "if known[1] == 'started'", "if known[1]")
async def test_a_call_that_was_not_started_ends_at_once(bench: Bench) -> None:
    request = await bench.queued()

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
    request = await bench.queued()
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
