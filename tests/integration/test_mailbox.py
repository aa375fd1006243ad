"""The mailbox: one reader for all replies, and none of them lost."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from dialog_engine.calls.subscriptions import CallMessage, Subscriptions
from plugins_contract.outcomes import CallFinished, CallProgress, CallReply, CallStarted
from tests.integration import executor_harness
from tests.integration.engines import at_work
from tests.marks import promise
from tests.support.ledger import answered
from tests.support.waiting import wait_until

FOUND_WITHIN = 5.0
"""The bound for a reply whose notification was lost."""


class Noted(Subscriptions):
    """Keeps what came of calls that are waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.replies: dict[str, list[CallReply]] = {}

    def replied(self, correlation_id: str, reply: CallReply) -> None:
        if correlation_id in self:
            self.replies.setdefault(correlation_id, []).append(reply)
        super().replied(correlation_id, reply)


class Harness(executor_harness.Harness):
    """The mailbox of an executor, and what was delivered."""

    def __init__(self, url: str) -> None:
        calls = Noted()
        super().__init__(url, calls=calls)
        self.replies = calls.replies

    def note(self, news: CallMessage) -> None:
        """Somebody waits."""

    async def reading(self) -> None:
        async def blocked() -> bool:
            return any(client["cmd"] == "xread" for client in await self.redis.client_list())

        await wait_until(blocked)


@pytest.fixture
async def harness(redis_url: str) -> AsyncGenerator[Harness]:
    async with aclosing(Harness(redis_url)) as harness:
        await harness.bench.open()
        yield harness


@pytest.mark.every_redis
@pytest.mark.parametrize("size", [10, 16_000, 17_000, 500_000])
async def test_a_reply_of_any_size_is_delivered_with_all_that_came_before_it(harness: Harness, size: int) -> None:
    request = await harness.bench.request()
    outcome = answered("x" * size)
    async with at_work(harness.mailbox.run):
        await harness.reading()
        with harness.calls.subscribed([request.correlation_id], harness.note):
            await harness.bench.engine.enqueue(request)
            delivery = await harness.bench.deliver()
            fence = await harness.bench.run(delivery)
            await harness.bench.worker.progress(request, fence, CallStarted(1))
            await harness.bench.worker.progress(request, fence, CallProgress(1, 2, "half"))
            await harness.bench.worker.complete(delivery, fence, outcome)
            await wait_until(lambda: len(harness.replies.get(request.correlation_id, [])) == 3, 2.0)
    assert harness.replies[request.correlation_id] == [
        CallStarted(1), CallProgress(1, 2, "half"), CallFinished(outcome),
    ]  # fmt: skip


async def finished(harness: Harness, notify: bool = True) -> str:
    """A call that a worker has finished; without `notify` its notification is lost."""
    request = await harness.bench.request()
    await harness.bench.engine.enqueue(request)
    delivery, fence = await _started(harness)
    await harness.bench.worker.complete(delivery, fence, answered("42"))
    if not notify:
        await harness.redis.delete(harness.mailbox.key)
    return request.correlation_id


async def _started(harness: Harness) -> Any:
    delivery = await harness.bench.deliver()
    return delivery, await harness.bench.run(delivery)


@promise("an answer whose notification was lost is found")
async def test_a_lost_notification_is_recovered_by_the_sweep(harness: Harness) -> None:
    async with at_work(harness.mailbox.run):
        await harness.reading()
        call = await finished(harness)  # notified before there was a subscription
        await harness.reading()
        with harness.calls.subscribed([call], harness.note):
            await wait_until(lambda: harness.replies.get(call), FOUND_WITHIN)
    assert harness.replies[call] == [CallFinished(answered("42"))]


@pytest.mark.parametrize("loss", ["delete", "flush", "nonsense"])
async def test_a_mailbox_that_was_lost_is_read_again_when_it_is_there_again(harness: Harness, loss: str) -> None:
    async with at_work(harness.mailbox.run):
        await harness.reading()
        match loss:
            case "delete":
                await finished(harness)
                await harness.redis.delete(harness.mailbox.key)
            case "flush":
                await finished(harness)
                await harness.redis.flushall()
                await harness.bench.open()
            case _:
                await harness.redis.xadd(harness.mailbox.key, {"of": "somebody else's"})
                await harness.redis.expire(harness.mailbox.key, 60)
        request = await harness.bench.request()
        with harness.calls.subscribed([request.correlation_id], harness.note):
            await harness.bench.engine.enqueue(request)
            delivery, fence = await _started(harness)
            await harness.bench.worker.complete(delivery, fence, answered("42"))
            await wait_until(
                lambda: CallFinished(answered("42")) in harness.replies.get(request.correlation_id, []), 3.0
            )


async def test_a_reply_that_cannot_be_read_holds_up_no_other(harness: Harness) -> None:
    async with at_work(harness.mailbox.run):
        await harness.reading()
        request = await harness.bench.request()
        with harness.calls.subscribed([request.correlation_id, "other"], harness.note):
            for reply in (b'{"kind":"unheard of"}', b"{]"):
                await harness.redis.xadd(harness.mailbox.key, {"id": "other", "reply": reply})
            await harness.bench.engine.enqueue(request)
            delivery, fence = await _started(harness)
            await harness.bench.worker.complete(delivery, fence, answered("42"))
            await wait_until(lambda: request.correlation_id in harness.replies, 2.0)
    assert "other" not in harness.replies


@promise("one mailbox reader serves every waiting call on constant connections")
@promise("10,000 calls wait on at most 8 connections")
@pytest.mark.every_redis
async def test_two_thousand_calls_wait_on_the_connections_of_one(harness: Harness) -> None:
    async def connections() -> int:
        return len(await harness.redis.client_list())

    requests = [await harness.bench.request() for _ in range(2000)]
    ids = [request.correlation_id for request in requests]
    async with at_work(harness.mailbox.run):
        await harness.reading()
        for request in requests[:5]:
            await harness.bench.engine.enqueue(request)
        before = await connections()
        with harness.calls.subscribed(ids, harness.note):
            assert len(harness.calls) == 2000
            await harness.mailbox.check(ids)
            for _ in range(5):
                delivery, fence = await _started(harness)
                await harness.bench.worker.complete(delivery, fence, answered("42"))
            await wait_until(lambda: len(harness.replies) == 5)
            assert await connections() <= before + 3  # the pool of the command client, at most
            assert len(harness.calls) == 1995
    assert len(harness.calls) == 0


async def test_an_abandoned_call_is_a_suspect_no_longer(harness: Harness) -> None:
    with harness.calls.subscribed(["lost"], harness.note):
        await harness.mailbox.check(["lost"])
    assert harness.mailbox.auditor.suspects == 1
    async with at_work(harness.mailbox.run):
        await wait_until(lambda: harness.mailbox.auditor.suspects == 0, FOUND_WITHIN)


async def test_the_reader_ends_whenever_it_is_cancelled(redis_url: str) -> None:
    # On Python 3.11 redis-py itself would swallow some of these cancellations.
    for passes in range(60):
        async with aclosing(Harness(redis_url)) as harness:
            reader = asyncio.create_task(harness.mailbox.run())
            for _ in range(passes):
                await asyncio.sleep(0)
            reader.cancel()
            _, running = await asyncio.wait([reader], timeout=3)
            assert not running
