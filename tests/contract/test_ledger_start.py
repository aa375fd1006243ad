"""START: the durable mark before a tool is called, and the crash table of the two execution classes."""

from dataclasses import replace

import msgspec
import pytest

from plugins_contract.ledger import Delivery, replies
from plugins_contract.messages import ExecutionClass, ToolCallRequested, encode_request, new_id
from plugins_contract.outcomes import CallFinished, CallStarted
from tests.marks import promise
from tests.support.ledger import CANCELLED, DONE, ENGINE, EXPIRED, MINUTE_MS, Bench, above

pytestmark = [pytest.mark.anyio, pytest.mark.every_redis]


async def queued(bench: Bench, execution_class: str = "once", *, expires_in_ms: int = MINUTE_MS) -> Delivery:
    """A call that consumer `a` has read and not started."""
    await bench.engine.enqueue(await bench.request(execution_class, expires_in_ms=expires_in_ms))
    return await bench.deliver("a")


async def duplicate_entry(bench: Bench, request: ToolCallRequested) -> Delivery:
    """One more entry for this call, as a blindly retried XADD would leave it, read by consumer `a`."""
    await bench.redis.xadd(bench.keys.requests, {"event": encode_request(request)})
    return await bench.deliver("a")


async def test_the_engine_is_notified_that_it_runs_by_a_report_of_its_own(bench: Bench) -> None:
    delivery, fence = await bench.running()
    assert (await bench.channel(delivery.request), await bench.mailbox()) == ([], [])

    assert await bench.worker.progress(delivery.request, fence, CallStarted(1))
    (entry,) = await bench.entries(delivery.request)
    assert entry["kind"] == "started"
    assert await bench.channel(delivery.request) == [CallStarted(attempt=1)]
    assert [call for call, _ in await bench.mailbox()] == [delivery.request.correlation_id]


@pytest.mark.guard("start", "if known[6] == token", "if false")
async def test_the_same_token_again_gets_the_same_answer(bench: Bench) -> None:
    delivery = await queued(bench)
    first = await bench.start(delivery)

    assert await bench.start(delivery) == first
    assert (await bench.ledger(delivery.request))["starts"] == "1"


@pytest.mark.guard("start", "if owner ~= consumer", "if false")
async def test_only_the_owner_of_the_entry_may_start_it(bench: Bench) -> None:
    delivery = await queued(bench)
    await bench.claim(delivery, "b")

    assert await bench.start(delivery) == replies.NothingToDo("another worker has it")
    assert (await bench.ledger(delivery.request))["state"] == "published"


@pytest.mark.guard("start", "if owner ~= consumer then", "if owner ~= consumer and known[6] ~= token then")
async def test_a_repeated_token_does_not_start_a_call_that_another_worker_has(bench: Bench) -> None:
    delivery, _ = await bench.running()
    await bench.claim(delivery, "b")

    assert await bench.start(delivery) == replies.NothingToDo("another worker has it")


@promise("I9 deadlines are kept by the clock of Redis")
@pytest.mark.guard("start", "if now_ms() >= deadline", "if false")
async def test_past_its_deadline_a_call_is_answered_and_not_run(bench: Bench) -> None:
    delivery = await queued(bench, expires_in_ms=-1)

    assert await bench.start(delivery) == replies.NothingToDo("its deadline has passed")
    assert (await bench.ledger(delivery.request))["state"] == "expired"
    assert await bench.channel(delivery.request) == [CallFinished(EXPIRED)]
    assert (await bench.backlog(), await bench.pending()) == (0, [])


@promise("I4 what is unknown is never run again")
@pytest.mark.guard("start", "or state == 'started' and class ~= 'repeatable'")
async def test_a_once_call_that_was_started_is_never_run_again(bench: Bench) -> None:
    delivery, fence = await bench.running("once")

    for consumer in ("b", "c"):
        delivery = await bench.claim(delivery, consumer)
        answer = await bench.start(delivery)
        assert isinstance(answer, replies.Abandoned)
        assert answer == replies.Abandoned(above(fence), starts=1)
        fence = answer.fence


@pytest.mark.guard("start", "and known[10] ~= consumer")
async def test_a_worker_that_comes_back_under_its_old_name_does_not_run_a_once_call_again(bench: Bench) -> None:
    delivery, fence = await bench.running("once")

    assert await bench.start(replace(delivery, token=new_id())) == replies.Abandoned(above(fence), starts=1)


@pytest.mark.guard("start", "'token', token,")
async def test_an_abandoned_call_is_abandoned_for_the_same_token_again(bench: Bench) -> None:
    delivery, fence = await bench.running("once")
    taken = await bench.claim(delivery, "b")

    assert await bench.start(taken) == await bench.start(taken) == replies.Abandoned(above(fence), starts=1)


async def test_the_token_of_an_abandoned_start_is_worth_nothing(bench: Bench) -> None:
    delivery, fence = await bench.running("once")
    await bench.start(await bench.claim(delivery, "b"))
    await bench.claim(delivery, "a")

    assert await bench.start(delivery) == replies.Abandoned(above(fence + 1), starts=1)


@pytest.mark.guard("start", "if starts >= max_starts", "if false")
async def test_a_repeatable_call_runs_as_often_as_is_allowed(bench: Bench) -> None:
    delivery, fence = await bench.running("repeatable")
    delivery = await bench.claim(delivery, "b")
    assert await bench.start(delivery, max_starts=2) == replies.Run(above(fence), starts=2)
    delivery = await bench.claim(delivery, "c")

    assert await bench.start(delivery, max_starts=2) == replies.Exhausted(above(fence + 1), starts=2)


@promise("I10 the execution class never changes")
async def test_the_execution_class_is_the_one_of_the_ledger(bench: Bench) -> None:
    delivery, _ = await bench.running("once")
    forged = msgspec.structs.replace(delivery.request, execution_class=ExecutionClass.REPEATABLE)
    taken = replace(await bench.claim(delivery, "b"), request=forged)

    assert isinstance(await bench.start(taken), replies.Abandoned)


@pytest.mark.guard("start", "if known[9] then", "if false then")
async def test_a_repeatable_call_whose_end_was_asked_for_is_not_run_again(bench: Bench) -> None:
    delivery, fence = await bench.running("repeatable")
    await bench.cancel(delivery.request)

    assert await bench.start(await bench.claim(delivery, "b")) == replies.CancelledBefore(above(fence), starts=1)


@pytest.mark.guard("start", "if doubtful or", "if not known[9] and doubtful or not known[9] and")
async def test_a_once_call_whose_end_was_asked_for_is_still_unknown_when_its_worker_is_lost(bench: Bench) -> None:
    delivery, fence = await bench.running("once")
    await bench.cancel(delivery.request)

    assert await bench.start(await bench.claim(delivery, "b")) == replies.Abandoned(above(fence), starts=1)


@pytest.mark.guard("start", "if TERMINAL[state]", "if false")
@pytest.mark.guard("start", "    notify(channel, mailbox, id, reply)")
async def test_a_finished_call_is_not_run_and_its_answer_is_sent_again(bench: Bench) -> None:
    delivery, fence = await bench.running("repeatable")
    taken = await bench.claim(delivery, "b")
    await bench.worker.complete(delivery, fence, DONE)
    notified = len(await bench.mailbox())

    assert await bench.start(taken) == replies.NothingToDo("it is succeeded already")
    assert len(await bench.mailbox()) == notified + 1
    assert (await bench.channel(taken.request)).count(CallFinished(DONE)) == 1


async def test_a_cancelled_call_that_stands_in_the_stream_is_taken_away(bench: Bench) -> None:
    request = await bench.request()
    await bench.cancel(request)
    delivery = await duplicate_entry(bench, request)

    assert await bench.start(delivery) == replies.NothingToDo("it is cancelled already")
    assert await bench.channel(request) == [CallFinished(CANCELLED)]
    assert (await bench.backlog(), await bench.pending()) == (0, [])


@pytest.mark.guard("start", "if known[8] ~= entry", "if false")
async def test_a_second_entry_of_the_same_call_is_dropped(bench: Bench) -> None:
    first = await queued(bench)
    second = await duplicate_entry(bench, first.request)

    assert await bench.start(second) == replies.NothingToDo("another worker has it")
    assert await bench.start(first) == replies.Run(above(0), starts=1)
    assert [row.entry for row in await bench.pending()] == [first.entry]
    assert await bench.backlog() == 1


@pytest.mark.guard("start", "\nbegin_lease()")
async def test_the_lease_runs_from_the_start(bench: Bench) -> None:
    """Else a call that waited long for its turn is taken from its worker before the first renewal."""
    delivery = await queued(bench)
    await bench.age(delivery)

    await bench.start(delivery)

    assert await bench.sweep("b") == []


@pytest.mark.guard("start", "begin_lease()\n  return {known[7]", "return {known[7]")
async def test_the_lease_runs_from_a_repeated_start_too(bench: Bench) -> None:
    delivery, _ = await bench.running()
    await bench.age(delivery)

    await bench.start(delivery)

    assert await bench.sweep("b") == []


@pytest.mark.guard("progress", "keep_while_open(channel, known[3])")
async def test_the_channel_of_a_running_call_has_a_lifetime(bench: Bench) -> None:
    delivery, fence = await bench.running()
    await bench.worker.progress(delivery.request, fence, CallStarted(1))

    expires_at = await bench.command("PEXPIRETIME", delivery.request.response_channel)
    assert expires_at == delivery.request.deadline + 24 * 60 * MINUTE_MS
    assert await bench.command("TTL", bench.keys.mailbox(ENGINE)) > 0


@pytest.mark.guard("start", "if class == 'repeatable' then class = requested_class end")
async def test_a_once_call_does_not_run_again_because_somebody_has_edited_its_ledger(bench: Bench) -> None:
    delivery, _ = await bench.running("once")
    await bench.redis.hset(bench.keys.call(delivery.request.correlation_id), "class", "repeatable")

    assert isinstance(await bench.start(await bench.claim(delivery, "b")), replies.Abandoned)


@pytest.mark.guard("start", "if limit > 0 then deadline = math.min(deadline or limit, limit) end")
async def test_a_call_does_not_run_after_its_deadline_because_somebody_has_edited_its_ledger(bench: Bench) -> None:
    await bench.engine.enqueue(await bench.request(expires_in_ms=-1))
    delivery = await bench.deliver()
    now = await bench.now_ms()
    await bench.redis.hset(bench.keys.call(delivery.request.correlation_id), "deadline", now + MINUTE_MS)

    assert await bench.start(delivery) == replies.NothingToDo("its deadline has passed")
