"""What Redis loses under waiting calls: each is answered with the truth, runs on, or is put on the stream again."""

import asyncio
import shutil
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from dialog_engine.calls import losses, mailbox
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.model import CallQueued
from dialog_engine.relay.relay import Relay
from plugins_contract.connections import thread_client
from plugins_contract.errors import ErrorCode
from plugins_contract.keys import GROUP, Keys
from plugins_contract.ledger import Delivery, EngineLedger, replies
from plugins_contract.ledger.replies import Loss
from plugins_contract.messages import EVENT_TYPE, ToolCallRequested
from plugins_contract.outcomes import CallState, ToolOutcome
from plugins_mcp.leases import LeaseKeeper, LeaseTimes
from tests.integration.desk import Desk, Waiter
from tests.integration.engines import Model, at_work, running_engine, settings
from tests.integration.test_http_turns import publish_tools
from tests.support.ledger import Bench, answered
from tests.support.servers import LocalServer
from tests.support.waiting import stays, wait_until

pytestmark = pytest.mark.anyio

CERTAIN_SECONDS = 0.6
OFTEN = LeaseTimes(renew=0.2, renew_again=0.05)
LOST_UNKNOWN = (CallState.UNKNOWN, ErrorCode.LOST)
LOST_FAILED = (CallState.FAILED, ErrorCode.LOST)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses are found in a tenth of the time."""
    certain = {Loss.MISSING: CERTAIN_SECONDS, Loss.VANISHED: 0.0, Loss.STRANDED: CERTAIN_SECONDS / 2}
    monkeypatch.setattr(losses, "CERTAIN_AFTER_SECONDS", certain)
    for name, seconds in {"SWEEP_SECONDS": 0.2, "QUIET_SECONDS": 0.2, "SUSPECT_SECONDS": 0.1}.items():
        monkeypatch.setattr(mailbox, name, seconds)


@pytest.fixture
async def desk(redis_url: str) -> AsyncGenerator[Desk]:
    async with aclosing(Desk(redis_url)) as desk:
        await desk.bench.open()
        async with at_work(desk.mailbox.run):
            yield desk
        assert len(desk.calls) == 0


async def waiting(desk: Desk, execution_class: str = "once") -> tuple[ToolCallRequested, Waiter]:
    """A call that is published, and waited for."""
    call = desk.request(execution_class=execution_class)
    waiter = desk.run(call)
    await asyncio.sleep(0)
    await desk.publish(call)
    return call, waiter


async def started(desk: Desk, execution_class: str = "once") -> tuple[Delivery, int, Waiter]:
    """A call that a worker has begun."""
    _, waiter = await waiting(desk, execution_class)
    delivery = await desk.bench.deliver()
    return delivery, await desk.bench.run(delivery), waiter


@asynccontextmanager
async def kept(url: str, delivery: Delivery, fence: int, times: LeaseTimes = OFTEN) -> AsyncGenerator[list[str]]:
    """The worker of this call lives, for as long as the block; the list is what it was told."""
    reports: list[str] = []
    with thread_client(url, timeout=2.0) as redis:
        keeper = LeaseKeeper(redis, Keys(), times)
        async with at_work(keeper.run):
            with keeper.held(
                delivery,
                fence,
                since=time.monotonic(),
                on_cancel=lambda: reports.append("cancel"),
                on_lost=lambda: reports.append("lost"),
            ):
                yield reports


async def silence(desk: Desk, call: ToolCallRequested) -> None:
    """The worker of this call has not been heard of for a minute."""
    await desk.bench.command("HINCRBY", desk.keys.call(call.correlation_id), "renewedAt", -60_000)


def truth(outcome: ToolOutcome) -> tuple[CallState, ErrorCode | None]:
    return outcome.state, outcome.error.code if outcome.error else None


async def end(desk: Desk, delivery: Delivery, fence: int) -> None:
    await desk.bench.worker.complete(delivery, fence, answered("42"))


async def nobody_runs(desk: Desk, call: ToolCallRequested) -> None:
    """Whatever comes too late finds that the call has ended."""
    await desk.ledger.enqueue(call)
    assert await desk.bench.backlog() == 0


# --- Everything is lost ---


@pytest.mark.every_redis
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("recreated", [False, True])
async def test_after_a_flush_a_once_call_that_waited_is_unknown_and_never_runs(desk: Desk, recreated: bool) -> None:
    call, waiter = await waiting(desk)
    await desk.redis.flushall()
    if recreated:
        await desk.bench.open()

    assert truth(await waiter.outcome()) == LOST_UNKNOWN
    await nobody_runs(desk, call)


@pytest.mark.every_redis
@pytest.mark.usefixtures("quick")
async def test_after_a_flush_a_repeatable_call_is_queued_again_and_runs(desk: Desk) -> None:
    call, waiter = await waiting(desk, "repeatable")
    await desk.redis.flushall()
    await wait_until(lambda: waiter.updates.count(CallQueued(call.correlation_id, 0)) == 2)
    delivery = await desk.bench.deliver()
    await end(desk, delivery, await desk.bench.run(delivery))

    assert await waiter.outcome() == answered("42")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("execution_class", ["once", "repeatable"])
async def test_after_a_flush_a_call_runs_on_at_its_living_worker(
    desk: Desk, redis_url: str, execution_class: str
) -> None:
    delivery, fence, waiter = await started(desk, execution_class)
    async with kept(redis_url, delivery, fence) as reports:
        await desk.redis.flushall()
        await stays(lambda: not waiter.task.done(), 3 * CERTAIN_SECONDS)  # longer than it takes to find a loss
        await end(desk, delivery, fence)
        assert await waiter.outcome() == answered("42")
    assert reports == []
    assert sum(isinstance(update, CallQueued) for update in waiter.updates) == 1


@pytest.mark.usefixtures("quick")
async def test_after_a_flush_a_once_call_whose_worker_is_gone_is_unknown(desk: Desk) -> None:
    delivery, _, waiter = await started(desk)
    await desk.redis.flushall()

    assert truth(await waiter.outcome()) == LOST_UNKNOWN
    await nobody_runs(desk, delivery.request)


@pytest.mark.usefixtures("quick")
async def test_a_call_that_was_put_back_by_a_worker_that_died_then_is_answered(desk: Desk) -> None:
    delivery, fence, waiter = await started(desk)
    await desk.redis.flushall()
    desk.bench.renew(delivery, fence)
    await silence(desk, delivery.request)

    assert truth(await waiter.outcome()) == LOST_UNKNOWN


async def test_with_the_times_of_the_product_every_call_is_answered_or_runs_on_within_15_seconds(
    desk: Desk, redis_url: str
) -> None:
    living, fence, runs_on = await started(desk)
    _, _, dead = await started(desk)
    _, once = await waiting(desk)
    again, repeatable = await waiting(desk, "repeatable")
    async with kept(redis_url, living, fence, LeaseTimes()) as reports:
        flushed_at = time.monotonic()
        await desk.redis.flushall()
        assert truth(await dead.outcome()) == truth(await once.outcome()) == LOST_UNKNOWN
        await wait_until(lambda: repeatable.updates.count(CallQueued(again.correlation_id, 0)) == 1, 15)
        delivery = await desk.bench.deliver()
        await end(desk, delivery, await desk.bench.run(delivery))
        assert await repeatable.outcome() == answered("42")
        assert time.monotonic() - flushed_at < 15
        assert not runs_on.task.done()
        await end(desk, living, fence)
        assert await runs_on.outcome() == answered("42")
    assert reports == []


# --- Parts are lost ---


@pytest.mark.every_redis
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("execution_class", ["once", "repeatable"])
@pytest.mark.parametrize("lost", ["entry", "stream"])
async def test_a_request_that_vanished_is_answered_lost(desk: Desk, execution_class: str, lost: str) -> None:
    _, waiter = await waiting(desk, execution_class)
    if lost == "entry":
        delivery = await desk.bench.deliver()
        await desk.redis.xdel(desk.keys.requests, delivery.entry)
    else:
        await desk.redis.delete(desk.keys.requests)

    outcome = await waiter.outcome()
    assert truth(outcome) == LOST_FAILED
    assert outcome.error is not None
    assert "it was not run" in outcome.error.message


@pytest.mark.usefixtures("quick")
async def test_a_lost_ledger_makes_a_once_call_unknown_and_a_repeatable_one_new(desk: Desk) -> None:
    (once, first), (again, second) = await waiting(desk), await waiting(desk, "repeatable")
    for call in (once, again):
        await desk.bench.forget(call)

    assert truth(await first.outcome()) == LOST_UNKNOWN
    await wait_until(lambda: len(second.updates) == 2)
    while delivery := await desk.bench.next_delivery("a"):
        answer = await desk.bench.start(delivery)
        if isinstance(answer, replies.Run):
            assert delivery.request == again
            await end(desk, delivery, answer.fence)
    assert await second.outcome() == answered("42")
    assert await desk.bench.backlog() == 0


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("execution_class", "expected"), [("once", LOST_UNKNOWN), ("repeatable", LOST_FAILED)])
async def test_a_call_whose_request_and_worker_are_gone_is_answered(
    desk: Desk, execution_class: str, expected: tuple[CallState, ErrorCode]
) -> None:
    delivery, _, waiter = await started(desk, execution_class)
    await desk.redis.delete(desk.keys.requests)
    await silence(desk, delivery.request)

    assert truth(await waiter.outcome()) == expected


@pytest.mark.usefixtures("quick")
async def test_a_call_without_a_request_runs_on_at_its_living_worker(desk: Desk, redis_url: str) -> None:
    delivery, fence, waiter = await started(desk)
    async with kept(redis_url, delivery, fence):
        await desk.redis.delete(desk.keys.requests)
        await stays(lambda: not waiter.task.done(), 2 * CERTAIN_SECONDS)
        await end(desk, delivery, fence)
        assert await waiter.outcome() == answered("42")


@pytest.mark.usefixtures("quick")
async def test_without_its_group_nothing_is_lost(desk: Desk, redis_url: str) -> None:
    delivery, fence, running = await started(desk)
    _, queued = await waiting(desk)
    async with kept(redis_url, delivery, fence) as reports:
        await desk.redis.xgroup_destroy(desk.keys.requests, GROUP)
        await stays(lambda: not running.task.done() and not queued.task.done(), 2 * CERTAIN_SECONDS)
        await desk.bench.open()
        other = [await desk.bench.deliver("b"), await desk.bench.deliver("b")]
        assert [type(await desk.bench.start(each)).__name__ for each in other] == ["NothingToDo", "Run"]
        await end(desk, delivery, fence)
        assert await running.outcome() == answered("42")
        await end(desk, other[1], int((await desk.bench.ledger(other[1].request))["fence"]))
        assert await queued.outcome() == answered("42")
    assert reports == []


# --- What looks lost and is not ---


@pytest.mark.usefixtures("quick")
async def test_a_call_that_the_relay_has_not_published_yet_is_not_lost(desk: Desk) -> None:
    call = desk.request()
    waiter = desk.run(call)
    await stays(lambda: not waiter.task.done(), 3 * CERTAIN_SECONDS)
    await desk.publish(call)
    delivery = await desk.bench.deliver()
    await end(desk, delivery, await desk.bench.run(delivery))

    assert await waiter.outcome() == answered("42")


@pytest.mark.usefixtures("quick")
async def test_without_redis_nothing_is_reported_as_lost(own_redis: LocalServer) -> None:
    async with aclosing(Desk(own_redis.url)) as desk:
        await desk.bench.open()
        async with at_work(desk.mailbox.run):
            delivery, fence, waiter = await started(desk)
            own_redis.kill()
            await stays(lambda: not waiter.task.done(), 3 * CERTAIN_SECONDS)
            own_redis.start()
            desk.thread.close()
            await end(desk, delivery, fence)
            assert await waiter.outcome() == answered("42")


# --- Given up after a loss ---


async def test_while_the_disk_is_full_the_relay_knows_what_is_published(desk: Desk) -> None:
    desk.outbox.failure = StorageUnavailableError("the disk is full")
    ledger = EngineLedger(desk.redis, desk.keys)
    routes = {EVENT_TYPE: "events.plugins"}
    relay = Relay(desk.outbox, desk.redis, ledger, desk.keys, routes, desk.calls)
    desk.unmarked = relay.unmarked
    async with at_work(relay.run):
        call = desk.request()
        relay.offer(await desk.outbox.calls([call.correlation_id]))
        await wait_until(relay.unmarked, what="the publication")
        delivery = await desk.bench.deliver()
        await desk.bench.run(delivery)
        await desk.redis.flushall()
        outcomes = await desk.executor.cancel([call])
    assert await desk.outbox.calls([call.correlation_id]), "the table still says that it waits"
    assert truth(outcomes[call.correlation_id]) == LOST_UNKNOWN


async def test_a_published_call_that_is_stopped_after_a_flush_is_not_said_to_have_never_begun(
    desk: Desk, redis_url: str
) -> None:
    once, _, first = await started(desk)
    again, _, second = await started(desk, "repeatable")
    unpublished = desk.request()
    for waiter in (first, second):
        waiter.task.cancel()
        await asyncio.wait([waiter.task])
    await desk.redis.flushall()
    listener = desk.redis.pubsub()
    await listener.subscribe(desk.keys.control)
    await wait_until(lambda: listener.get_message(timeout=1), what="the subscription")

    outcomes = await desk.executor.cancel([once.request, again.request, unpublished])

    assert [truth(outcome) for outcome in outcomes.values()] == [
        LOST_UNKNOWN,
        (CallState.CANCELLED, ErrorCode.CANCELLED),
        (CallState.CANCELLED, ErrorCode.CANCELLED),
    ]
    said = [outcome.error.message for outcome in outcomes.values() if outcome.error]
    assert ["before it began" in message for message in said] == [False, False, True]
    message = await wait_until(lambda: listener.get_message(ignore_subscribe_messages=True, timeout=1))
    assert b'"cancel"' in message["data"]
    await listener.aclose()


async def test_a_published_call_whose_deadline_passes_after_a_flush_is_not_said_to_have_never_run(desk: Desk) -> None:
    call = desk.request(500)
    waiter = desk.run(call)
    await asyncio.sleep(0)
    await desk.publish(call)
    await desk.redis.flushall()

    assert truth(await waiter.outcome()) == LOST_UNKNOWN


# --- An engine that restarts in between ---


@pytest.mark.usefixtures("quick")
async def test_an_engine_that_was_down_during_a_flush_ends_its_calls_with_the_right_outcome(
    redis_url: str, redis: Any, tmp_path: Path
) -> None:
    async with Model().serving() as model:
        configured = settings(tmp_path, redis_url, model.url)
        with thread_client(redis_url) as thread:
            bench = Bench(redis, thread)
            await bench.open()
            await publish_tools(redis, bench.keys)
            model.will_call("demo__draw")
            async with running_engine(configured) as engine:
                session = (await engine.client.post("/v1/sessions")).json()["sessionId"]
                await engine.client.post(f"/v1/sessions/{session}/turns", json={"message": "Draw"})
                delivery = await wait_until(lambda: bench.next_delivery("a"))
                assert delivery
                await bench.run(delivery)
        await redis.flushall()
        async with running_engine(configured) as engine:

            async def ended() -> Any:
                answer: Any = (await engine.client.get(f"/v1/sessions/{session}/messages")).json()
                return answer["messages"] if answer["turns"][0]["status"] == "done" else None

            messages = await wait_until(ended)
            (call,) = next(message["toolCalls"] for message in messages if message.get("toolCalls"))
        assert (call["status"], call["error"]["code"]) == ("unknown", "LOST")


async def test_redis_comes_back_empty_and_the_lease_is_there_at_once(own_redis: LocalServer, tmp_path: Path) -> None:
    """However short the outage, a worker puts its call back before anybody else takes calls up."""
    async with aclosing(Desk(own_redis.url)) as desk:
        await desk.bench.open()
        await desk.publish(desk.request())
        delivery = await desk.bench.deliver()
        fence = await desk.bench.run(delivery)
        async with kept(own_redis.url, delivery, fence, LeaseTimes(renew=60.0)) as reports:
            await wait_until(lambda: renewed(desk, delivery.request))
            own_redis.kill()
            shutil.rmtree(tmp_path / "valkey")
            (tmp_path / "valkey").mkdir()
            own_redis.start()
            back_at = time.monotonic()
            await wait_until(lambda: known(desk, delivery.request))
            assert time.monotonic() - back_at < 5  # not with the next renewal, which is a minute away
        assert reports == []


async def renewed(desk: Desk, call: ToolCallRequested) -> bool:
    ledger = await desk.bench.ledger(call)
    return ledger["renewedAt"] != ledger["startedAt"]


async def known(desk: Desk, call: ToolCallRequested) -> bool:
    try:
        return (await desk.bench.ledger(call)).get("state") == "started"
    except RedisConnectionError:
        return False
