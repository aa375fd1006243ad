"""Tool calls seen through: answered once, by their deadline at the latest, with the truth."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from dialog_engine.calls import executor as executor_module
from dialog_engine.calls import mailbox as mailbox_module
from dialog_engine.calls.blocked_calls import SETTLED_SECONDS
from dialog_engine.calls.executor import ASK_SECONDS, CANCEL_SECONDS, GRACE_SECONDS
from dialog_engine.calls.subscriptions import Rejected
from dialog_engine.model import (
    CallAnswered,
    CallHeld,
    CallProgressed,
    CallQueued,
    CallRunning,
    ToolCall,
    Turn,
    WaitsFor,
)
from plugins_contract.catalog import ToolEntry
from plugins_contract.errors import ErrorCode
from plugins_contract.ledger import replies
from plugins_contract.outcomes import CallProgress, CallState, ToolOutcome
from tests.integration.desk import Desk
from tests.integration.engines import at_work
from tests.support.ledger import CANCELLED, answered
from tests.support.servers import LocalServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

SOON_MS = 300


@pytest.fixture
async def desk(redis_url: str) -> AsyncGenerator[Desk]:
    async with aclosing(Desk(redis_url)) as desk:
        await desk.bench.open()
        async with at_work(desk.mailbox.run):
            yield desk
        assert len(desk.calls) == 0


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_module, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(executor_module, "CANCEL_SECONDS", 0.3)
    monkeypatch.setattr(executor_module, "ASK_SECONDS", 0.3)


def truth(outcome: ToolOutcome) -> tuple[CallState, ErrorCode | None]:
    return outcome.state, outcome.error.code if outcome.error else None


async def started(desk: Desk) -> tuple[Any, int]:
    delivery = await desk.bench.deliver()
    return delivery, await desk.bench.run(delivery)


def test_the_timeouts_of_the_product_are_a_few_seconds() -> None:
    assert (GRACE_SECONDS, CANCEL_SECONDS, ASK_SECONDS) == (2.0, 3.0, 2.0)


async def test_a_request_carries_the_tools_own_timeout_or_else_the_engines(desk: Desk) -> None:
    turn = Turn("turn", "session", "ann", epoch=2, traceparent="trace")
    call = ToolCall("call_1", "id", "demo__add", "{}")
    entry = ToolEntry(name="demo__add", server="demo", tool="add", input_schema={})

    plain = desk.executor.request(turn, call, entry, {"a": 1})
    own = desk.executor.request(
        turn, call, ToolEntry(name="demo__add", server="demo", tool="add", input_schema={}, timeout_ms=5000), {}
    )
    assert abs(plain.deadline - desk.clock.now_ms() - 30_000) < 1000
    assert abs(own.deadline - desk.clock.now_ms() - 5000) < 1000
    assert (plain.turn, plain.subject, plain.traceparent, plain.mailbox) == (2, "ann", "trace", desk.mailbox.key)


@pytest.mark.every_redis
async def test_a_call_is_reported_from_the_queue_to_its_answer(desk: Desk) -> None:
    first, second = desk.request(), desk.request()
    waiter = desk.run(first, second)
    await asyncio.sleep(0)
    await desk.publish(first, second)
    for _ in range(2):
        delivery, fence = await started(desk)
        await desk.bench.worker.progress(delivery.request, fence, CallProgress(1, 2, "half"))
        await desk.bench.worker.complete(delivery, fence, answered(delivery.request.correlation_id))
    await waiter.outcomes()

    for n, each in enumerate((first, second)):
        i = each.correlation_id
        assert [update for update in waiter.updates if update.correlation_id == i] == [
            CallQueued(i, n), CallRunning(i, 1), CallProgressed(i, 1, 2, "half"), CallAnswered(i, answered(i)),
        ]  # fmt: skip


async def test_a_blocked_call_is_reported_and_so_is_its_release(desk: Desk) -> None:
    def look(*, redis: bool, workers: int) -> None:
        desk.watch.available, desk.staff.there = redis, workers
        desk.blocked.look()

    desk.long_steady()
    call = desk.request()
    look(redis=False, workers=1)
    waiter = desk.run(call)  # who comes while it is away is told at once
    await wait_until(lambda: bool(waiter.updates), 5)
    look(redis=True, workers=0)
    look(redis=True, workers=0)
    await desk.publish(call)
    look(redis=True, workers=1)
    delivery, fence = await started(desk)
    await desk.bench.worker.complete(delivery, fence, answered(call.correlation_id))
    await waiter.outcome()
    look(redis=False, workers=1)  # nobody waits any more

    i = call.correlation_id
    assert waiter.updates == [
        CallHeld(i, WaitsFor.REDIS), CallHeld(i, WaitsFor.WORKER), CallQueued(i, 0), CallHeld(i, None),
        CallRunning(i, 1), CallAnswered(i, answered(i)),
    ]  # fmt: skip


async def test_missing_workers_block_a_call_only_after_they_had_time_to_report(desk: Desk) -> None:
    desk.long_steady(SETTLED_SECONDS - 1)
    desk.staff.there = 0
    desk.blocked.look()
    assert desk.blocked.waits_for("demo") is None

    desk.long_steady(SETTLED_SECONDS + 1)
    desk.blocked.look()
    assert desk.blocked.waits_for("demo") is WaitsFor.WORKER
    assert desk.blocked.waits_for("another") is None


@pytest.mark.parametrize(
    ("word", "state", "code", "words"),
    [
        (replies.Overloaded(7), CallState.FAILED, ErrorCode.OVERLOADED, "7 tool calls"),
        (replies.Conflict(), CallState.FAILED, ErrorCode.UNKNOWN_ERROR, "another request"),
        (replies.AlreadyFinished(CANCELLED), CallState.CANCELLED, ErrorCode.CANCELLED, "cancelled"),
        (Rejected("WRONGTYPE"), CallState.FAILED, ErrorCode.UNKNOWN_ERROR, "not run: WRONGTYPE"),
    ],
)
async def test_what_the_ledger_refuses_is_the_answer_at_once(
    desk: Desk, word: replies.Enqueued | Rejected, state: CallState, code: ErrorCode, words: str
) -> None:
    call = desk.request()
    waiter = desk.run(call)
    await asyncio.sleep(0)
    desk.calls.enqueued(call.correlation_id, word)

    outcome = await waiter.outcome()
    assert truth(outcome) == (state, code)
    assert outcome.error is not None
    assert words in outcome.error.message


async def test_a_queued_call_is_reported_and_other_calls_are_not(desk: Desk) -> None:
    call = desk.request()
    desk.calls.enqueued(call.correlation_id, replies.Overloaded(1))
    waiter = desk.run(call)
    await asyncio.sleep(0)
    desk.calls.enqueued(call.correlation_id, replies.AlreadyQueued("1-1"))
    await wait_until(lambda: waiter.updates == [CallQueued(call.correlation_id)])
    waiter.task.cancel()
    await asyncio.wait([waiter.task])


async def test_an_engine_that_comes_back_finds_the_replies_that_came_meanwhile(desk: Desk) -> None:
    call = desk.request()
    await desk.ledger.enqueue(call)
    delivery, fence = await started(desk)
    await desk.bench.worker.complete(delivery, fence, answered("42"))

    assert await desk.run(call).outcome() == answered("42")


# --- Deadlines ---


@pytest.mark.usefixtures("hasty")
async def test_a_call_that_was_answered_before_it_was_waited_for_is_looked_up_at_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox_module, "QUIET_SECONDS", 3600)  # the sweep finds nothing by itself
    request, other = desk.request(), desk.request()
    waiter = desk.run(other)
    for each in (request, other):
        await desk.publish(each)
        delivery, fence = await started(desk)
        await desk.bench.worker.complete(delivery, fence, answered("42"))
    await waiter.outcome()  # the mailbox is read in its order: the first doorbell was read, and nobody waited

    async with asyncio.timeout(2), aclosing(desk.executor.run([request], late=True)) as updates:
        assert [update async for update in updates] == [CallAnswered(request.correlation_id, answered("42"))]


async def test_a_call_that_no_worker_began_expires_and_can_never_run(desk: Desk) -> None:
    call = desk.request(SOON_MS)
    await desk.ledger.enqueue(call)

    assert truth(await desk.run(call).outcome()) == (CallState.EXPIRED, ErrorCode.TIMEOUT)
    assert await desk.bench.next_delivery("late") is None
    assert (await desk.bench.ledger(call))["state"] == "expired"


@pytest.mark.usefixtures("hasty")
async def test_a_call_that_was_never_published_cannot_be_published_after_its_deadline(desk: Desk) -> None:
    call = desk.request(SOON_MS)

    outcome = await desk.run(call).outcome()
    assert truth(outcome) == (CallState.EXPIRED, ErrorCode.TIMEOUT)
    assert await desk.ledger.enqueue(call) == replies.AlreadyFinished(outcome)


@pytest.mark.usefixtures("hasty")
async def test_a_silent_worker_times_the_call_out_and_its_late_result_is_recorded_but_not_shown(desk: Desk) -> None:
    call, other = desk.request(SOON_MS), desk.request()
    waiter = desk.run(call, other)
    await asyncio.sleep(0)
    await desk.publish(call)
    delivery, fence = await started(desk)
    await wait_until(lambda: any(isinstance(update, CallAnswered) for update in waiter.updates))
    await desk.bench.worker.complete(delivery, fence, answered("late"))
    await desk.publish(other)
    delivery, fence = await started(desk)
    await desk.bench.worker.complete(delivery, fence, answered("42"))

    first, second = await waiter.outcomes()
    assert truth(first) == (CallState.UNKNOWN, ErrorCode.TIMEOUT)
    assert second == answered("42")
    ledger = await desk.bench.ledger(call)
    assert (ledger["state"], ledger["cancel"]) == ("succeeded", "1")


@pytest.mark.usefixtures("hasty")
async def test_progress_does_not_extend_a_deadline(desk: Desk) -> None:
    call = desk.request(SOON_MS)
    waiter = desk.run(call)
    await asyncio.sleep(0)
    await desk.publish(call)
    delivery, fence = await started(desk)

    async def chat() -> None:
        while True:
            await desk.bench.worker.progress(delivery.request, fence, CallProgress(1))

    async with at_work(chat):
        assert truth(await waiter.outcome()) == (CallState.UNKNOWN, ErrorCode.TIMEOUT)


@pytest.mark.usefixtures("hasty")
async def test_a_step_of_redis_clock_moves_no_deadline_of_a_call_that_is_waited_for(desk: Desk) -> None:
    late, early = desk.request(), desk.request(SOON_MS)
    waiter, other = desk.run(late), desk.run(early)
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    an_hour_ago, in_an_hour = desk.clock.now_ms() // 1000 - 3600, desk.clock.now_ms() // 1000 + 3600
    desk.clock.sample((an_hour_ago, 0), loop.time(), loop.time())
    desk.calls.enqueued(early.correlation_id, replies.AlreadyQueued("1-1"))
    assert truth(await other.outcome()) == (CallState.EXPIRED, ErrorCode.TIMEOUT)
    desk.clock.sample((in_an_hour, 0), loop.time(), loop.time())
    desk.calls.enqueued(late.correlation_id, replies.AlreadyQueued("1-1"))
    await wait_until(lambda: waiter.updates)
    await asyncio.sleep(0)
    assert not waiter.task.done()
    waiter.task.cancel()
    await asyncio.wait([waiter.task])


@pytest.mark.usefixtures("hasty")
async def test_without_redis_every_call_is_answered_by_its_deadline(own_redis: LocalServer) -> None:
    async with aclosing(Desk(own_redis.url)) as desk:
        calls = [desk.request(SOON_MS) for _ in range(20)]
        waiter = desk.run(*calls)
        await asyncio.sleep(0)
        own_redis.kill()
        outcomes = await waiter.outcomes()
    assert {truth(outcome) for outcome in outcomes} == {(CallState.UNKNOWN, ErrorCode.TIMEOUT)}
    assert len(outcomes) == 20


@pytest.mark.usefixtures("hasty")
async def test_a_redis_that_does_not_answer_delays_many_calls_no_longer_than_one(desk: Desk) -> None:
    calls = [desk.request(SOON_MS) for _ in range(20)]
    waiter = desk.run(*calls)
    await desk.redis.execute_command("CLIENT", "PAUSE", 5000, "WRITE")
    loop = asyncio.get_running_loop()
    begun = loop.time()
    try:
        outcomes = await waiter.outcomes()
        took = loop.time() - begun
    finally:
        await desk.redis.execute_command("CLIENT", "UNPAUSE")
    assert {truth(outcome) for outcome in outcomes} == {(CallState.UNKNOWN, ErrorCode.TIMEOUT)}
    assert took < 4.0  # one after the other it would be six seconds


# --- Cancelling ---


async def test_a_call_that_had_not_begun_is_cancelled_and_can_never_run(desk: Desk) -> None:
    queued, unpublished = desk.request(), desk.request()
    await desk.ledger.enqueue(queued)

    outcomes = await desk.executor.cancel([queued, unpublished])

    assert {truth(outcome) for outcome in outcomes.values()} == {(CallState.CANCELLED, ErrorCode.CANCELLED)}
    assert await desk.bench.next_delivery("late") is None
    assert isinstance(await desk.ledger.enqueue(unpublished), replies.AlreadyFinished)


async def test_a_running_call_ends_as_its_worker_says(desk: Desk) -> None:
    call = desk.request()
    await desk.ledger.enqueue(call)
    delivery, fence = await started(desk)
    cancelling = asyncio.create_task(desk.executor.cancel([call]))

    async def asked() -> bool:
        return "cancel" in await desk.bench.ledger(call)

    await wait_until(asked)
    await desk.bench.worker.complete(delivery, fence, answered("it was done already"))
    assert await cancelling == {call.correlation_id: answered("it was done already")}


@pytest.mark.usefixtures("hasty")
async def test_a_running_call_whose_worker_is_silent_is_unknown(desk: Desk) -> None:
    call, idle = desk.request(), desk.request()
    await desk.ledger.enqueue(call)
    await started(desk)

    outcomes = await desk.executor.cancel([call, idle])
    assert truth(outcomes[call.correlation_id]) == (CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN)
    assert truth(outcomes[idle.correlation_id]) == (CallState.CANCELLED, ErrorCode.CANCELLED)


async def test_a_call_that_had_ended_keeps_its_answer(desk: Desk) -> None:
    call = desk.request()
    await desk.ledger.enqueue(call)
    delivery, fence = await started(desk)
    await desk.bench.worker.complete(delivery, fence, answered("42"))

    assert await desk.executor.cancel([call]) == {call.correlation_id: answered("42")}
    assert await desk.executor.cancel([]) == {}


async def test_without_redis_the_outcome_of_a_stopped_call_is_unknown(own_redis: LocalServer) -> None:
    async with aclosing(Desk(own_redis.url)) as desk:
        call = desk.request()
        own_redis.kill()
        outcomes = await desk.executor.cancel([call])
    assert truth(outcomes[call.correlation_id]) == (CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN)


# --- Leaks ---


async def test_a_stop_whose_answer_was_lost_is_repeated_with_the_same_outcome(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = desk.request()
    await desk.publish(call)
    ask = desk.ledger.cancel
    asked: list[str] = []

    async def lose_the_first_answer(*arguments: Any, **options: Any) -> replies.Cancelled:
        asked.append(arguments[0].correlation_id)
        answer = await ask(*arguments, **options)
        if len(asked) == 1:
            raise RedisConnectionError("the reply was lost")
        return answer

    monkeypatch.setattr(desk.ledger, "cancel", lose_the_first_answer)
    outcomes = await desk.executor.cancel([call])

    assert truth(outcomes[call.correlation_id]) == (CallState.CANCELLED, ErrorCode.CANCELLED)
    assert len(asked) == 2


async def test_a_cancelled_waiter_leaves_nothing_behind(desk: Desk) -> None:
    calls = [desk.request() for _ in range(10)]
    waiter = desk.run(*calls)
    await wait_until(lambda: len(desk.calls) == 10)
    waiter.task.cancel()
    await asyncio.wait([waiter.task])
    assert len(desk.calls) == desk.executor.waiting == 0


async def test_a_waiter_that_is_slow_to_end_does_not_take_the_messages_of_its_cancellation(desk: Desk) -> None:
    call = desk.request()
    await desk.ledger.enqueue(call)
    delivery, fence = await started(desk)
    abandoned = desk.executor.run([call])
    first = asyncio.ensure_future(anext(abandoned))
    await asyncio.sleep(0)
    desk.calls.enqueued(call.correlation_id, replies.AlreadyQueued("1-1"))
    assert await first == CallQueued(call.correlation_id)
    cancelling = asyncio.create_task(desk.executor.cancel([call]))

    async def asked() -> bool:
        return "cancel" in await desk.bench.ledger(call)

    await wait_until(asked)
    await abandoned.aclose()
    await desk.bench.worker.complete(delivery, fence, answered("42"))
    assert await cancelling == {call.correlation_id: answered("42")}
