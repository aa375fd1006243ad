"""The relay: what is committed reaches its stream, whatever Redis does meanwhile."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from callstream_runtime.connections import command_client, thread_client
from callstream_runtime.encryption_keys import cipher_of
from callstream_runtime.redis_errors import RedisUnavailable
from dialog_engine.calls.subscriptions import Subscriptions, Unpublishable
from dialog_engine.chat.outbox import DEFAULT_ROUTES, TOOL_CALL_FINISHED, TURN_FINISHED, OutboxRow
from dialog_engine.errors import ConfigurationError, StorageUnavailableError
from dialog_engine.observe.metrics import Metrics
from dialog_engine.observe.observed import ObservedCalls
from dialog_engine.relay.publish_queue import RelayTimes
from dialog_engine.relay.relay import BATCH, Relay
from dialog_engine.relay.routes import check_routes
from plugins_contract.encryption import CLEAR, open_request
from plugins_contract.errors import ErrorCode
from plugins_contract.keys import Keys
from plugins_contract.ledger import NEVER_OFFERED, EngineLedger, replies, report, server_of
from plugins_contract.messages import EVENT_TYPE, decode_request
from plugins_contract.outcomes import CallState, ToolOutcome
from tests.integration.engines import MINUTE_MS, MemoryOutbox, at_work, request
from tests.marks import promise
from tests.support.servers import LocalServer
from tests.support.waiting import wait_until

SOON = RelayTimes(look_back=0.2)
OFTEN = replace(SOON, poll=0.05)
"""The relay polls so often that a test need not wait for it."""
FREQUENT_POLLS = pytest.mark.parametrize("bench", [OFTEN], indirect=True)
RARE_POLLS = pytest.mark.parametrize("bench", [replace(SOON, poll=60.0)], indirect=True)
"""The relay finds nothing by polling within a test."""


class Noted(Subscriptions):
    """All calls are waited for, or none; the reports of the relay on each are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, list[replies.Enqueued | Unpublishable]] = {}
        self.waited_for = True

    def enqueued(self, correlation_id: str, answer: replies.Enqueued | Unpublishable) -> bool:
        self.answers.setdefault(correlation_id, []).append(answer)
        return self.waited_for


class Bench:
    """A relay, its outbox, and what it reported."""

    def __init__(self, url: str, times: RelayTimes = SOON, *, backlog_limit: int = 0, window: int = 0) -> None:
        self.keys = Keys()
        self.redis: Any = command_client(url)
        self.outbox = MemoryOutbox()
        self.calls = Noted()
        self.metrics = Metrics()
        self.answers = self.calls.answers
        self.ledger = EngineLedger(self.redis, self.keys, cipher=CLEAR)
        self._times, self._backlog_limit, self._window = times, backlog_limit, window
        self.relay = self.born_again()

    def born_again(self) -> Relay:
        """Another life on the same outbox."""
        return Relay(
            self.outbox,
            self.redis,
            self.ledger,
            self.keys,
            DEFAULT_ROUTES,
            self.calls,
            backlog_limit=self._backlog_limit,
            subject_window=self._window,
            times=self._times,
            observer=ObservedCalls(self.metrics),
            cipher=CLEAR,
        )

    async def aclose(self) -> None:
        await self.redis.aclose()

    async def deadline(self) -> int:
        return int((await self.redis.time())[0]) * 1000 + MINUTE_MS

    async def backlog(self) -> int:
        return await self.redis.xlen(self.keys.requests)

    def empty(self) -> bool:
        return not self.outbox.left


@pytest.fixture
async def bench(redis_url: str, request: pytest.FixtureRequest) -> AsyncGenerator[Bench]:
    """The parameter is its times."""
    async with aclosing(Bench(redis_url, getattr(request, "param", SOON))) as bench:
        yield bench


@promise("the relay wakes on a commit")
@pytest.mark.every_redis
@RARE_POLLS
async def test_a_commit_wakes_the_relay_without_any_polling(bench: Bench) -> None:
    async with at_work(bench.relay.run):
        await wait_until(lambda: bench.outbox.looks == 1)
        await asyncio.sleep(0)
        row = bench.outbox.call(request(await bench.deadline()))
        bench.relay.offer([row])
        await wait_until(lambda: row.event_id in bench.answers)

        assert bench.answers[row.event_id] == [replies.Queued(entry=_entry(bench, row.event_id), backlog=0)]
        await wait_until(bench.empty)
        assert await bench.backlog() == 1


def _entry(bench: Bench, correlation_id: str) -> str:
    [answer] = bench.answers[correlation_id]
    assert isinstance(answer, replies.Queued)
    return answer.entry


@RARE_POLLS
async def test_rows_of_an_earlier_life_are_published_at_once(bench: Bench) -> None:
    deadline = await bench.deadline()
    for _ in range(5 * BATCH + 1):
        bench.outbox.call(request(deadline))

    async with at_work(bench.relay.run):
        await wait_until(bench.empty, 30, what="one look per batch, with no pause between them")
    assert await bench.backlog() == 5 * BATCH + 1


@promise("a row of the outbox that was not offered is found, whatever its number")
@FREQUENT_POLLS
async def test_a_row_that_becomes_visible_late_and_is_not_offered_is_found(bench: Bench) -> None:
    """As on PostgreSQL, where a lower number may be committed later, and where the answer to a commit may be lost."""
    deadline = await bench.deadline()
    late, early = bench.outbox.call(request(deadline)), bench.outbox.call(request(deadline))
    bench.outbox.remove(late.event_id)
    async with at_work(bench.relay.run):
        await wait_until(lambda: early.event_id in bench.answers)
        bench.outbox.put(late)
        await wait_until(lambda: late.event_id in bench.answers)
    assert await bench.backlog() == 2


@pytest.mark.parametrize("bench", [replace(SOON, mark=1.0)], indirect=True)
async def test_the_rows_of_answered_calls_are_not_marked_and_their_facts_are_deleted_in_one_commit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits: list[Sequence[OutboxRow]] = []
    published = bench.outbox.published

    async def counted(rows: Sequence[OutboxRow]) -> None:
        commits.append(rows)
        await published(rows)

    monkeypatch.setattr(bench.outbox, "published", counted)
    deadline = await bench.deadline()
    calls = [bench.outbox.call(request(deadline)) for _ in range(20)]
    async with at_work(bench.relay.run):
        bench.relay.offer(calls)
        await wait_until(lambda: len(bench.answers) == len(calls))
        for call in calls:
            bench.relay.offer([bench.outbox.answer(call.event_id)])
        await wait_until(bench.empty)

    [marked] = commits
    assert [row.event_type for row in marked] == [TOOL_CALL_FINISHED] * len(calls)


@pytest.mark.parametrize("bench", [replace(SOON, facts=0.5)], indirect=True)
async def test_facts_are_published_together_to_the_streams_of_their_routes(bench: Bench) -> None:
    turn = bench.outbox.add(TURN_FINISHED, "turn-1", b'{"a": 1}')
    async with at_work(bench.relay.run):
        await wait_until(lambda: bench.outbox.looks == 1)
        for row in (turn, *(bench.outbox.add(TOOL_CALL_FINISHED, f"call-{number}", b"{}") for number in range(5))):
            bench.relay.offer([row])
            await asyncio.sleep(0)
            assert await bench.redis.xlen("events.analytics") == 0
        await wait_until(bench.empty)
    assert await bench.redis.xlen("events.analytics") == 5
    [(_, fields)] = await bench.redis.xrange("events.ltm")
    assert fields == {
        b"eventType": turn.event_type.encode(), b"id": turn.event_id.encode(), b"event": turn.payload,
    }  # fmt: skip


@promise("the relay survives Redis being away")
async def test_without_redis_rows_wait_and_are_published_when_it_is_back(own_redis: LocalServer) -> None:
    own_redis.kill()
    async with aclosing(Bench(own_redis.url)) as bench:
        first = bench.outbox.call(request(2**45))
        async with at_work(bench.relay.run):
            bench.relay.offer([first])
            # Each row that is committed meanwhile makes no attempt of its own: one in hand finds out.
            later = [bench.outbox.call(request(2**45)) for _ in range(300)]
            await wait_until(lambda: bench.outbox.looks >= 2)
            bench.relay.offer(later)
            assert bench.outbox.marked == []
            own_redis.start()
            await wait_until(bench.empty)
            assert await bench.backlog() == 301

            own_redis.kill()
            with pytest.raises(RedisUnavailable):  # so that this connection is known to be broken
                await bench.redis.execute_command("PING")
            last = bench.outbox.call(request(2**45))
            bench.relay.offer([last])
            looks = bench.outbox.looks
            await wait_until(lambda: bench.outbox.looks > looks + 1)
            own_redis.start()
            await wait_until(bench.empty)
            assert await bench.backlog() == 302


@promise("a call that another incarnation of Redis may have had is not published as if it were new")
@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("offered_to", [None, "", "here", "x/y", "x/"])
async def test_a_call_is_published_unless_it_may_have_been_offered_to_another_incarnation_of_redis(
    bench: Bench, offered_to: str | None, sent: bool
) -> None:
    here = await bench.ledger.incarnation()
    deadline = await bench.deadline()
    async with at_work(bench.relay.run):
        await wait_until(lambda: bench.outbox.looks)
        row = bench.outbox.call(request(deadline))
        row = replace(row, offered_to=here if offered_to == "here" else offered_to, sent=sent)
        bench.outbox.put(row)
        bench.relay.offer([row])
        await wait_until(bench.empty)
    published = offered_to in ("", "here") or (not sent and offered_to is not None)
    # One that is not counts as published, so that the audit ends it: nobody knows whether it ran.
    [answer] = bench.answers[row.event_id]
    assert isinstance(answer, replies.Queued if published else replies.Moved)
    assert await bench.backlog() == published
    if published:
        assert bench.outbox.sql("SELECT offered_to FROM outbox") == [(here,)]


async def test_a_row_that_another_engine_has_adopted_is_not_stamped_and_not_published(bench: Bench) -> None:
    row, other = [bench.outbox.call(request(2**45)) for _ in range(2)]
    bench.outbox.remove(row.event_id)
    async with at_work(bench.relay.run):
        bench.relay.offer([row, other])
        await wait_until(lambda: other.event_id in bench.answers)
    assert await bench.backlog() == 1


async def test_the_calls_that_are_sent_at_once_are_committed_with_the_incarnation_of_redis(redis_url: str) -> None:
    async with aclosing(Bench(redis_url, window=2)) as bench, at_work(bench.relay.run):
        here = await bench.ledger.incarnation()
        calls = [request(await bench.deadline()) for _ in range(3)]
        await wait_until(lambda: [*bench.relay.offers_to(calls)] == [here, here, NEVER_OFFERED])
        bench.relay.offer([bench.outbox.call(call) for call in calls])
        assert [*bench.relay.offers_to(calls)] == [NEVER_OFFERED] * 3


async def test_a_call_whose_enqueue_was_not_answered_is_not_published_by_a_redis_that_forgot_it(
    own_redis: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aclosing(Bench(own_redis.url)) as bench:
        enqueue = bench.ledger.enqueue_each

        async def unanswered(requests: Sequence[Any], **options: Any) -> list[Any]:
            monkeypatch.setattr(bench.ledger, "enqueue_each", enqueue)
            await enqueue(requests, **options)
            await bench.redis.flushall()
            return [RedisUnavailable("the reply was lost")] * len(requests)

        monkeypatch.setattr(bench.ledger, "enqueue_each", unanswered)
        async with at_work(bench.relay.run):
            row = bench.outbox.call(request(await bench.deadline()))
            bench.relay.offer([row])
            await wait_until(bench.empty)
        assert bench.answers[row.event_id] == [replies.Moved()]
        assert await bench.backlog() == 0


@promise("a call whose ENQUEUE was in flight when Redis was killed is run, and only once")
async def test_a_call_whose_enqueue_was_in_flight_when_redis_was_killed_is_queued_when_it_is_back(
    own_redis: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aclosing(Bench(own_redis.url)) as bench:
        enqueue = bench.ledger.enqueue_each

        async def in_flight(offers: Sequence[Any], **options: Any) -> list[Any]:
            monkeypatch.setattr(bench.ledger, "enqueue_each", enqueue)
            own_redis.kill()
            answers = await enqueue(offers, **options)
            own_redis.start()
            return answers

        monkeypatch.setattr(bench.ledger, "enqueue_each", in_flight)
        with thread_client(own_redis.url) as worker:
            assert report(worker, bench.keys, "a", server_of(worker, bench.keys))
        async with at_work(bench.relay.run):
            row = bench.outbox.call(request(await bench.deadline()))
            bench.relay.offer([row])
            await wait_until(bench.empty)
        assert [type(answer) for answer in bench.answers[row.event_id]] == [replies.Queued]
        earlier = bench.outbox.sql("SELECT offered_to FROM outbox")[0][0].partition("/")[2]
        enqueued_at = await bench.redis.hget(bench.keys.call(row.event_id), "runId")
        assert enqueued_at.decode() == earlier != (await bench.ledger.incarnation()).partition("/")[2]


async def test_a_call_that_was_adopted_and_comes_back_may_have_been_sent_meanwhile(bench: Bench) -> None:
    row = bench.outbox.call(request(await bench.deadline()))
    bench.outbox.put(row := replace(row, offered_to=await bench.ledger.incarnation(), sent=False))
    bench.relay.offer([row])
    bench.relay.offer([replace(row, sent=True)])
    await bench.redis.flushall()
    async with at_work(bench.relay.run):
        await wait_until(bench.empty)
    assert bench.answers[row.event_id] == [replies.Moved()]


async def test_without_redis_attempts_slow_down(own_redis: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    own_redis.kill()
    pauses: list[float] = []
    enough = asyncio.Event()
    sleep = asyncio.sleep

    async def noted(seconds: float, result: object = None) -> None:
        pauses.append(seconds)
        if len(pauses) == 7:
            enough.set()
        await sleep(0)

    async with aclosing(Bench(own_redis.url)) as bench:
        bench.outbox.call(request(2**45))
        monkeypatch.setattr("dialog_engine.relay.relay.asyncio.sleep", noted)
        async with at_work(bench.relay.run):
            await enough.wait()
    assert pauses[:7] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


@promise("one bad outbox row blocks no other")
async def test_a_row_that_cannot_be_read_is_answered_and_postponed_and_holds_up_no_other(bench: Bench) -> None:
    bad = bench.outbox.add(EVENT_TYPE, "bad", b"{]")
    old = bench.outbox.add(EVENT_TYPE, "old", b'{"eventVersion": 0}')
    good = [bench.outbox.call(request(await bench.deadline())) for _ in range(3)]
    bench.calls.waited_for = False
    async with at_work(bench.relay.run):
        bench.relay.offer([bad, old, *good])
        await wait_until(lambda: len(bench.outbox.left) == 2)

        [rejected] = bench.answers["bad"]
        assert isinstance(rejected, Unpublishable)
        assert "UnsupportedEventError" in rejected.reason
        assert await bench.backlog() == 3
        # That was not an answer, so it is tried again, ever more rarely.
        await wait_until(lambda: len([each for each in bench.outbox.postponed if each[0] == bad.seq]) == 2)
    assert [delay for seq, _, delay in bench.outbox.postponed if seq == bad.seq] == [1000, 2000]


@FREQUENT_POLLS
async def test_a_key_of_the_wrong_type_holds_up_its_own_rows_only(bench: Bench) -> None:
    await bench.redis.set("events.ltm", "somebody else's")
    stuck = bench.outbox.add(TURN_FINISHED, "turn-1", b"{}")
    free = bench.outbox.add(TOOL_CALL_FINISHED, "call-1", b"{}")
    async with at_work(bench.relay.run):
        bench.relay.offer([stuck, free])
        await wait_until(lambda: bench.outbox.left == [stuck.seq])
        await wait_until(lambda: bench.outbox.postponed)
        assert "WRONGTYPE" in bench.outbox.postponed[0][1]

        await bench.redis.delete("events.ltm")
        await wait_until(bench.empty)
    assert await bench.redis.xlen("events.ltm") == 1
    assert "turn-1" not in bench.answers


async def test_a_request_stream_of_the_wrong_type_is_reported_to_the_call_at_once(bench: Bench) -> None:
    await bench.redis.set(bench.keys.requests, "somebody else's")
    row = bench.outbox.call(request(await bench.deadline()))
    async with at_work(bench.relay.run):
        bench.relay.offer([row])
        await wait_until(lambda: row.event_id in bench.answers)
        [answer] = bench.answers[row.event_id]
        assert isinstance(answer, Unpublishable)
        assert "WRONGTYPE" in answer.reason
    await bench.redis.delete(bench.keys.requests)


@promise("one reply in a hundred of Redis is lost: no duplicate entry, no lost delivery")
async def test_a_lost_mark_repeats_the_publication_and_enqueues_nothing_twice(bench: Bench) -> None:
    row = bench.outbox.call(request(await bench.deadline()))
    async with at_work(bench.relay.run):
        bench.relay.offer([row])
        await wait_until(lambda: bench.empty() and not bench.relay.unmarked())
    # The process was killed between the publication and its mark.
    bench.outbox.sql("UPDATE outbox SET published_at = NULL")

    async with at_work(bench.relay.run):
        await wait_until(bench.empty)
    assert [type(answer) for answer in bench.answers[row.event_id]] == [replies.Queued, replies.AlreadyQueued]
    assert await bench.backlog() == 1


@FREQUENT_POLLS
async def test_facts_are_published_once_even_while_the_disk_is_full(bench: Bench) -> None:
    bench.outbox.store.refuse["published"] = StorageUnavailableError("full")
    bench.outbox.add(TURN_FINISHED, "turn-1", b"{}")
    async with at_work(bench.relay.run):
        looks = await wait_until(lambda: bench.outbox.looks)
        await wait_until(lambda: bench.outbox.looks >= looks + 2)
        assert await bench.redis.xlen("events.ltm") == 1
        del bench.outbox.store.refuse["published"]
        await wait_until(bench.empty)
    assert await bench.redis.xlen("events.ltm") == 1


async def test_rows_that_were_in_hand_when_the_relay_failed_are_found_in_the_table(bench: Bench) -> None:
    async def broken(*_: object) -> None:
        raise LookupError("a bug")

    row = bench.outbox.add(EVENT_TYPE, "bad", b"{]")
    postpone, bench.outbox.postpone = bench.outbox.postpone, broken  # type: ignore[method-assign]
    bench.relay.offer([row])
    with pytest.raises(ExceptionGroup):
        await bench.relay.run()
    bench.outbox.postpone = postpone  # type: ignore[method-assign]

    async with at_work(bench.relay.run):
        await wait_until(lambda: bench.outbox.postponed)


@promise("past the backlog limit calls are refused with OVERLOADED")
async def test_a_full_backlog_refuses_and_writes_nothing(redis_url: str) -> None:
    async with aclosing(Bench(redis_url, backlog_limit=2)) as bench:
        async with at_work(bench.relay.run):
            for number in range(3):
                row = bench.outbox.call(request(await bench.deadline()))
                bench.relay.offer([row])
                await wait_until(lambda row=row: row.event_id in bench.answers)
                overloaded = isinstance(bench.answers[row.event_id][0], replies.Overloaded)
                assert overloaded == (number == 2)
        assert await bench.backlog() == 2
        assert bench.metrics.registry.get_sample_value("dialog_calls_refused_total", {"reason": "overloaded"}) == 1


@promise("a call that was refused never runs, and is not taken for lost")
async def test_a_refusal_that_no_turn_receives_is_retried(redis_url: str) -> None:
    async with aclosing(Bench(redis_url, OFTEN, backlog_limit=1)) as bench:
        first, second = [bench.outbox.call(request(await bench.deadline())) for _ in range(2)]
        bench.calls.waited_for = False
        async with at_work(bench.relay.run):
            bench.relay.offer([first])
            await wait_until(lambda: bench.outbox.left == [second.seq])
            await wait_until(lambda: second.event_id in bench.answers)
            assert bench.outbox.left == [second.seq], "nothing says that it was published, so it is not taken for lost"

            await bench.redis.delete(bench.keys.requests)
            await wait_until(bench.empty)
        assert isinstance(bench.answers[second.event_id][-1], replies.Queued)
        assert await bench.backlog() == 1


@promise("a call that was refused never runs, and is not taken for lost")
@pytest.mark.parametrize("window", [0, 1], ids=["refused by the ledger", "refused at the door"])
async def test_a_call_that_was_answered_as_refused_never_runs(redis_url: str, window: int) -> None:
    async with aclosing(Bench(redis_url, OFTEN, backlog_limit=1, window=window)) as bench:
        deadline = await bench.deadline()
        async with at_work(bench.relay.run):
            bench.relay.offer([bench.outbox.call(request(deadline))])
            await wait_until(bench.empty)
            refused = bench.outbox.call(request(deadline))
            bench.relay.offer([refused])
            await wait_until(lambda: refused.event_id in bench.answers)
            assert isinstance(bench.answers[refused.event_id][0], replies.Overloaded)

            # There is room now, and the time to look at what was put off has come; its answer is not committed yet.
            await bench.redis.delete(bench.keys.requests)
            looks = bench.outbox.looks
            await wait_until(lambda: bench.outbox.looks >= looks + 3)
            assert await bench.backlog() == 0
            assert bench.outbox.left == [refused.seq]

            bench.relay.offer([bench.outbox.answer(refused.event_id)])
            await wait_until(bench.empty)
        assert await bench.backlog() == 0


async def test_the_answer_of_the_ledger_is_delivered(bench: Bench) -> None:
    deadline = await bench.deadline()
    stopped, taken = request(deadline), request(deadline)
    outcome = ToolOutcome.failure(CallState.CANCELLED, ErrorCode.CANCELLED, "stopped")
    await bench.ledger.cancel(stopped, outcome)
    await bench.ledger.enqueue(msgspec.structs.replace(taken, arguments={}))
    async with at_work(bench.relay.run):
        bench.relay.offer([bench.outbox.call(stopped), bench.outbox.call(taken)])
        await wait_until(lambda: len(bench.answers) == 2)

    assert bench.answers[stopped.correlation_id] == [replies.AlreadyFinished(outcome)]
    assert bench.answers[taken.correlation_id] == [replies.Conflict()]
    assert await bench.backlog() == 1


@promise("an event type without a route fails at the start")
def test_every_type_needs_a_route_and_what_is_missing_is_named() -> None:
    check_routes(DEFAULT_ROUTES.keys(), DEFAULT_ROUTES)
    with pytest.raises(ConfigurationError, match=r"OUTBOX_ROUTES has no stream for OldFact, Older"):
        check_routes([*DEFAULT_ROUTES, "Older", "OldFact"], DEFAULT_ROUTES)


def test_requests_go_where_workers_read_them() -> None:
    with pytest.raises(ConfigurationError, match=r"events\.plugins only"):
        check_routes(DEFAULT_ROUTES, DEFAULT_ROUTES | {EVENT_TYPE: "events.elsewhere"})


async def test_a_clear_request_that_waited_while_everything_was_encrypted_is_published_encrypted(bench: Bench) -> None:
    cipher = cipher_of(["n" * 32])
    cipher.strict = True
    bench.relay = Relay(bench.outbox, bench.redis, bench.ledger, bench.keys, DEFAULT_ROUTES, bench.calls, cipher=cipher)
    new, known = request(await bench.deadline()), request(await bench.deadline())
    await bench.ledger.enqueue(known)
    for each in (new, known):
        bench.outbox.call(each)
    async with at_work(bench.relay.run):
        await wait_until(bench.empty)
    entries = [fields[b"event"] for _, fields in await bench.redis.xrange(bench.keys.requests)]
    assert [bool(decode_request(event).sealed) for event in entries] == [False, True]
    assert open_request(decode_request(entries[1]), cipher).arguments == new.arguments
    # One that Redis has already, as it was, is not a conflict.
    assert bench.answers[known.correlation_id] == [replies.AlreadyQueued("")]
