"""Tool calls seen through: answered once, by their deadline at the latest, with the truth."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from callstream_runtime.connections import command_client
from callstream_runtime.redis_errors import RedisUnavailable
from dialog_engine.calls.mailbox import MailboxTimes
from dialog_engine.calls.subscriptions import SETTLED_SECONDS, Unpublishable
from dialog_engine.calls.times import ExecutorTimes
from dialog_engine.model import CallAnswered, CallHeld, CallQueued, WaitsFor
from plugins_contract.errors import ErrorCode
from plugins_contract.ledger import NEVER_OFFERED, UNKNOWN_INCARNATION, replies
from plugins_contract.outcomes import CallState
from tests.integration.engines import at_work
from tests.integration.executor_harness import Harness, truth
from tests.marks import promise
from tests.support.ledger import CANCELLED, answered
from tests.support.servers import LocalServer
from tests.support.waiting import wait_until

SOON_MS = 300
HASTY = ExecutorTimes(grace=0.1, cancel=0.3, ask=0.3)


@pytest.fixture
async def harness(redis_url: str, request: pytest.FixtureRequest) -> AsyncGenerator[Harness]:
    times = getattr(request, "param", MailboxTimes())
    async with aclosing(Harness(redis_url, mailbox_times=times)) as harness:
        await harness.bench.open()
        async with at_work(harness.mailbox.run):
            yield harness
        assert len(harness.calls) == harness.executor.waiting == 0


@pytest.fixture
def hasty(harness: Harness) -> None:
    harness.executor = harness.executor_with(HASTY)


async def started(harness: Harness) -> tuple[Any, int]:
    delivery = await harness.bench.deliver()
    return delivery, await harness.bench.run(delivery)


@promise("a call that waits for Redis or for a worker says so, until it goes on")
async def test_a_blocked_call_is_reported_and_so_is_its_release(harness: Harness) -> None:
    def look(*, redis: bool, workers: int) -> None:
        harness.watch.available, harness.workers.there = redis, workers
        harness.blocked.look()

    harness.long_steady()
    call = harness.request()
    look(redis=False, workers=1)
    waiter = harness.run(call)  # a call that begins while it is away is informed at once
    await wait_until(lambda: bool(waiter.updates), 5)
    look(redis=True, workers=0)
    look(redis=True, workers=0)
    await harness.publish(call)
    look(redis=True, workers=1)
    delivery, fence = await started(harness)
    await harness.bench.worker.complete(delivery, fence, answered(call.correlation_id))
    await waiter.outcome()
    look(redis=False, workers=1)  # no call waits any more

    i = call.correlation_id
    assert waiter.updates == [
        CallHeld(i, WaitsFor.REDIS), CallHeld(i, WaitsFor.WORKER), CallQueued(i, 0), CallHeld(i, None),
        CallAnswered(i, answered(i)),
    ]  # fmt: skip


@promise("a call that waits for Redis or for a worker says so, until it goes on")
async def test_missing_workers_block_a_call_only_after_they_had_time_to_report(harness: Harness) -> None:
    harness.long_steady(SETTLED_SECONDS - 1)
    harness.workers.there = 0
    harness.blocked.look()
    assert harness.blocked.waits_for("demo") is None

    harness.long_steady(SETTLED_SECONDS + 1)
    harness.blocked.look()
    assert harness.blocked.waits_for("demo") is WaitsFor.WORKER
    assert harness.blocked.waits_for("another") is None


@pytest.mark.parametrize(
    ("word", "state", "code", "words"),
    [
        (replies.Overloaded(7), CallState.FAILED, ErrorCode.OVERLOADED, "7 tool calls"),
        (replies.Conflict(), CallState.FAILED, ErrorCode.UNKNOWN_ERROR, "another request"),
        (replies.AlreadyFinished(CANCELLED), CallState.CANCELLED, ErrorCode.CANCELLED, "cancelled"),
        (Unpublishable("WRONGTYPE"), CallState.FAILED, ErrorCode.UNKNOWN_ERROR, "not run: WRONGTYPE"),
    ],
)
async def test_what_the_ledger_refuses_is_the_answer_at_once(
    harness: Harness, word: replies.Enqueued | Unpublishable, state: CallState, code: ErrorCode, words: str
) -> None:
    call = harness.request()
    waiter = harness.run(call)
    await asyncio.sleep(0)
    harness.calls.enqueued(call.correlation_id, word)

    outcome = await waiter.outcome()
    assert truth(outcome) == (state, code)
    assert outcome.error is not None
    assert words in outcome.error.message


# --- Deadlines ---


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("harness", [MailboxTimes(quiet=3600)], indirect=True)  # the sweep finds nothing by itself
async def test_a_call_that_was_answered_before_it_was_waited_for_is_looked_up_at_once(harness: Harness) -> None:
    request, other = harness.request(), harness.request()
    waiter = harness.run(other)
    for each in (request, other):
        await harness.publish(each)
        delivery, fence = await started(harness)
        await harness.bench.worker.complete(delivery, fence, answered("42"))
    await waiter.outcome()  # the mailbox is read in its order: the first notification was read, and no call waited

    async with asyncio.timeout(2), aclosing(harness.executor.run([request], late=True)) as updates:
        assert [update async for update in updates] == [CallAnswered(request.correlation_id, answered("42"))]


@promise("a late result is recorded and never spoken")
@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(("execution_class", "state"), [("once", CallState.UNKNOWN), ("repeatable", CallState.FAILED)])
async def test_a_silent_worker_times_the_call_out_and_its_late_result_is_recorded_but_not_shown(
    harness: Harness, execution_class: str, state: CallState
) -> None:
    call, other = harness.request(SOON_MS, execution_class=execution_class), harness.request()
    waiter = harness.run(call, other)
    await asyncio.sleep(0)
    await harness.publish(call)
    delivery, fence = await started(harness)
    await wait_until(lambda: any(isinstance(update, CallAnswered) for update in waiter.updates))
    await harness.bench.worker.complete(delivery, fence, answered("late"))
    await harness.publish(other)
    delivery, fence = await started(harness)
    await harness.bench.worker.complete(delivery, fence, answered("42"))

    first, second = await waiter.outcomes()
    assert truth(first) == (state, ErrorCode.TIMEOUT)
    assert second == answered("42")
    ledger = await harness.bench.ledger(call)
    assert (ledger["state"], ledger["cancel"]) == ("succeeded", "1")


@pytest.mark.usefixtures("hasty")
async def test_a_step_of_redis_clock_moves_no_deadline_of_a_call_that_is_waited_for(harness: Harness) -> None:
    late, early = harness.request(), harness.request(SOON_MS)
    waiter, other = harness.run(late), harness.run(early)
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    an_hour_ago, in_an_hour = harness.clock.now_ms() // 1000 - 3600, harness.clock.now_ms() // 1000 + 3600
    harness.clock.sample((an_hour_ago, 0), loop.time(), loop.time())
    harness.calls.enqueued(early.correlation_id, replies.AlreadyQueued("1-1"))
    assert truth(await other.outcome()) == (CallState.EXPIRED, ErrorCode.TIMEOUT)
    harness.clock.sample((in_an_hour, 0), loop.time(), loop.time())
    harness.calls.enqueued(late.correlation_id, replies.AlreadyQueued("1-1"))
    await wait_until(lambda: waiter.updates)
    await asyncio.sleep(0)
    assert not waiter.task.done()
    waiter.task.cancel()
    await asyncio.wait([waiter.task])


async def test_without_redis_every_call_is_answered_by_its_deadline_or_its_stop(own_redis: LocalServer) -> None:
    async with aclosing(Harness(own_redis.url, HASTY)) as harness:
        calls = [harness.request(SOON_MS, execution_class=each) for each in ("once", "repeatable") for _ in range(10)]
        once, again = harness.request(), harness.request(execution_class="repeatable")
        waiter = harness.run(*calls)
        await asyncio.sleep(0)
        own_redis.kill()
        outcomes = await waiter.outcomes()
        stopped = await harness.executor.cancel([once, again])
    assert [truth(outcome) for outcome in outcomes] == [
        *[(CallState.UNKNOWN, ErrorCode.TIMEOUT)] * 10,
        *[(CallState.FAILED, ErrorCode.TIMEOUT)] * 10,
    ]
    assert [truth(outcome) for outcome in stopped.values()] == [
        (CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN),
        (CallState.CANCELLED, ErrorCode.CANCELLED),
    ]


@pytest.mark.usefixtures("hasty")
async def test_a_redis_that_does_not_answer_delays_many_calls_no_longer_than_one(
    harness: Harness, redis_url: str
) -> None:
    operator: Any = command_client(redis_url)  # a paused command holds up all that follow it on its connection
    calls = [harness.request(SOON_MS) for _ in range(20)]
    waiter = harness.run(*calls)
    await harness.redis.execute_command("CLIENT", "PAUSE", 5000, "WRITE")
    loop = asyncio.get_running_loop()
    begun = loop.time()
    try:
        outcomes = await waiter.outcomes()
        took = loop.time() - begun
    finally:
        await operator.execute_command("CLIENT", "UNPAUSE")
        await operator.aclose()
    assert {truth(outcome) for outcome in outcomes} == {(CallState.UNKNOWN, ErrorCode.TIMEOUT)}
    assert took < 4.0  # one after the other it would be six seconds


# --- Cancelling ---


@promise("only an outage of Redis is called one: a defect of the engine is told as an internal error")
@pytest.mark.usefixtures("hasty")
async def test_a_defect_of_the_engine_is_told_as_one_and_not_as_an_outage(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise TypeError("a bug")

    monkeypatch.setattr(harness.ledger, "cancel", broken)
    overdue, stopped = harness.request(SOON_MS), harness.request()
    outcomes = [*await harness.run(overdue).outcomes(), *(await harness.executor.cancel([stopped])).values()]

    assert {truth(outcome) for outcome in outcomes} == {(CallState.UNKNOWN, ErrorCode.UNKNOWN_ERROR)}
    assert all(outcome.error and "internal error" in outcome.error.message for outcome in outcomes)
    assert caplog.text.count("TypeError: a bug") == 2


# --- Leaks ---


async def test_a_call_that_the_relay_offered_while_its_stop_waited_for_redis_counts_as_offered(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, ask = harness.request(), harness.ledger.cancel
    asked: list[str] = []

    async def away_at_first(*arguments: Any, **options: Any) -> replies.Cancelled:
        asked.append(options["offered_to"])
        if len(asked) == 1:
            await harness.publish(call)  # to a server that is gone when it is asked again
            await harness.bench.flush()
            raise RedisUnavailable("no answer")
        return await ask(*arguments, **options)

    monkeypatch.setattr(harness.ledger, "cancel", away_at_first)
    outcomes = await harness.executor.cancel([call])
    assert asked == [NEVER_OFFERED, UNKNOWN_INCARNATION]
    assert truth(outcomes[call.correlation_id]) == (CallState.UNKNOWN, ErrorCode.LOST)


@promise("a stop that Redis lost is written again")
@pytest.mark.parametrize("answered", [True, False])
async def test_a_stop_that_redis_lost_is_written_again_to_the_next_server(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    call, ask = harness.request(), harness.ledger.cancel
    await harness.publish(call)
    key = harness.keys.call(call.correlation_id)
    before = await harness.redis.dump(key)

    async def lose_the_answer(*arguments: Any, **options: Any) -> replies.Cancelled:
        monkeypatch.setattr(harness.ledger, "cancel", ask)
        await ask(*arguments, **options)
        raise RedisUnavailable("the reply was lost")

    if not answered:
        monkeypatch.setattr(harness.ledger, "cancel", lose_the_answer)
    harness.watch.available, harness.watch.run_id = True, "a"
    async with at_work(harness.ended.run):
        [outcome] = (await harness.executor.cancel([call])).values()
        await harness.redis.restore(key, 0, before, replace=True)
        await harness.redis.delete(call.response_channel)
        harness.watch.run_id = "b"

        async def ended() -> bool:
            return (await harness.bench.ledger(call))["state"] == CallState.CANCELLED

        await wait_until(ended)
    assert await harness.ledger.cancel(call, CANCELLED) == replies.AlreadyFinished(outcome)


async def test_a_waiter_that_is_slow_to_end_does_not_take_the_messages_of_its_cancellation(harness: Harness) -> None:
    call = harness.request()
    await harness.ledger.enqueue(call)
    delivery, fence = await started(harness)
    abandoned = harness.executor.run([call])
    first = asyncio.ensure_future(anext(abandoned))
    await asyncio.sleep(0)
    harness.calls.enqueued(call.correlation_id, replies.AlreadyQueued("1-1"))
    assert await first == CallQueued(call.correlation_id)
    cancelling = asyncio.create_task(harness.executor.cancel([call]))

    async def asked() -> bool:
        return "cancel" in await harness.bench.ledger(call)

    await wait_until(asked)
    await abandoned.aclose()
    await harness.bench.worker.complete(delivery, fence, answered("42"))
    assert await cancelling == {call.correlation_id: answered("42")}
