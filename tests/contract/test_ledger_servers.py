"""A call and the servers of Redis: what happens at another incarnation, or at a server that lost the latest writes."""

from typing import Any

import pytest

from plugins_contract.ledger import NEVER_OFFERED, Delivery, Offer, complete_again, replies, report, server_of
from plugins_contract.ledger.group import tidy_consumers
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import CallState
from tests.marks import promise
from tests.support.ledger import CANCELLED, EXPIRED, LOST, MINUTE_MS, UNKNOWN, Bench, above, answered

pytestmark = pytest.mark.every_redis

ELSEWHERE = "0123456789abcdef0123456789abcdef01234567"
"""The run id of an earlier server."""
RAN = replies.Run(above(0), starts=1)
ABANDONED = replies.Abandoned(above(0), starts=0)


async def from_elsewhere(bench: Bench, execution_class: str = "once", *, expires_in_ms: int = MINUTE_MS) -> Delivery:
    """A call that was enqueued at an earlier server, as consumer `a` reads it at this one."""
    delivery = await bench.read(execution_class, expires_in_ms=expires_in_ms)
    await bench.redis.hset(bench.keys.call(delivery.request.correlation_id), "runId", ELSEWHERE)
    return delivery


async def start(bench: Bench, delivery: Delivery, **fields: Any) -> replies.Started:
    usual: dict[str, Any] = {"max_starts": 3, "expired": EXPIRED, "lease_ms": 10_000, "known_ms": 0, "stops_ms": 0}
    return await bench.worker.start(delivery, **usual | fields)


def reported(bench: Bench, *workers: str) -> None:
    server = server_of(bench.thread, bench.keys)
    assert server, "every server under test tells its run id"
    assert all(report(bench.thread, bench.keys, worker, server) for worker in workers)


async def offered(
    bench: Bench, request: ToolCallRequested, incarnation: str, *, sent: bool = True, backlog_limit: int = 0
) -> replies.Enqueued | Exception:
    [answer] = await bench.engine.enqueue_each([Offer(request, incarnation, sent)], backlog_limit=backlog_limit)
    return answer


async def after(bench: Bench, *workers: str, ago_ms: int = 0) -> str:
    """Let this be the server after ELSEWHERE, where these workers last reported so long ago. Returns that one."""
    data, _, _ = (await bench.engine.incarnation()).partition("/")
    rows = {worker: f"{ELSEWHERE} 1 {await bench.now_ms() - ago_ms}" for worker in workers}
    await bench.redis.hset(bench.keys.workers, mapping=rows | {"*began": f"{ELSEWHERE} 1"})
    return f"{data}/{ELSEWHERE}"


@promise("a call that another incarnation of Redis may have had is not published as if it were new")
@pytest.mark.guard("enqueue", "offered_to ~= '*' and", "false and", offered_to="x/y")
@pytest.mark.parametrize("offered_to", ["", "?", "x/y", f"x/{ELSEWHERE}"])
async def test_a_call_that_was_offered_to_another_incarnation_and_is_not_known_is_not_queued(
    bench: Bench, offered_to: str
) -> None:
    await bench.engine.incarnation()
    request = await bench.request()
    assert await offered(bench, request, offered_to) == replies.Moved()
    assert (await bench.ledger(request), await bench.backlog()) == ({}, 0)


async def test_a_call_that_is_offered_to_this_incarnation_is_queued_and_known_at_the_next_one(bench: Bench) -> None:
    request = await bench.request()
    assert isinstance(await offered(bench, request, await bench.engine.incarnation()), replies.Queued)
    assert isinstance(await offered(bench, request, f"x/{ELSEWHERE}"), replies.AlreadyQueued)
    assert await bench.backlog() == 1


@promise("a call whose ENQUEUE was in flight when Redis was killed is run, and only once")
@pytest.mark.guard("enqueue", "'runId', enqueued_at", "'runId', server", execution_class="once")
@pytest.mark.guard("enqueue", "enqueued_at == server and", execution_class="once")
@pytest.mark.parametrize("execution_class", ["once", "repeatable"])
async def test_a_call_that_the_server_before_may_have_had_is_queued_and_a_once_call_waits_for_all_workers(
    bench: Bench, execution_class: str
) -> None:
    earlier, request = await after(bench, "a", "b"), await bench.request(execution_class)
    await bench.queued()
    await bench.deliver("a")
    # It is not refused for the length of the backlog either: that would say that it did not run.
    assert isinstance(await offered(bench, request, earlier, backlog_limit=1), replies.Queued)
    assert isinstance(await offered(bench, request, earlier), replies.AlreadyQueued)
    delivery = await bench.deliver("a")
    reported(bench, "a")
    if execution_class == "once":
        assert await start(bench, delivery) == replies.NotYet()
        reported(bench, "b")
    assert await start(bench, delivery) == RAN


@promise("a once call that an earlier server of Redis may have started is not started at the next one")
@pytest.mark.guard("enqueue", "its_data == data and", case="other data")
@pytest.mark.guard("workers", "before == earlier and", case="two servers ago")
@pytest.mark.guard("workers", "tonumber(ms) <= lost_ms", "true", case="an old backup")
@pytest.mark.guard("report", "known_for(workers, here) --", "--", case="an old backup")
@pytest.mark.guard("enqueue", "sent == 1 and", case="never sent")
@pytest.mark.guard("enqueue", "== 'lost'", "== ''", case="a worker is gone")
@pytest.mark.parametrize("case", ["other data", "two servers ago", "an old backup", "never sent", "a worker is gone"])
async def test_a_call_is_not_queued_where_the_reports_of_all_workers_would_not_say_that_it_did_not_run(
    bench: Bench, case: str
) -> None:
    earlier = await after(bench, "a", ago_ms=30_000 if case == "an old backup" else 0)
    if case == "a worker is gone":
        await bench.command("XGROUP", "CREATECONSUMER", bench.keys.requests, "plugins-workers", "killed")
        assert await tidy_consumers(bench.redis, bench.keys, "a", silent_ms=0) == ["killed"]
    reported(bench, "a")
    data, server = earlier.split("/")
    offer = {"other data": f"{data[::-1]}/{server}", "two servers ago": f"{data}/{server[::-1]}"}.get(case, earlier)
    request = await bench.request()
    assert await offered(bench, request, offer, sent=case != "never sent") == replies.Moved()
    assert (await bench.ledger(request), await bench.backlog()) == ({}, 0)


async def test_an_incarnation_ends_with_a_flush(bench: Bench) -> None:
    before = await bench.engine.incarnation()
    assert await bench.engine.incarnation() == before
    await bench.flush()
    after = await bench.engine.incarnation()
    assert after != before
    assert after.endswith("/" + server_of(bench.thread, bench.keys))


@promise("a once call that an earlier server of Redis may have started is not started at the next one")
@pytest.mark.guard("workers", "if not reported[name]", "if false")
async def test_a_once_call_of_an_earlier_server_waits_until_every_worker_has_reported(bench: Bench) -> None:
    delivery = await from_elsewhere(bench)
    assert await start(bench, delivery) == replies.NotYet()
    await bench.command("XGROUP", "CREATECONSUMER", bench.keys.requests, "plugins-workers", "b")
    reported(bench, "a")
    assert await start(bench, delivery) == replies.NotYet(), "worker b is in the group and has not reported"
    reported(bench, "b")
    assert await start(bench, delivery) == RAN


@pytest.mark.guard("workers", "if report_of(rows[i + 1]) ~= here", "if false")
async def test_a_worker_that_reported_before_it_ever_read_must_report_at_the_next_server_too(bench: Bench) -> None:
    delivery = await from_elsewhere(bench)
    reported(bench, "a")
    await bench.redis.hset(bench.keys.workers, "b", f"{ELSEWHERE} 1 1")
    assert await start(bench, delivery) == replies.NotYet()


@pytest.mark.guard("start", "known_for(workers, here) > lease_ms", "false")
async def test_a_once_call_of_an_earlier_server_is_unknown_when_a_worker_does_not_report_within_a_lease(
    bench: Bench,
) -> None:
    delivery = await from_elsewhere(bench)
    reported(bench, "b")
    assert await start(bench, delivery) == replies.NotYet()
    await bench.a_moment()
    assert await start(bench, delivery, lease_ms=1) == ABANDONED


@pytest.mark.guard("start", " or now_ms() >= deadline)", ")")
async def test_a_once_call_that_may_have_run_does_not_expire_as_one_that_did_not_run(bench: Bench) -> None:
    delivery = await from_elsewhere(bench, expires_in_ms=0)
    assert await start(bench, delivery) == ABANDONED


@pytest.mark.parametrize(("execution_class", "field"), [("repeatable", ELSEWHERE), ("once", "")])
async def test_a_call_that_may_run_twice_or_whose_server_is_not_known_is_started_at_once(
    bench: Bench, execution_class: str, field: str
) -> None:
    delivery = await from_elsewhere(bench, execution_class)
    await bench.redis.hset(bench.keys.call(delivery.request.correlation_id), "runId", field)
    assert await start(bench, delivery) == RAN


@pytest.mark.guard("start", "reported_at ~= '' and", "false and")
@pytest.mark.guard("start", "reported_at ~= here then", "reported_at ~= here and known[6] ~= token then")
async def test_a_worker_starts_no_once_call_where_it_has_not_reported(bench: Bench) -> None:
    """Nor is it said again that it has started one: an old master may still answer, which does not know it."""
    await bench.engine.enqueue(await bench.request())
    delivery, here = await bench.deliver("a"), server_of(bench.thread, bench.keys)
    for _ in range(2):
        assert await start(bench, delivery, reported_at=ELSEWHERE) == replies.NotYet()
        assert await start(bench, delivery, reported_at=here) == RAN


@pytest.mark.guard("start", "not since or now_ms() - since < known_ms", "false")
async def test_a_new_worker_starts_no_once_call_of_an_earlier_server(bench: Bench) -> None:
    delivery = await from_elsewhere(bench)
    reported(bench, "a")
    assert await start(bench, delivery, known_ms=MINUTE_MS) == replies.NotYet()
    await bench.redis.hset(bench.keys.workers, "a", f"{server_of(bench.thread, bench.keys)} 1 1")
    assert await start(bench, delivery, known_ms=MINUTE_MS) == RAN


@promise("a stop that Redis lost is written again")
@pytest.mark.guard("start", "or known_for(workers, here) < stops_ms")
async def test_a_once_call_of_an_earlier_server_waits_until_engines_had_the_time_to_write_their_stops(
    bench: Bench,
) -> None:
    delivery = await from_elsewhere(bench)
    reported(bench, "a")
    assert await start(bench, delivery, stops_ms=MINUTE_MS) == replies.NotYet()
    began = f"{server_of(bench.thread, bench.keys)} {await bench.now_ms() - MINUTE_MS}"
    await bench.redis.hset(bench.keys.workers, "*began", began)
    assert await start(bench, delivery, stops_ms=MINUTE_MS) == RAN


@pytest.mark.guard("start", "begin_lease()\n  return {'WAIT'}", "return {'WAIT'}")
async def test_while_a_call_waits_its_entry_is_not_taken_over(bench: Bench) -> None:
    delivery = await from_elsewhere(bench)
    await bench.age(delivery)
    assert await start(bench, delivery) == replies.NotYet()
    assert await bench.sweep("b") == []


@pytest.mark.guard("report", "server == here", "true")
async def test_a_report_counts_at_the_server_to_which_it_was_written_and_keeps_its_first_time(bench: Bench) -> None:
    assert not report(bench.thread, bench.keys, "a", ELSEWHERE)
    assert await bench.redis.hgetall(bench.keys.workers) == {}
    reported(bench, "a")
    first = (await bench.redis.hget(bench.keys.workers, "a")).split()
    await bench.a_moment()
    reported(bench, "a")
    again = (await bench.redis.hget(bench.keys.workers, "a")).split()
    assert (again[:2], again[2] > first[2]) == (first[:2], True)


@pytest.mark.guard("workers", "if server == here or before", "if false", server="")
@pytest.mark.guard("workers", "redis.call('HSET', workers, '*unreported', here .. ' ' .. now_ms())", server="")
@pytest.mark.guard("tidy", "forget_worker(workers, name, here)", server="")
@pytest.mark.parametrize("server", [ELSEWHERE, ""])
async def test_once_calls_are_unknown_after_a_worker_is_removed_that_had_not_reported(
    bench: Bench, server: str
) -> None:
    delivery = await from_elsewhere(bench)
    reported(bench, "a")
    await bench.command("XGROUP", "CREATECONSUMER", bench.keys.requests, "plugins-workers", "killed")
    if server:
        await bench.redis.hset(bench.keys.workers, "killed", f"{server} 1 1")
    assert await tidy_consumers(bench.redis, bench.keys, "a", silent_ms=0) == ["killed"]
    assert not await bench.redis.hexists(bench.keys.workers, "killed")
    assert await start(bench, delivery) == ABANDONED


@pytest.mark.guard("workers", "here or before", "here")
async def test_once_calls_are_unknown_at_the_server_after_that_one_too(bench: Bench) -> None:
    before, after = await from_elsewhere(bench), await from_elsewhere(bench)
    reported(bench, "a")
    published_ms = int((await bench.ledger(before.request))["publishedAt"])
    await bench.redis.hset(bench.keys.workers, "*unreported", f"{ELSEWHERE[::-1]} {published_ms + 1}")
    await bench.redis.hset(bench.keys.call(after.request.correlation_id), "publishedAt", published_ms + 1)
    assert (await start(bench, before), await start(bench, after)) == (ABANDONED, RAN)


@pytest.mark.guard("retire", "forget_worker(workers, consumer, run_id())")
@pytest.mark.guard("tidy", "forget_worker(workers, rows[i], here)")
async def test_a_worker_that_leaves_or_dies_after_its_report_holds_nothing_up(bench: Bench) -> None:
    delivery = await from_elsewhere(bench)
    await bench.redis.hset(bench.keys.workers, "never-read", f"{ELSEWHERE} 1 {await bench.now_ms()}")
    for worker in ("left", "killed"):
        await bench.command("XGROUP", "CREATECONSUMER", bench.keys.requests, "plugins-workers", worker)
    reported(bench, "a", "left", "killed", "never-read")
    await bench.worker.retire("left", lease_ms=1)
    assert not await bench.redis.hexists(bench.keys.workers, "left")
    await tidy_consumers(bench.redis, bench.keys, "a", silent_ms=0)
    await bench.redis.hset(bench.keys.workers, "b", f"{server_of(bench.thread, bench.keys)} 1 {2**45}")
    assert set(await bench.redis.hkeys(bench.keys.workers)) == {b"a", b"b", b"*began", b"*before"}
    assert await start(bench, delivery) == RAN


@pytest.mark.guard("cancel", "unseen = may_have_started", "unseen = false and may_have_started", all_reported=False)
@pytest.mark.parametrize("all_reported", [False, True])
async def test_a_stop_says_that_a_call_did_not_run_only_when_no_earlier_server_may_have_started_it(
    bench: Bench, all_reported: bool
) -> None:
    delivery = await from_elsewhere(bench)
    if all_reported:
        reported(bench, "a")
    answer = await bench.cancel(delivery.request, CANCELLED, unseen=UNKNOWN)
    assert answer == (replies.CancelledAtOnce() if all_reported else replies.CancelledUnseen())
    state = CallState.CANCELLED if all_reported else CallState.UNKNOWN
    assert (await bench.ledger(delivery.request))["state"] == state


@pytest.mark.guard("cancel", "offered_to ~= incarnation(incarnation_key)", "true", offered_to="here", ran=False)
@pytest.mark.guard("cancel", "offered_to ~= '' and", offered_to="", ran=False)
@pytest.mark.parametrize(("offered_to", "ran"), [(NEVER_OFFERED, False), ("here", False), ("elsewhere/1", True)])
async def test_a_stop_of_a_call_that_is_not_known_here_says_where_it_was_offered(
    bench: Bench, offered_to: str, ran: bool
) -> None:
    here = await bench.engine.incarnation()
    request = await bench.request()
    answer = await bench.engine.cancel(
        request, CANCELLED, unseen=LOST, offered_to=here if offered_to == "here" else offered_to
    )
    assert answer == (replies.CancelledUnseen() if ran else replies.CancelledAtOnce())
    assert (await bench.ledger(request))["state"] == (LOST if ran else CANCELLED).state


@promise("a once call that an earlier server of Redis may have started is not started at the next one")
@pytest.mark.parametrize("size", [1, 20_000])
async def test_a_recent_end_is_written_again_at_a_server_that_lost_it(bench: Bench, size: int) -> None:
    await bench.engine.enqueue(await bench.request())
    worker, delivery = bench.worker, await bench.deliver("a")
    answer = await worker.start(delivery, max_starts=3, expired=EXPIRED)
    assert isinstance(answer, replies.Run)
    request, published = delivery.request, bench.keys.call(delivery.request.correlation_id)
    dump = await bench.redis.dump(published)
    await worker.complete(delivery, answer.fence, answered("x" * size))
    await bench.redis.restore(published, 0, dump, replace=True)
    await bench.redis.hset(published, mapping={"state": "published", "starts": 0})
    await bench.redis.delete(request.response_channel)

    assert complete_again(bench.thread, worker.recent) == []
    # A large result is not kept, but that the call has ended is.
    assert (await bench.ledger(request))["state"] == (CallState.SUCCEEDED if size == 1 else CallState.UNKNOWN)
    assert len(await bench.channel(request)) == 1
    assert complete_again(bench.thread, worker.recent) == [], "it may be written twice"
