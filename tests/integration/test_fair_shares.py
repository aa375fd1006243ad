"""Fair shares of one stream: who asks for little does not wait behind who asks for much.

Relays and mailboxes of engines on a real server, and workers that take calls from the group one after the other.
"""

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager

import pytest

from callstream_runtime.connections import blocking_client
from dialog_engine.calls.mailbox import BLOCK_SECONDS, Mailbox
from dialog_engine.calls.subscriptions import Unpublishable
from dialog_engine.chat.outbox import OutboxRow
from dialog_engine.relay.publish_queue import RelayTimes
from dialog_engine.relay.relay import BATCH
from plugins_contract.encryption import CLEAR
from plugins_contract.errors import ErrorCode
from plugins_contract.ledger import replies
from plugins_contract.messages import decode_request
from plugins_contract.outcomes import CallState, ToolOutcome
from tests.integration.engines import ENGINE, at_work, request
from tests.integration.test_relay import Bench
from tests.marks import promise
from tests.support.ledger import CANCELLED, DONE
from tests.support.publishers import FakePublisher
from tests.support.servers import LocalServer
from tests.support.waiting import wait_until
from tests.support.working import Caller, calling

WINDOW = 20
OFTEN = RelayTimes(poll=0.1)
SLOTS = 4


class Engine(Bench):
    """Outbox, relay and mailbox of one engine. It reads the notifications of its calls, unless it is `deaf`."""

    def __init__(
        self, url: str, times: RelayTimes = OFTEN, *, name: str = ENGINE, window: int = WINDOW, limit: int = 0
    ) -> None:
        super().__init__(url, times, backlog_limit=limit, window=window)
        self._blocking = blocking_client(url, block_seconds=BLOCK_SECONDS)
        self.mailbox = Mailbox(
            self._blocking,
            self.redis,
            self.keys,
            name,
            self.outbox,
            self.calls,
            publisher=FakePublisher(lambda call: None if self.deaf else self.relay.begun(call), self._unmarked),
            cipher=CLEAR,
        )
        self.deaf = False
        self._name = name

    def _unmarked(self) -> frozenset[str]:
        return self.relay.unmarked()

    async def aclose(self) -> None:
        await super().aclose()
        await self._blocking.aclose()

    def last(self, row: OutboxRow) -> replies.Enqueued | Unpublishable | None:
        """The last report of the relay on a call."""
        return self.answers.get(row.event_id, [None])[-1]

    def commits(self, subject: str, count: int = 1) -> list[OutboxRow]:
        """Commit so many calls of a subject; the relay is not notified."""
        calls = [request(2**45, subject=subject, engine=self._name) for _ in range(count)]
        return [self.outbox.call(call) for call in calls]

    def asks(self, subject: str, count: int = 1) -> list[OutboxRow]:
        """Commit so many calls of a subject, in one go."""
        rows = self.commits(subject, count)
        self.relay.offer(rows)
        return rows

    async def hear(self) -> None:
        await self.mailbox.run()

    async def settled(self, enqueued: int) -> None:
        """Wait until so many calls were put on the stream, and no more go by themselves."""
        await wait_until(lambda: len(self.answers) >= enqueued)
        looks = self.outbox.looks
        await wait_until(lambda: self.outbox.looks > looks)
        assert len(self.answers) == enqueued


class Workers:
    """Take calls while they are `working`; `begun` holds their subjects and ids in the order of their starts."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.begun: list[tuple[str, str]] = []

    @asynccontextmanager
    async def working(self) -> AsyncGenerator[None]:
        tasks = [asyncio.create_task(self._work(f"worker-{n}")) for n in range(SLOTS)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, name: str) -> None:
        while True:
            delivery = await wait_until(lambda: self._caller.next_delivery(name), math.inf, every=0.005)
            assert delivery
            started = await self._caller.start(delivery)
            assert isinstance(started, replies.Run)
            self.begun.append((delivery.request.subject, delivery.request.correlation_id))
            await self._caller.worker.complete(delivery, started.fence, DONE)

    def ahead_of(self, subject: str) -> int:
        """How many calls began before the first of a subject."""
        return next((n for n, (whose, _) in enumerate(self.begun) if whose == subject), len(self.begun))

    def of(self, subject: str) -> list[str]:
        """The calls of a subject, in the order of their starts."""
        return [call for whose, call in self.begun if whose == subject]


@pytest.fixture
async def workers(redis_url: str) -> AsyncGenerator[Workers]:
    async with calling(redis_url) as caller:
        await caller.open()
        yield Workers(caller)


@pytest.fixture
async def engine(redis_url: str, request: pytest.FixtureRequest) -> AsyncGenerator[Engine]:
    async with aclosing(Engine(redis_url, getattr(request, "param", OFTEN))) as engine:
        yield engine


RARE_POLLS = pytest.mark.parametrize("engine", [RelayTimes(poll=60.0)], indirect=True)
"""The relay finds nothing by polling within a test."""


@promise("subjects get fair shares of one stream")
async def test_with_several_engines_one_window_of_each_is_ahead_at_most(redis_url: str, workers: Workers) -> None:
    async with (
        aclosing(Engine(redis_url)) as one,
        aclosing(Engine(redis_url, name="engine-2")) as two,
        at_work(one.relay.run, one.hear, two.relay.run, two.hear),
        workers.working(),
    ):
        one.asks("a", 150)
        two.asks("a", 150)
        await wait_until(lambda: len(workers.begun) > 50)
        (row,) = two.asks("b")
        await wait_until(lambda: row.event_id in two.answers)
        before = len(workers.begun)
        await wait_until(lambda: workers.of("b"))
        assert workers.ahead_of("b") - before <= 2 * WINDOW + SLOTS
        await wait_until(lambda: len(workers.begun) == 301, 60)


@RARE_POLLS
async def test_a_call_that_begins_releases_the_next_at_once(engine: Engine, workers: Workers) -> None:
    async with at_work(engine.relay.run, engine.hear), workers.working():
        engine.asks("a", 8 * WINDOW)
        # By asking the ledger alone a window's worth of calls would go with each poll.
        await wait_until(lambda: len(workers.begun) == 8 * WINDOW)


async def test_a_lost_notification_is_recovered_from_the_ledger(engine: Engine, workers: Workers) -> None:
    engine.deaf = True
    async with at_work(engine.relay.run, engine.hear):
        engine.asks("a", WINDOW + 5)
        async with workers.working():
            await wait_until(lambda: len(workers.begun) == WINDOW + 5)


@promise("a call that ends while it is held back never reaches the stream")
@pytest.mark.parametrize("notified", [True, False], ids=["the relay is notified", "the relay is not notified"])
async def test_a_call_that_ends_while_it_is_held_back_never_reaches_the_stream(
    engine: Engine, workers: Workers, notified: bool
) -> None:
    async with at_work(engine.relay.run, engine.hear):
        rows = engine.asks("a", WINDOW + 3)
        await engine.settled(WINDOW)
        ended = rows[WINDOW + 1]
        assert not isinstance(
            await engine.ledger.cancel(decode_request(ended.payload), CANCELLED), replies.CancelRequested
        )
        fact = engine.outbox.answer(ended.event_id)
        if notified:
            engine.relay.offer([fact])
            assert engine.relay.held == 2
        async with workers.working():
            await wait_until(lambda: len(workers.begun) == WINDOW + 2)
        await wait_until(lambda: engine.relay.held == 0)
    assert ended.event_id not in workers.of("a")
    # Its notification may look as if a reply had been lost, and then the ledger is asked; it stays off the stream.
    assert isinstance(engine.last(ended), replies.AlreadyFinished | None)


async def test_calls_of_an_earlier_life_count_against_the_window(engine: Engine, workers: Workers) -> None:
    async with at_work(engine.relay.run):
        engine.asks("a", WINDOW + 5)
        await engine.settled(WINDOW)
        await wait_until(lambda: len(engine.outbox.left) == 5)

    engine.relay = engine.born_again()
    async with at_work(engine.relay.run, engine.hear):
        await wait_until(lambda: engine.relay.held == 5)
        later = engine.asks("a")
        await engine.settled(WINDOW)
        async with workers.working():
            await wait_until(lambda: len(workers.begun) == WINDOW + 6)
    assert workers.of("a")[-SLOTS:].count(later[0].event_id) == 1


async def test_rows_that_were_not_offered_are_held_back_too_and_read_once(engine: Engine) -> None:
    engine.commits("a", 10 * BATCH)
    async with at_work(engine.relay.run):
        await wait_until(lambda: engine.relay.held == 10 * BATCH - WINDOW)
        read, looks = engine.outbox.read, engine.outbox.looks
        assert read <= 10 * BATCH + WINDOW
        await wait_until(lambda: engine.outbox.looks >= looks + 2)
        assert engine.outbox.read == read


async def test_without_redis_the_window_and_the_order_are_kept(own_redis: LocalServer) -> None:
    own_redis.kill()
    async with aclosing(Engine(own_redis.url)) as engine:
        rows = engine.asks("a", WINDOW + 30)
        async with at_work(engine.relay.run):
            await wait_until(lambda: engine.outbox.looks >= 3)
            assert engine.relay.held >= 30
            own_redis.start()
            await engine.settled(WINDOW)
        # Those of one batch go side by side.
        assert engine.answers.keys() == {row.event_id for row in rows[:WINDOW]}


async def test_a_request_that_ended_while_redis_was_away_is_not_sent_when_it_is_back(own_redis: LocalServer) -> None:
    own_redis.kill()
    async with aclosing(Engine(own_redis.url)) as engine:
        rows = engine.asks("a", 5)
        async with at_work(engine.relay.run):
            await wait_until(lambda: engine.outbox.looks >= 2)
            # The ledger could not be written: only the outbox knows that it never ran.
            engine.relay.offer([engine.outbox.answer(rows[1].event_id), engine.outbox.answer(rows[3].event_id)])
            own_redis.start()
            await wait_until(lambda: not engine.outbox.left)
        assert engine.answers.keys() == {rows[n].event_id for n in (0, 2, 4)}


async def test_a_request_whose_reply_was_lost_is_marked_though_it_has_begun(engine: Engine) -> None:
    async with at_work(engine.relay.run):
        rows = engine.asks("a", WINDOW + 2)
        await engine.settled(WINDOW)
        lost = rows[-1]
        await engine.ledger.enqueue(decode_request(lost.payload))
        engine.relay.begun(lost.event_id)
        await wait_until(lambda: lost.event_id in engine.answers)
        assert isinstance(engine.last(lost), replies.AlreadyQueued)
        await wait_until(lambda: lost.seq not in engine.outbox.left)


async def test_above_the_backlog_limit_only_subjects_with_their_share_are_refused(redis_url: str) -> None:
    async with aclosing(Engine(redis_url, limit=50)) as engine, at_work(engine.relay.run):
        await wait_until(lambda: engine.outbox.looks)
        much = engine.asks("a", 100)
        little = engine.asks("b")
        await wait_until(lambda: little[0].event_id in engine.answers)
        await wait_until(lambda: len(engine.answers) == WINDOW + 50 + 1)
        answers = [engine.last(row) for row in much]
        assert all(isinstance(answer, replies.Queued) for answer in answers[:WINDOW])
        assert answers[WINDOW:50] == [None] * 30
        assert answers[50:] == [replies.Overloaded(50)] * 50
        assert isinstance(engine.last(little[0]), replies.Queued)
        assert engine.relay.held == 30


@RARE_POLLS
async def test_a_request_that_has_an_answer_does_not_count_against_the_window(engine: Engine) -> None:
    over = ToolOutcome.failure(CallState.CANCELLED, ErrorCode.CANCELLED, "stopped")
    async with at_work(engine.relay.run):
        await wait_until(lambda: engine.outbox.looks)  # its places were checked, too
        rows = engine.commits("a", 2 * WINDOW)
        for row in rows[:WINDOW]:
            await engine.ledger.cancel(decode_request(row.payload), over)
        engine.relay.offer(rows)
        await wait_until(lambda: len(engine.answers) == 2 * WINDOW)
    assert isinstance(engine.last(rows[-1]), replies.Queued)
