"""What Redis loses under waiting calls: each is answered with the truth, runs on, or is put on the stream again."""

import asyncio
import shutil
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from callstream_runtime.connections import thread_client
from callstream_runtime.redis_errors import RedisUnavailable
from dialog_engine.calls.mailbox import MailboxTimes
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.model import CallQueued
from dialog_engine.relay.relay import Relay
from dialog_engine.wiring.times import EngineTimes
from plugins_contract.encryption import CLEAR
from plugins_contract.errors import ErrorCode
from plugins_contract.keys import Keys
from plugins_contract.ledger import Delivery, EngineLedger, RecentCompletions
from plugins_contract.ledger.replies import Loss
from plugins_contract.messages import EVENT_TYPE, ExecutionClass, ToolCallRequested
from plugins_contract.outcomes import CallState
from plugins_mcp.leases import LeaseKeeper, LeaseTimes
from tests.integration.engines import Model, at_work, publish, running_engine, settings
from tests.integration.executor_harness import Harness, Waiter, truth
from tests.integration.test_http_turns import DRAW
from tests.marks import promise
from tests.support.ledger import Bench, answered
from tests.support.servers import LocalServer
from tests.support.waiting import wait_until

CERTAIN_SECONDS = 0.6
OFTEN = LeaseTimes(renew=0.2, renew_again=0.05)
LOST_UNKNOWN = (CallState.UNKNOWN, ErrorCode.LOST)
LOST_FAILED = (CallState.FAILED, ErrorCode.LOST)


CERTAIN = {Loss.MISSING: CERTAIN_SECONDS, Loss.VANISHED: 0.0, Loss.STRANDED: CERTAIN_SECONDS / 2}
TENTH = MailboxTimes(sweep=0.2, suspect=0.1, quiet=0.2, certain_after=CERTAIN)
QUICK = pytest.mark.parametrize("harness", [TENTH], indirect=True)
"""Losses are found in a tenth of the time."""


@pytest.fixture
async def harness(redis_url: str, request: pytest.FixtureRequest) -> AsyncGenerator[Harness]:
    times = getattr(request, "param", MailboxTimes())
    async with aclosing(Harness(redis_url, mailbox_times=times)) as harness:
        await harness.bench.open()
        async with at_work(harness.mailbox.run):
            yield harness
        assert len(harness.calls) == 0


async def waiting(harness: Harness, execution_class: str = "once") -> tuple[ToolCallRequested, Waiter]:
    """A call that is published, and waited for."""
    call = harness.request(execution_class=execution_class)
    waiter = harness.run(call)
    await asyncio.sleep(0)
    await harness.publish(call)
    return call, waiter


async def started(harness: Harness, execution_class: str = "once") -> tuple[Delivery, int, Waiter]:
    """A call that a worker has begun."""
    _, waiter = await waiting(harness, execution_class)
    delivery = await harness.bench.deliver()
    return delivery, await harness.bench.run(delivery), waiter


@asynccontextmanager
async def kept(url: str, delivery: Delivery, fence: int, times: LeaseTimes = OFTEN) -> AsyncGenerator[list[str]]:
    """The worker of this call lives, for as long as the block; the list is what was reported to it."""
    reports: list[str] = []
    with thread_client(url, timeout=2.0) as redis:
        keeper = LeaseKeeper(redis, Keys(), times, worker=delivery.consumer, recent=RecentCompletions())
        async with at_work(keeper.run):
            with keeper.held(
                delivery,
                fence,
                since=time.monotonic(),
                on_cancel=lambda: reports.append("cancel"),
                on_lost=lambda: reports.append("lost"),
            ):
                yield reports


async def end(harness: Harness, delivery: Delivery, fence: int) -> None:
    await harness.bench.worker.complete(delivery, fence, answered("42"))


# --- Everything is lost ---


@promise("after a flush every call is answered, runs on, or is queued again, and nothing runs twice that must not")
@promise("what Redis lost of a running call is put back by its worker")
@promise("FLUSHALL: every open call is terminal within 15 seconds")
@pytest.mark.every_redis
async def test_with_the_times_of_the_product_every_call_is_answered_or_runs_on_within_15_seconds(
    harness: Harness, redis_url: str
) -> None:
    living, fence, runs_on = await started(harness)
    _, _, dead = await started(harness)
    _, once = await waiting(harness)
    again, repeatable = await waiting(harness, "repeatable")
    async with kept(redis_url, living, fence, LeaseTimes()) as reports:
        flushed_at = time.monotonic()
        await harness.redis.flushall()
        assert truth(await dead.outcome()) == truth(await once.outcome()) == LOST_UNKNOWN
        await wait_until(lambda: repeatable.updates.count(CallQueued(again.correlation_id, 0)) == 1, 15)
        delivery = await harness.bench.deliver()
        await end(harness, delivery, await harness.bench.run(delivery))
        assert await repeatable.outcome() == answered("42")
        assert time.monotonic() - flushed_at < 15
        assert not runs_on.task.done()
        assert reports == []
        await end(harness, living, fence)
        assert await runs_on.outcome() == answered("42")


# --- Parts are lost ---


@promise("I7 a request that vanished is answered LOST")
@pytest.mark.every_redis
@QUICK
@pytest.mark.parametrize("execution_class", ["once", "repeatable"])
@pytest.mark.parametrize("lost", ["entry", "stream"])
async def test_a_request_that_vanished_is_answered_lost(harness: Harness, execution_class: str, lost: str) -> None:
    _, waiter = await waiting(harness, execution_class)
    if lost == "entry":
        delivery = await harness.bench.deliver()
        await harness.redis.xdel(harness.keys.requests, delivery.entry)
    else:
        await harness.redis.delete(harness.keys.requests)

    outcome = await waiter.outcome()
    assert truth(outcome) == LOST_FAILED
    assert outcome.error is not None
    assert "it was not run" in outcome.error.message


# --- Given up after a loss ---


async def test_while_the_disk_is_full_the_relay_knows_what_is_published(harness: Harness) -> None:
    harness.outbox.store.refuse["published"] = StorageUnavailableError("the disk is full")
    ledger = EngineLedger(harness.redis, harness.keys, cipher=CLEAR)
    routes = {EVENT_TYPE: "events.plugins"}
    relay = Relay(harness.outbox, harness.redis, ledger, harness.keys, routes, harness.calls, cipher=CLEAR)
    harness.unmarked = relay.unmarked
    async with at_work(relay.run):
        call = harness.request()
        relay.offer(await harness.outbox.calls([call.correlation_id]))
        await wait_until(relay.unmarked, what="the publication")
        delivery = await harness.bench.deliver()
        await harness.bench.run(delivery)
        await harness.redis.flushall()
        outcomes = await harness.executor.cancel([call])
    assert await harness.outbox.calls([call.correlation_id]), "the table still says that it waits"
    assert truth(outcomes[call.correlation_id]) == LOST_UNKNOWN


@promise("a call that was published and lost is never said to have not begun")
async def test_a_published_call_that_is_stopped_after_a_flush_is_not_said_to_have_never_begun(
    harness: Harness, redis_url: str
) -> None:
    once, _, first = await started(harness)
    again, _, second = await started(harness, "repeatable")
    unpublished = harness.request()
    for waiter in (first, second):
        waiter.task.cancel()
        await asyncio.wait([waiter.task])
    await harness.redis.flushall()
    listener = harness.redis.pubsub()
    await listener.subscribe(harness.keys.control)
    await wait_until(lambda: listener.get_message(timeout=1), what="the subscription")

    outcomes = await harness.executor.cancel([once.request, again.request, unpublished])

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


@promise("a call that was published and lost is never said to have not begun")
async def test_a_published_call_whose_deadline_passes_after_a_flush_is_not_said_to_have_never_run(
    harness: Harness,
) -> None:
    calls = [harness.request(500, execution_class=execution_class) for execution_class in ("once", "repeatable")]
    once, repeatable = (harness.run(call) for call in calls)
    await asyncio.sleep(0)
    await harness.publish(*calls)
    await harness.redis.flushall()

    assert truth(await once.outcome()) == LOST_UNKNOWN
    assert truth(await repeatable.outcome()) == (CallState.FAILED, ErrorCode.TIMEOUT)


# --- An engine that restarts in between ---


@promise("after a flush every call is answered, runs on, or is queued again, and nothing runs twice that must not")
async def test_an_engine_that_was_down_during_a_flush_ends_its_calls_with_the_right_outcome(
    redis_url: str, redis: Any, tmp_path: Path
) -> None:
    async with Model().serving() as model:
        configured = settings(tmp_path, redis_url, model.url)
        with thread_client(redis_url) as thread:
            bench = Bench(redis, thread)
            await bench.open()
            publish(redis_url, DRAW)
            model.will_call("demo__draw")
            async with running_engine(configured, times=EngineTimes(mailbox=TENTH)) as engine:
                session = (await engine.client.post("/v1/sessions")).json()["sessionId"]
                await engine.client.post(f"/v1/sessions/{session}/turns", json={"message": "Draw"})
                delivery = await wait_until(lambda: bench.next_delivery("a"))
                assert delivery
                await bench.run(delivery)
        await redis.flushall()
        async with running_engine(configured, times=EngineTimes(mailbox=TENTH)) as engine:

            async def ended() -> Any:
                answer: Any = (await engine.client.get(f"/v1/sessions/{session}/messages")).json()
                return answer["messages"] if answer["turns"][0]["status"] == "done" else None

            messages = await wait_until(ended)
            (call,) = next(message["toolCalls"] for message in messages if message.get("toolCalls"))
        assert (call["status"], call["error"]["code"]) == ("unknown", "LOST")


@promise(
    "a repeatable call is never unknown: past its deadline it is a timeout, for the user, the model and the history"
)
@pytest.mark.parametrize("fault", ["a worker that hangs", "Redis away"])
async def test_a_deadline_ends_each_call_by_its_class_for_the_user_the_model_and_the_history(
    fault: str, own_redis: LocalServer, tmp_path: Path
) -> None:
    once = msgspec.structs.replace(DRAW, timeout_ms=1000)
    again = msgspec.structs.replace(once, name="demo__look", tool="look", execution_class=ExecutionClass.REPEATABLE)
    async with Model().serving() as model, aclosing(Harness(own_redis.url)) as harness:
        await harness.bench.open()
        publish(own_redis.url, once, again)
        model.will_call("demo__draw", "demo__look")
        configured = settings(tmp_path, own_redis.url, model.url)
        async with running_engine(configured) as engine:
            chatting = asyncio.create_task(engine.chat("Go"))
            for _ in range(2):
                delivery = await wait_until(lambda: harness.bench.next_delivery("hung"))
                assert delivery
                await harness.bench.run(delivery)
            if fault == "Redis away":
                own_redis.kill()
            events = await chatting
        async with running_engine(configured) as engine:
            answer: Any = (await engine.client.get(f"/v1/sessions/{events[0].data['sessionId']}/messages")).json()

    seen = {event.data["toolName"]: event.data for event in events if event.data.get("error")}
    kept = {call["toolName"]: call for message in answer["messages"] for call in message.get("toolCalls", ())}
    for shown in (seen, kept):
        ends = {tool: (call["status"], call["error"]["code"]) for tool, call in shown.items()}
        assert ends == {"demo__draw": ("unknown", "TIMEOUT"), "demo__look": ("timeout", "TIMEOUT")}
    said = [message["content"] for message in model.asked[1]["messages"] if message["role"] == "tool"]
    assert ["Do not repeat it" in text for text in said] == [True, False]


@promise("what Redis lost of a running call is put back by its worker")
async def test_redis_comes_back_empty_and_the_lease_is_there_at_once(own_redis: LocalServer, tmp_path: Path) -> None:
    """However short the outage, a worker puts its call back before anybody else takes calls up."""
    async with aclosing(Harness(own_redis.url)) as harness:
        await harness.bench.open()
        await harness.publish(harness.request())
        delivery = await harness.bench.deliver()
        fence = await harness.bench.run(delivery)
        async with kept(own_redis.url, delivery, fence, LeaseTimes(renew=60.0)) as reports:
            await wait_until(lambda: renewed(harness, delivery.request))
            own_redis.kill()
            shutil.rmtree(tmp_path / "valkey")
            (tmp_path / "valkey").mkdir()
            own_redis.start()
            back_at = time.monotonic()
            await wait_until(lambda: known(harness, delivery.request))
            assert time.monotonic() - back_at < 5  # not with the next renewal, which is a minute away
        assert reports == []


async def renewed(harness: Harness, call: ToolCallRequested) -> bool:
    ledger = await harness.bench.ledger(call)
    return ledger["renewedAt"] != ledger["startedAt"]


async def known(harness: Harness, call: ToolCallRequested) -> bool:
    try:
        return (await harness.bench.ledger(call)).get("state") == "started"
    except RedisUnavailable:
        return False
