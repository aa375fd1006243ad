"""What Redis lost (a flush, a failover, a deleted entry): AUDIT finds it, LOSE ends it, RENEW puts it back."""

from typing import Any

import pytest

from plugins_contract.keys import GROUP
from plugins_contract.ledger import AUDIT_BYTES, Delivery, encode_reply, replies
from plugins_contract.ledger.replies import Loss
from plugins_contract.ledger.scripts import Scripts
from plugins_contract.outcomes import CallFinished, CallProgress
from tests.marks import promise
from tests.support.ledger import CANCELLED, DONE, LEASE_MS, LOST, UNKNOWN, Bench, above, answered
from tests.support.waiting import wait_until

pytestmark = pytest.mark.every_redis

AT_ONCE = -1
"""As silence in milliseconds: any worker counts as silent."""


async def forgotten_start(bench: Bench) -> tuple[Delivery, int]:
    """A call that runs; the ledger is as it was before: a failover to a replica that had not heard of the START."""
    delivery = await bench.read()
    call = bench.keys.call(delivery.request.correlation_id)
    before = await bench.command("DUMP", call)
    fence = await bench.run(delivery)
    await bench.command("RESTORE", call, 60_000, before, "REPLACE")
    return delivery, fence


# --- RENEW puts back what was lost of a running call ---


@promise("what Redis lost of a running call is put back by its worker")
@pytest.mark.guard("renew", "  keep_while_open(call, deadline)")
@pytest.mark.guard("renew", "if state ~= 'started' or", "if state and")
async def test_the_worker_of_a_running_call_puts_back_its_lost_ledger_which_reports_and_can_be_stopped(
    bench: Bench,
) -> None:
    delivery, fence = await bench.running("once")
    await bench.flush()

    assert bench.renew(delivery, fence) == replies.Renewed(cancel_requested=False)
    assert await bench.worker.progress(delivery.request, fence, CallProgress(1))
    ledger = await bench.ledger(delivery.request)
    assert (ledger["state"], ledger["class"], ledger["fence"], ledger["starts"]) == ("started", "once", str(fence), "1")
    assert await bench.command("TTL", bench.keys.call(delivery.request.correlation_id)) > 24 * 3600
    assert bench.renew(delivery, fence) == replies.Renewed(cancel_requested=False)
    assert await bench.redis.ttl(delivery.request.response_channel) > 0
    assert await bench.cancel(delivery.request) == replies.CancelRequested()
    assert bench.renew(delivery, fence) == replies.Renewed(cancel_requested=True)
    assert await bench.worker.complete(delivery, fence, DONE) == replies.Completed()
    assert (await bench.channel(delivery.request))[-1] == CallFinished(DONE)


@pytest.mark.guard("renew", "'entry', entry,", execution_class="once")
@pytest.mark.guard("renew", "'class', class,", execution_class="repeatable")
@pytest.mark.parametrize("execution_class", ["once", "repeatable"])
async def test_a_call_that_was_put_back_keeps_its_execution_class(bench: Bench, execution_class: str) -> None:
    delivery, fence = await bench.running(execution_class)
    await bench.forget(delivery.request)
    bench.renew(delivery, fence)

    said = {"once": replies.Abandoned(above(fence), starts=1), "repeatable": replies.Run(above(fence), starts=2)}
    assert await bench.start(await bench.claim(delivery, "b")) == said[execution_class]


@pytest.mark.guard("renew", "'verdict', 'RUN',")
async def test_a_call_that_was_put_back_can_be_given_back(bench: Bench) -> None:
    delivery, fence = await bench.running("once")
    await bench.forget(delivery.request)
    bench.renew(delivery, fence)

    assert await bench.worker.release(delivery, fence, lease_ms=LEASE_MS) == replies.Completed()
    assert await bench.start(await bench.claim(delivery, "b")) == replies.Run(above(fence), starts=1)


@promise("what Redis lost of a running call is put back by its worker")
@pytest.mark.guard("renew", "  redis.call('HINCRBY', call, 'starts', 1)")
async def test_a_start_that_a_failover_lost_is_put_back(bench: Bench) -> None:
    delivery, fence = await forgotten_start(bench)

    assert bench.renew(delivery, fence) == replies.Renewed(cancel_requested=False)
    ledger = await bench.ledger(delivery.request)
    assert (ledger["state"], ledger["fence"], ledger["starts"]) == ("started", str(fence), "1")
    assert await bench.start(await bench.claim(delivery, "b")) == replies.Abandoned(above(fence), starts=1)


@pytest.mark.guard("renew", "forget_entry(known[6] or requests, group, known[5])")
@pytest.mark.guard(
    "common", "return state == 'published' and fence > 0 and fence <= tonumber(base or 0)", "return false"
)
async def test_a_call_that_was_published_anew_goes_back_to_the_worker_that_runs_it(bench: Bench) -> None:
    """A relay that does not know whether its request came through before the loss publishes it again."""
    delivery, fence = await bench.running("once")
    await bench.flush()
    await bench.engine.enqueue(delivery.request)

    assert bench.renew(delivery, fence) == replies.Renewed(cancel_requested=False)
    assert await bench.next_delivery("b") is None
    assert (await bench.ledger(delivery.request))["fence"] == str(fence)
    assert await bench.worker.complete(delivery, fence, DONE) == replies.Completed()


@pytest.mark.guard("common", "return state == 'published' and", "return")
async def test_a_call_that_was_begun_anew_does_not_go_back(bench: Bench) -> None:
    delivery, fence = await bench.running("repeatable")
    await bench.flush()
    await bench.engine.enqueue(delivery.request)
    taken = await bench.deliver("b")
    second = await bench.run(taken)

    assert bench.renew(delivery, fence) == replies.Stale()
    assert await bench.worker.complete(delivery, fence, answered("of the first life")) == replies.Stale()
    assert await bench.worker.complete(taken, second, DONE) == replies.Completed()


@pytest.mark.guard("enqueue", "'fence', next_fence()", "'fence', 0")
async def test_the_fences_of_a_new_life_are_above_those_of_the_old(bench: Bench) -> None:
    delivery, fence = await bench.running("repeatable")
    await bench.flush()
    await bench.engine.enqueue(delivery.request)

    assert await bench.run(await bench.deliver("b")) > fence
    assert int((await bench.ledger(await bench.queued()))["fence"]) > fence


# --- COMPLETE with the truth in hand ---


@pytest.mark.guard(
    "common",
    "if fence >= tonumber(current or 0) then return true end",
    "if fence == tonumber(current or 0) then return true end",
)
async def test_a_result_under_a_fence_that_a_failover_lost_is_written(bench: Bench) -> None:
    delivery, fence = await forgotten_start(bench)

    assert await bench.worker.complete(delivery, fence, DONE) == replies.Completed()
    assert (await bench.backlog(), await bench.pending()) == (0, [])


@pytest.mark.guard("complete", "forget_entry(known[5] or requests, group, known[4])")
async def test_a_result_from_before_the_loss_ends_the_call_that_was_published_anew(bench: Bench) -> None:
    delivery, fence = await bench.running("once")
    await bench.flush()
    await bench.engine.enqueue(delivery.request)

    assert await bench.worker.complete(delivery, fence, DONE) == replies.Completed()
    assert await bench.backlog() == 0


@pytest.mark.guard("common", "fence > 0 and")
async def test_a_worker_that_found_no_ledger_does_not_end_a_call_that_is_published_anew(bench: Bench) -> None:
    request = await bench.queued("repeatable")
    first = await bench.deliver()
    await bench.forget(request)
    assert await bench.start(first) == replies.NoLedger()
    await bench.engine.enqueue(request)

    assert await bench.worker.complete(first, 0, LOST) == replies.Stale()
    assert isinstance(await bench.start(await bench.deliver("b")), replies.Run)


# --- A group that was lost and made anew delivers again what runs ---


@promise("without its group nothing is lost, and what runs stays with its worker")
@pytest.mark.guard("start", "if state == 'started' and deliveries == 1", "if false")
@pytest.mark.guard("renew", "and deliveries > 1")
async def test_a_running_call_that_a_new_group_delivers_goes_back_to_its_worker(bench: Bench) -> None:
    delivery, fence = await bench.running("once")
    for renewed_first in (True, False):
        await bench.regroup()
        again = await bench.deliver("b")
        if renewed_first:
            assert bench.renew(delivery, fence) == replies.Renewed(cancel_requested=False)
        assert await bench.start(again) == replies.NothingToDo("another worker has it")
        assert [row.consumer for row in await bench.pending()] == ["a"]
    assert bench.renew(delivery, fence) == replies.Renewed(cancel_requested=False)
    assert await bench.worker.complete(delivery, fence, DONE) == replies.Completed()


@pytest.mark.guard("start", "and deliveries == 1")
async def test_a_call_that_went_back_to_a_worker_that_is_gone_is_taken_over_when_its_lease_ends(bench: Bench) -> None:
    delivery, fence = await bench.running("once")
    await bench.regroup()
    await bench.start(await bench.deliver("b"))
    await bench.age(delivery)

    assert await bench.start(await bench.claim(delivery, "b")) == replies.Abandoned(above(fence), starts=1)


@pytest.mark.guard("start", "'IDLE', unheard_ms,")
async def test_the_lease_of_a_call_that_went_back_is_no_longer_than_it_was(bench: Bench) -> None:
    delivery, _ = await bench.running("once")
    call = bench.keys.call(delivery.request.correlation_id)
    await bench.command("HINCRBY", call, "renewedAt", 500 - LEASE_MS)
    await bench.regroup()
    await bench.start(await bench.deliver("b"))

    assert await wait_until(lambda: bench.sweep("c"), 2.0) == [delivery.entry]


@pytest.mark.guard("start", "and unheard_ms < lease_ms")
async def test_a_call_that_a_new_group_delivers_after_its_lease_is_abandoned(bench: Bench) -> None:
    _, fence = await bench.running("once")
    await bench.regroup()

    assert await bench.start(await bench.deliver("b"), lease_ms=0) == replies.Abandoned(above(fence), starts=1)


# --- AUDIT ---


@pytest.mark.guard("loss", "if not out_of_reach(known[4] or requests, group, entry)", "if false")
@pytest.mark.guard("loss", "and not pending_owner(requests, group, entry)")
@pytest.mark.guard("loss", "not later(entry, delivered) and")
async def test_the_audit_finds_nothing_lost_of_calls_that_wait_or_run(bench: Bench) -> None:
    delivery, _ = await bench.running()
    read, waiting = await bench.queued(), await bench.queued()
    await bench.deliver()

    assert await bench.audit(delivery.request, read, waiting) == [None, None, None]
    assert await bench.audit(delivery.request, read, waiting, silent_ms=AT_ONCE) == [None, None, None]


@pytest.mark.guard("audit", "if bytes >= max_bytes then", "if false then")
@pytest.mark.guard("audit", "return {n, rows}", "return {#calls / 2, rows}")
async def test_large_replies_are_read_by_several_audits_and_no_call_is_left_out(bench: Bench) -> None:
    answers: list[Any] = []
    run = Scripts.run

    async def recorded(scripts: Scripts, *args: Any) -> Any:
        answers.append(await run(scripts, *args))
        return answers[-1]

    finished: list[tuple[str, bytes]] = []
    for tenths in (4, 4, 4, 15, 1):
        delivery, fence = await bench.running()
        outcome = answered("x" * (AUDIT_BYTES * tenths // 10))
        await bench.worker.complete(delivery, fence, outcome)
        finished.append((delivery.request.correlation_id, encode_reply(CallFinished(outcome))))
    waiting, first, last = await bench.queued(), await bench.request(), await bench.request()
    asked = [first.correlation_id, *dict(finished), waiting.correlation_id, last.correlation_id]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Scripts, "run", recorded)
        audited = await bench.engine.audit(asked)
    assert audited == [(first.correlation_id, Loss.MISSING), *finished, (last.correlation_id, Loss.MISSING)]
    assert [checked for checked, _ in answers] == [4, 1, 3]


@promise("I7 a request that vanished is answered LOST")
@pytest.mark.guard("loss", "if rows.err or #rows == 0", "if false")
@pytest.mark.guard(
    "loss",
    "return delivered and not later(entry, delivered) and not pending_owner(requests, group, entry)",
    "return false",
)
async def test_a_call_whose_request_was_deleted_or_was_delivered_and_is_not_pending_has_vanished(bench: Bench) -> None:
    read, passed, deleted, kept = [await bench.queued() for _ in range(4)]
    await bench.deliver("b")
    await bench.deliver("a")
    for request in (read, deleted):
        await bench.redis.xdel(bench.keys.requests, (await bench.ledger(request))["entry"])
    await bench.redis.xgroup_delconsumer(bench.keys.requests, GROUP, "a")

    assert await bench.audit(read, passed, deleted, kept) == [Loss.VANISHED] * 3 + [None]
    await bench.command("SET", bench.keys.requests, "something else", "PX", 5000)
    assert await bench.audit(kept) == [Loss.VANISHED]


@pytest.mark.guard("loss", "return a_ms > b_ms or (a_ms == b_ms and a_seq > b_seq)", "return a > b")
async def test_undelivered_entries_are_recognised_by_their_whole_entry_ids(bench: Bench) -> None:
    requests = [await bench.queued() for _ in range(4)]
    entries = ["5-2", "5-10", "40-1", "40-0"]
    await bench.redis.delete(bench.keys.requests)
    for entry in sorted(entries, key=lambda entry: [int(part) for part in entry.split("-")]):
        await bench.redis.xadd(bench.keys.requests, {"event": "any"}, id=entry)
    for request, entry in zip(requests, entries, strict=True):
        await bench.redis.hset(bench.keys.call(request.correlation_id), "entry", entry)
    for delivered, later in (
        ("5-2", [Loss.VANISHED, None, None, None]),
        ("40-0", [Loss.VANISHED] * 2 + [None, Loss.VANISHED]),
    ):
        await bench.redis.xgroup_destroy(bench.keys.requests, GROUP)
        await bench.command("XGROUP", "CREATE", bench.keys.requests, GROUP, delivered)
        assert await bench.audit(*requests) == later


@promise("without its group nothing is lost, and what runs stays with its worker")
@pytest.mark.guard("loss", "return delivered and", "delivered = delivered or '99999999999999-0' return")
async def test_a_call_whose_group_was_lost_will_be_delivered_again(bench: Bench) -> None:
    delivery, _ = await bench.running()
    read = await bench.queued()
    await bench.deliver()
    await bench.redis.xgroup_destroy(bench.keys.requests, GROUP)
    assert await bench.audit(delivery.request, read, silent_ms=AT_ONCE) == [None, None]

    await bench.regroup()
    assert await bench.audit(delivery.request, read, silent_ms=AT_ONCE) == [None, None]
    assert [(await bench.deliver("b")).request for _ in range(2)] == [delivery.request, read]


@pytest.mark.guard("renew", "redis.call('HSET', call, 'renewedAt', now_ms())")
@pytest.mark.guard("loss", "if state == 'started' and", "if false and")
async def test_a_running_call_without_a_request_is_stranded_once_its_worker_is_silent(bench: Bench) -> None:
    delivery, fence = await bench.running()
    await bench.redis.xdel(bench.keys.requests, delivery.entry)
    call = bench.keys.call(delivery.request.correlation_id)

    assert await bench.audit(delivery.request) == [None]
    assert await bench.audit(delivery.request, silent_ms=AT_ONCE) == [Loss.STRANDED]
    await bench.command("HINCRBY", call, "renewedAt", -60_000)
    assert await bench.audit(delivery.request) == [Loss.STRANDED]
    bench.renew(delivery, fence)
    assert await bench.audit(delivery.request) == [None]


# --- LOSE ---


async def test_a_call_that_is_still_lost_ends(bench: Bench) -> None:
    missing, vanished = await bench.queued(), await bench.queued()
    await bench.forget(missing)
    await bench.redis.xdel(bench.keys.requests, (await bench.ledger(vanished))["entry"])

    for request, loss in ((missing, Loss.MISSING), (vanished, Loss.VANISHED)):
        assert await bench.engine.lose(request, loss, LOST) == replies.EndedLost()
        assert await bench.channel(request) == [CallFinished(LOST)]
        assert await bench.engine.lose(request, loss, UNKNOWN) == replies.AlreadyFinished(LOST)
        assert 0 < await bench.command("TTL", bench.keys.call(request.correlation_id)) <= 24 * 3600
    assert [call for call, _ in await bench.mailbox()] == [missing.correlation_id, vanished.correlation_id]
    assert await bench.start(await bench.deliver()) == replies.NothingToDo("it is failed already")


@pytest.mark.guard("lose", "~= found", "== ''")
async def test_a_call_that_its_worker_put_back_meanwhile_goes_on(bench: Bench) -> None:
    delivery, fence = await bench.running()
    await bench.flush()
    bench.renew(delivery, fence)

    assert await bench.engine.lose(delivery.request, Loss.MISSING, UNKNOWN) == replies.NotLost()
    assert await bench.engine.lose(delivery.request, Loss.STRANDED, UNKNOWN) == replies.NotLost()
    assert await bench.worker.complete(delivery, fence, DONE) == replies.Completed()


# --- CANCEL of what the ledger does not know ---


@pytest.mark.guard("cancel", "unseen and unseen_state or state, unseen and unseen_reply or reply", "state, reply")
async def test_a_published_call_of_which_nothing_is_known_is_ended_as_the_engine_says(bench: Bench) -> None:
    delivery, fence = await bench.running("once")
    await bench.flush()

    assert await bench.cancel(delivery.request, CANCELLED, unseen=UNKNOWN) == replies.CancelledUnseen()
    assert await bench.cancel(delivery.request) == replies.AlreadyFinished(UNKNOWN)
    assert await bench.worker.complete(delivery, fence, DONE) == replies.Duplicate(UNKNOWN.state)
    assert await bench.channel(delivery.request) == [CallFinished(UNKNOWN)]
