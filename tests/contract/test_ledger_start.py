"""START: the durable mark before a tool is called, and the crash table of the two execution classes."""

from dataclasses import replace

import msgspec
import pytest

from plugins_contract.ledger import Delivery, replies
from plugins_contract.messages import ExecutionClass, ToolCallRequested, encode_request, new_id
from plugins_contract.outcomes import CallFinished, CallStarted
from tests.marks import promise
from tests.support.ledger import DONE, ENGINE, EXPIRED, MINUTE_MS, Bench, above

pytestmark = pytest.mark.every_redis


async def duplicate_entry(bench: Bench, request: ToolCallRequested) -> Delivery:
    """One more entry for this call, as a blindly retried XADD would leave it, read by consumer `a`."""
    await bench.redis.xadd(bench.keys.requests, {"event": encode_request(request)})
    return await bench.deliver("a")


@pytest.mark.guard("progress", "keep_while_open(channel, known[3])")
async def test_the_engine_is_notified_that_it_runs_by_a_report_of_its_own(bench: Bench) -> None:
    delivery, fence = await bench.running()
    request = delivery.request
    assert (await bench.channel(request), await bench.mailbox()) == ([], [])

    assert await bench.worker.progress(request, fence, CallStarted(1))
    assert await bench.channel(request) == [CallStarted(attempt=1)]
    assert [call for call, _ in await bench.mailbox()] == [request.correlation_id]
    expires_at = await bench.command("PEXPIRETIME", request.response_channel)
    assert expires_at == request.deadline + 24 * 60 * MINUTE_MS
    assert await bench.command("TTL", bench.keys.mailbox(ENGINE)) > 0


@pytest.mark.guard("start", "if known[6] == token", "if false")
@pytest.mark.guard("start", "begin_lease()\n  return {known[7]", "return {known[7]")
@pytest.mark.guard("start", "\nbegin_lease()")
async def test_the_lease_runs_from_the_start_and_the_same_token_again_gets_the_same_answer_and_a_new_one(
    bench: Bench,
) -> None:
    """Else a call that waited long for its turn is taken from its worker before the first renewal."""
    delivery = await bench.read()
    answers: list[replies.Started] = []
    for _ in range(2):
        await bench.age(delivery)
        answers.append(await bench.start(delivery))
        assert await bench.sweep("b") == []
    assert answers[0] == answers[1]
    assert (await bench.ledger(delivery.request))["starts"] == "1"


@pytest.mark.guard("start", "if owner ~= consumer", "if false")
@pytest.mark.guard("start", "if owner ~= consumer then", "if owner ~= consumer and known[6] ~= token then")
async def test_only_the_owner_of_the_entry_may_start_it_also_with_the_token_of_its_start(bench: Bench) -> None:
    delivery = await bench.read()
    await bench.claim(delivery, "b")
    assert await bench.start(delivery) == replies.NothingToDo("another worker has it")
    assert (await bench.ledger(delivery.request))["state"] == "published"

    delivery, _ = await bench.running()
    await bench.claim(delivery, "b")
    assert await bench.start(delivery) == replies.NothingToDo("another worker has it")


@promise("I9 deadlines are kept by the clock of Redis")
@pytest.mark.guard("start", "if now_ms() >= deadline", "if false")
@pytest.mark.guard("start", "if limit > 0 then deadline = math.min(deadline or limit, limit) end")
async def test_past_its_deadline_a_call_is_answered_and_not_run_also_with_an_edited_ledger(bench: Bench) -> None:
    delivery = await bench.read(expires_in_ms=-1)
    later = await bench.now_ms() + MINUTE_MS
    await bench.redis.hset(bench.keys.call(delivery.request.correlation_id), "deadline", later)

    assert await bench.start(delivery) == replies.NothingToDo("its deadline has passed")
    assert (await bench.ledger(delivery.request))["state"] == "expired"
    assert await bench.channel(delivery.request) == [CallFinished(EXPIRED)]
    assert (await bench.backlog(), await bench.pending()) == (0, [])


async def abandoned(bench: Bench, delivery: Delivery, fence: int) -> int:
    """START says that the call is given up; the new fence."""
    answer = await bench.start(delivery)
    assert isinstance(answer, replies.Abandoned)
    assert answer == replies.Abandoned(above(fence), starts=1)
    return answer.fence


@promise("I4 what is unknown is never run again")
@pytest.mark.guard("start", "or state == 'started' and class ~= 'repeatable'")
@pytest.mark.guard("start", "and known[10] ~= consumer")
@pytest.mark.guard("start", "'token', token,")
async def test_a_once_call_that_was_started_is_never_run_again(bench: Bench) -> None:
    delivery, fence = await bench.running("once")

    # Its worker comes back under its old name.
    fence = await abandoned(bench, replace(delivery, token=new_id()), fence)
    for consumer in ("b", "c"):
        taken = await bench.claim(delivery, consumer)
        fence = await abandoned(bench, taken, fence)
        assert await bench.start(taken) == replies.Abandoned(fence, starts=1), "the same token again"
    # The token of a start that was abandoned is worth nothing.
    await bench.claim(delivery, "a")
    await abandoned(bench, delivery, fence)


@pytest.mark.guard("start", "if starts >= max_starts", "if false")
async def test_a_repeatable_call_runs_as_often_as_is_allowed(bench: Bench) -> None:
    delivery, fence = await bench.running("repeatable")
    delivery = await bench.claim(delivery, "b")
    assert await bench.start(delivery, max_starts=2) == replies.Run(above(fence), starts=2)
    delivery = await bench.claim(delivery, "c")

    assert await bench.start(delivery, max_starts=2) == replies.Exhausted(above(fence + 1), starts=2)


@promise("I10 the execution class never changes")
@pytest.mark.guard("start", "if class == 'repeatable' then class = requested_class end")
async def test_a_once_call_stays_one_whether_its_request_or_its_ledger_is_changed(bench: Bench) -> None:
    delivery, _ = await bench.running("once")
    forged = msgspec.structs.replace(delivery.request, execution_class=ExecutionClass.REPEATABLE)
    assert isinstance(await bench.start(replace(await bench.claim(delivery, "b"), request=forged)), replies.Abandoned)

    await bench.redis.hset(bench.keys.call(delivery.request.correlation_id), "class", "repeatable")
    assert isinstance(await bench.start(await bench.claim(delivery, "c")), replies.Abandoned)


@pytest.mark.guard(
    "start", "if known[9] then", "if false then", execution_class="repeatable", said=replies.CancelledBefore
)
@pytest.mark.guard(
    "start",
    "if doubtful or",
    "if not known[9] and doubtful or not known[9] and",
    execution_class="once",
    said=replies.Abandoned,
)
@pytest.mark.parametrize(
    ("execution_class", "said"), [("repeatable", replies.CancelledBefore), ("once", replies.Abandoned)]
)
async def test_a_call_whose_end_was_asked_for_is_not_run_again_and_a_once_call_is_still_unknown(
    bench: Bench, execution_class: str, said: type[replies.CancelledBefore | replies.Abandoned]
) -> None:
    delivery, fence = await bench.running(execution_class)
    await bench.cancel(delivery.request)

    assert await bench.start(await bench.claim(delivery, "b")) == said(above(fence), starts=1)


@promise("a finished call that is asked for again is answered again")
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


@pytest.mark.guard("start", "if known[8] ~= entry", "if false")
async def test_a_second_entry_of_the_same_call_is_dropped(bench: Bench) -> None:
    first = await bench.read()
    second = await duplicate_entry(bench, first.request)

    assert await bench.start(second) == replies.NothingToDo("another worker has it")
    assert await bench.start(first) == replies.Run(above(0), starts=1)
    assert [row.entry for row in await bench.pending()] == [first.entry]
    assert await bench.backlog() == 1
