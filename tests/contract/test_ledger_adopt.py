"""ADOPT: a request of another producer gets its ledger before it is begun, and never when it may have been begun."""

from dataclasses import replace

import msgspec
import pytest

from plugins_contract.errors import ErrorCode
from plugins_contract.ledger import Delivery, replies
from plugins_contract.messages import ExecutionClass, encode_request, new_id
from plugins_contract.outcomes import CallFinished, CallStarted, CallState
from tests.marks import promise
from tests.support.ledger import DONE, EXPIRED, MINUTE_MS, Bench, above

pytestmark = pytest.mark.every_redis

DAY_MS = 24 * 60 * MINUTE_MS


async def submitted(bench: Bench, execution_class: str = "once", *, deadline: int = 0, mailbox: str = "") -> Delivery:
    """A request of another producer in the hands of consumer `a`, without a deadline."""
    request = msgspec.structs.replace(await bench.request(execution_class), deadline=deadline, mailbox=mailbox)
    await bench.submit(request)
    return await bench.deliver("a")


async def adopted(bench: Bench, delivery: Delivery) -> Delivery:
    """The same with what is frozen."""
    answer = await bench.adopt(delivery)
    assert isinstance(answer, replies.Adopted)
    request = msgspec.structs.replace(
        delivery.request, deadline=answer.deadline, execution_class=answer.execution_class
    )
    return replace(delivery, request=request)


@pytest.mark.guard("common", "if mailbox == channel then return end")
@pytest.mark.guard("adopt", "keep_while_open(call, deadline)")
@pytest.mark.guard("start", "keep_while_open(channel, deadline)")
async def test_an_adopted_call_runs_and_is_answered_in_its_channel_alone_and_all_of_it_expires(bench: Bench) -> None:
    delivery = await adopted(bench, await submitted(bench))
    assert 0 < await bench.command("PTTL", bench.keys.call(delivery.request.correlation_id)) <= DAY_MS + MINUTE_MS
    fence = await bench.run(delivery)
    assert await bench.command("PEXPIRETIME", delivery.request.response_channel) == delivery.request.deadline + DAY_MS
    await bench.worker.complete(delivery, fence, DONE)

    assert await bench.channel(delivery.request) == [CallStarted(1), CallFinished(DONE)]
    assert await bench.mailbox() == []
    assert (await bench.backlog(), await bench.pending()) == (0, [])


@pytest.mark.guard("adopt", "known[4] or deadline", "deadline")
@pytest.mark.guard("adopt", "known[3] or class", "class")
async def test_the_time_of_a_call_runs_from_its_adoption_and_is_frozen_with_its_execution_class(bench: Bench) -> None:
    delivery = await submitted(bench)
    before = await bench.now_ms()
    first = await bench.adopt(delivery, timeout_ms=5_000)
    assert isinstance(first, replies.Adopted)
    assert before + 5_000 <= first.deadline <= await bench.now_ms() + 5_000
    await bench.run(delivery)

    forged = msgspec.structs.replace(delivery.request, execution_class=ExecutionClass.REPEATABLE)
    taken = replace(await bench.claim(delivery, "b"), request=forged)
    assert await bench.adopt(taken, timeout_ms=90_000) == first == replies.Adopted(ExecutionClass.ONCE, first.deadline)
    assert isinstance(await bench.start(taken), replies.Abandoned)


@pytest.mark.guard("adopt", "if deadline == '' then deadline =", "if true then deadline =")
async def test_a_deadline_that_is_given_counts(bench: Bench) -> None:
    past = await bench.now_ms() - 1
    delivery = await adopted(bench, await submitted(bench, deadline=past))

    assert delivery.request.deadline == past
    assert await bench.start(delivery) == replies.NothingToDo("its deadline has passed")
    assert await bench.channel(delivery.request) == [CallFinished(EXPIRED)]


@pytest.mark.guard("adopt", "and now_ms() - written_at > 86400000")
async def test_a_request_whose_first_worker_died_before_it_began_it_is_run_by_the_next(bench: Bench) -> None:
    """Nothing was lost, so LOST would be untrue."""
    delivery = await submitted(bench, "once", mailbox=bench.keys.mailbox("engine-1"))
    await bench.age(delivery)
    taken = await adopted(bench, await bench.claim(delivery, "b"))

    assert await bench.start(taken) == replies.Run(above(0), starts=1)
    assert [call for call, _ in await bench.mailbox()] == [delivery.request.correlation_id]


@pytest.mark.guard("adopt", "if replies > 0 or", "if")
@pytest.mark.guard(
    "start", "append_reply(channel, mailbox, id, tool_call_id, 'started', started_reply .. starts .. '}')"
)
async def test_a_call_that_was_begun_and_whose_ledger_was_lost_is_put_back_by_its_worker_alone(bench: Bench) -> None:
    delivery = await adopted(bench, await submitted(bench, "once"))
    fence = await bench.run(delivery)
    await bench.forget(delivery.request)
    taken = await bench.claim(delivery, "b")
    assert await bench.adopt(taken) == replies.NoLedger()
    assert await bench.start(taken) == replies.NoLedger()

    await bench.claim(delivery, "a")
    assert bench.renew(delivery, fence) == replies.Renewed(cancel_requested=False)
    assert await bench.worker.complete(delivery, fence, DONE) == replies.Completed()


@pytest.mark.guard("adopt", "(deliveries > 1 and", "(false and")
@pytest.mark.guard("adopt", "(deliveries > 1 and", "(")
async def test_whether_a_call_delivered_days_ago_was_started_is_unknown(bench: Bench) -> None:
    """Ledger and channel have lived out their days, as when all workers are away over a weekend."""
    request = await bench.request("once")
    old = f"{await bench.now_ms() - DAY_MS - MINUTE_MS}-0"
    await bench.redis.delete(bench.keys.requests)
    await bench.redis.xadd(bench.keys.requests, {"event": encode_request(request)}, id=old)
    await bench.command("XGROUP", "CREATE", bench.keys.requests, "plugins-workers", "0")
    first = await bench.deliver("a")
    assert isinstance(await bench.adopt(first), replies.Adopted)  # delivered for the first time
    await bench.forget(request)

    assert await bench.adopt(await bench.claim(first, "b")) == replies.NoLedger()


@pytest.mark.guard("adopt", "if owner ~= consumer then return {'NOT_OWNER'} end")
async def test_only_the_owner_of_the_entry_adopts_it(bench: Bench) -> None:
    delivery = await submitted(bench)
    await bench.claim(delivery, "b")

    assert await bench.adopt(delivery) == replies.NothingToDo("another worker has it")
    assert await bench.ledger(delivery.request) == {}


@promise("a finished call that is asked for again is answered again")
@pytest.mark.guard("adopt", "if known[1] then", "if false then")
async def test_a_finished_call_that_is_submitted_again_is_answered_again(bench: Bench) -> None:
    first = await adopted(bench, await submitted(bench))
    await bench.worker.complete(first, await bench.run(first), DONE)
    await bench.submit(msgspec.structs.replace(first.request, deadline=0))
    again = await adopted(bench, await bench.deliver("b"))

    assert await bench.start(again) == replies.NothingToDo("it is succeeded already")
    assert (await bench.channel(again.request)).count(CallFinished(DONE)) == 1
    assert await bench.backlog() == 0


@pytest.mark.guard("adopt", "if known[2] and known[2] ~= hash then return {'CONFLICT'} end")
async def test_other_arguments_under_the_same_id_are_a_conflict(bench: Bench) -> None:
    first = await adopted(bench, await submitted(bench))
    await bench.submit(msgspec.structs.replace(first.request, arguments={"a": 2}))

    assert await bench.adopt(await bench.deliver("b")) == replies.Conflict()
    assert isinstance(await bench.start(first), replies.Run)


@pytest.mark.guard("adopt", "if type(replies) == 'table' then return {'CONFLICT'} end", "replies = 0")
async def test_a_channel_that_is_no_stream_is_a_conflict(bench: Bench) -> None:
    delivery = await submitted(bench)
    await bench.redis.set(delivery.request.response_channel, "somebody else's", ex=60)

    assert await bench.adopt(delivery) == replies.Conflict()


@pytest.mark.guard("common", "if not added.err and string.sub(added", "if string.sub(added")
@pytest.mark.guard("common", "redis.pcall('XADD', mailbox", "redis.call('XADD', mailbox")
async def test_a_mailbox_that_cannot_be_written_fails_no_call(bench: Bench) -> None:
    delivery = await adopted(bench, await submitted(bench, mailbox=bench.keys.mailbox("engine-1")))
    await bench.redis.set(bench.keys.mailbox("engine-1"), "somebody else's", ex=60)
    fence = await bench.run(delivery)

    assert await bench.worker.complete(delivery, fence, DONE) == replies.Completed()
    assert await bench.backlog() == 0


# --- BURY of what was never enqueued ---


async def refused(bench: Bench, delivery: Delivery, *, channel: str = "", correlation_id: str | None = None) -> None:
    request = delivery.request
    await bench.worker.bury(
        delivery.entry,
        "toolName is missing",
        b"{}",
        request.correlation_id if correlation_id is None else correlation_id,
        code=ErrorCode.INVALID_ARGUMENTS,
        tool_call_id=request.tool_call_id,
        enqueued=False,
        channel=channel,
    )


@pytest.mark.guard("bury", "enqueued == 0", "false")
async def test_a_request_that_is_refused_is_answered_once_and_kept(bench: Bench) -> None:
    delivery = await submitted(bench)
    for _ in range(2):
        await refused(bench, delivery)

    answers = await bench.channel(delivery.request)
    assert len(answers) == 1
    (answer,) = answers
    assert isinstance(answer, CallFinished)
    assert answer.outcome.state is CallState.DEAD
    assert answer.outcome.error
    assert (answer.outcome.error.code, "toolName is missing" in answer.outcome.error.message) == (
        ErrorCode.INVALID_ARGUMENTS, True,
    )  # fmt: skip
    assert [letter["reason"] for letter in await bench.dead_letters()] == ["toolName is missing"]
    assert (await bench.backlog(), await bench.pending()) == (0, [])


@pytest.mark.guard("bury", "if named ~= channel then", "if false then")
async def test_a_refusal_goes_to_the_channel_that_was_named_as_well(bench: Bench) -> None:
    delivery = await submitted(bench)
    named = bench.keys.response("of-my-own")
    await refused(bench, delivery, channel=named)

    for channel in (named, delivery.request.response_channel):
        assert await bench.redis.xlen(channel) == 1
        assert 0 < await bench.command("TTL", channel) <= 24 * 3600


@pytest.mark.guard("bury", "id ~= '' and")
async def test_a_refusal_without_a_correlation_id_is_written_to_the_channel_alone(bench: Bench) -> None:
    delivery = await submitted(bench)
    named = bench.keys.response(new_id())
    await refused(bench, delivery, channel=named, correlation_id="")

    assert await bench.redis.xlen(named) == 1
    assert await bench.redis.exists(bench.keys.call(""), bench.keys.response("")) == 0
    assert await bench.backlog() == 0


@pytest.mark.guard("bury", "and enqueued == 0")
async def test_a_broken_request_whose_ledger_was_lost_is_left_to_its_engine(bench: Bench) -> None:
    request = await bench.queued()
    delivery = await bench.deliver()
    await bench.forget(request)
    await bench.worker.bury(delivery.entry, "broken", b"{", request.correlation_id)

    assert await bench.channel(request) == []
    assert len(await bench.dead_letters()) == 1
