"""The response channel: the one home of a reply, for as long as the ledger knows the call."""

import pytest

from plugins_contract.errors import ErrorCode
from plugins_contract.ledger import encode_reply, replies
from plugins_contract.outcomes import CallFinished, CallProgress, CallStarted, CallState
from tests.marks import promise
from tests.support.ledger import DONE, LOST, UNKNOWN, Bench, answered

pytestmark = pytest.mark.every_redis

LARGE = answered("x" * 100_000)


@promise("each entry of a response channel names its call and the provider's call")
async def test_every_entry_says_whose_it_is_and_of_what_kind(bench: Bench) -> None:
    delivery, fence = await bench.running()
    await bench.worker.progress(delivery.request, fence, CallStarted(1))
    await bench.worker.progress(delivery.request, fence, CallProgress(1))
    await bench.worker.complete(delivery, fence, DONE)

    entries = await bench.entries(delivery.request)
    assert [(entry["correlationId"], entry["toolCallId"], entry["kind"]) for entry in entries] == [
        (delivery.request.correlation_id, "call_1", kind) for kind in ("started", "progress", "finished")
    ]


@promise("each entry of a response channel names its call and the provider's call")
async def test_the_end_of_a_call_that_did_not_run_names_its_call_too(bench: Bench) -> None:
    stopped, lost, overdue = [await bench.request() for _ in range(2)] + [await bench.request(expires_in_ms=-1)]
    await bench.cancel(stopped)
    await bench.engine.lose(lost, replies.Loss.MISSING, LOST)
    await bench.engine.enqueue(overdue)
    await bench.start(await bench.deliver())
    buried = await bench.queued()
    delivery = await bench.deliver()
    await bench.worker.bury(delivery.entry, "broken", b"{", buried.correlation_id, tool_call_id="call_1")

    for request in (stopped, lost, overdue, buried):
        (entry,) = await bench.entries(request)
        assert (entry["correlationId"], entry["toolCallId"], entry["kind"]) == (
            request.correlation_id, "call_1", "finished",
        )  # fmt: skip


@pytest.mark.guard(
    "common",
    "redis.call('XRANGE', channel, known[1], known[1])",
    "redis.call('XREVRANGE', channel, '+', '-', 'COUNT', 1)",
)
async def test_another_entry_in_the_channel_is_not_taken_for_the_reply(bench: Bench) -> None:
    delivery, fence = await bench.running()
    await bench.worker.complete(delivery, fence, DONE)
    forged = {"correlationId": "x", "kind": "finished", "reply": encode_reply(CallFinished(UNKNOWN))}
    await bench.redis.xadd(delivery.request.response_channel, forged)

    assert await bench.engine.enqueue(delivery.request) == replies.AlreadyFinished(DONE)


@pytest.mark.guard("common", "if not known[1] then return known[2] or '' end", "if not known[1] then return '' end")
async def test_a_reply_that_the_previous_release_kept_in_the_ledger_is_found(bench: Bench) -> None:
    request = await bench.request()
    reply = encode_reply(CallFinished(DONE))
    await bench.redis.hset(bench.keys.call(request.correlation_id), mapping={"state": "succeeded", "reply": reply})
    await bench.redis.expire(bench.keys.call(request.correlation_id), 60)

    assert await bench.audit(request) == [reply]


@pytest.mark.guard("start", "if reply == '' then", "if false then")
async def test_a_finished_call_whose_channel_was_lost_is_said_to_have_lost_its_reply_also_there(bench: Bench) -> None:
    delivery, fence = await bench.running("repeatable")
    await bench.worker.complete(delivery, fence, DONE)
    await bench.redis.delete(delivery.request.response_channel)

    for answer in (await bench.engine.enqueue(delivery.request), await bench.cancel(delivery.request)):
        assert isinstance(answer, replies.AlreadyFinished)
        assert (answer.outcome.state, answer.outcome.error and answer.outcome.error.code) == (
            CallState.UNKNOWN, ErrorCode.LOST,
        )  # fmt: skip
    assert await bench.audit(delivery.request) == [encode_reply(CallFinished(answer.outcome))]
    for _ in range(2):
        await bench.submit(delivery.request)
        await bench.start(await bench.deliver())
    assert await bench.channel(delivery.request) == [CallFinished(answer.outcome)]
    assert 0 < await bench.command("TTL", delivery.request.response_channel) <= 24 * 3600


async def test_a_cancelled_call_keeps_its_answer_as_long_as_its_ledger(bench: Bench) -> None:
    request = await bench.request()
    await bench.cancel(request)

    keys = bench.keys.call(request.correlation_id), request.response_channel
    ledger, channel = [await bench.command("PEXPIRETIME", key) for key in keys]
    assert await bench.now_ms() < ledger == channel
