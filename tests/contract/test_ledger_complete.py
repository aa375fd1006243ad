"""COMPLETE, PROGRESS and BURY: the one terminal answer, and what goes with it."""

import re

import msgspec
import pytest

from plugins_contract.encryption import CLEAR
from plugins_contract.errors import ErrorCode
from plugins_contract.keys import GROUP
from plugins_contract.ledger import decode_reply, encode_reply, replies
from plugins_contract.messages import encode_request
from plugins_contract.outcomes import CallFinished, CallProgress, CallState, ToolOutcome
from tests.marks import promise
from tests.support.ledger import DONE, ENGINE, LEASE_MS, LOST, UNKNOWN, Bench, answered

pytestmark = pytest.mark.every_redis

INLINE_BYTES = 16 * 1024
EXHAUSTED = ToolOutcome.failure(CallState.DEAD, ErrorCode.NETWORK_ERROR, "It was tried three times.")


def outcome_of(size: int) -> ToolOutcome:
    """An outcome whose terminal reply is `size` bytes long."""
    frame = len(encode_reply(CallFinished(answered(""))))
    return answered("x" * (size - frame))


@promise("the reply of a call is stored once, in its response channel, as long as the ledger")
@promise("I5 a request stays until its terminal state is written")
@pytest.mark.guard("common", "  notify(channel, mailbox, id, reply)")
@pytest.mark.guard("common", "    redis.pcall('XACK', requests, group, entry)")
@pytest.mark.guard("common", "    redis.pcall('XDEL', requests, entry)")
async def test_the_outcome_is_stored_once_the_mailbox_is_notified_and_the_request_goes(bench: Bench) -> None:
    delivery, fence = await bench.running()
    assert (await bench.backlog(), len(await bench.pending())) == (1, 1)

    assert await bench.worker.complete(delivery, fence, DONE) == replies.Completed()

    ledger = await bench.ledger(delivery.request)
    assert ledger["state"] == "succeeded"
    assert not [field for field in ledger.values() if "done" in field]
    assert await bench.channel(delivery.request) == [CallFinished(DONE)]
    notified = [(call, decode_reply(payload, cipher=CLEAR)) for call, payload in await bench.mailbox()]
    assert notified == [(delivery.request.correlation_id, CallFinished(DONE))]
    assert (await bench.backlog(), await bench.pending()) == (0, [])


@pytest.mark.parametrize("state", [state for state in CallState if state.terminal])
async def test_every_terminal_state_is_kept_as_it_is(bench: Bench, state: CallState) -> None:
    delivery, fence = await bench.running()
    await bench.worker.complete(delivery, fence, msgspec.structs.replace(DONE, state=state))

    assert (await bench.ledger(delivery.request))["state"] == state
    assert await bench.start(delivery) == replies.NothingToDo(f"it is {state} already")


@promise("I3 one terminal response per correlation id")
@promise("the reply of a call is stored once, in its response channel, as long as the ledger")
@pytest.mark.guard("complete", "TERMINAL[known[1]]", "false")
@pytest.mark.guard("progress", "known[1] ~= 'started'", "false")
@pytest.mark.guard("renew", "TERMINAL[state] or")
@pytest.mark.guard("enqueue", "if TERMINAL[known[1]]", "if false")
@pytest.mark.guard("cancel", "if TERMINAL[known[1]]", "if false")
@pytest.mark.guard("lose", "if TERMINAL[known[1]] then", "if false then")
@pytest.mark.guard("audit", "if TERMINAL[known[1]] then", "if false then")
async def test_a_finished_call_stays_as_it_is_and_its_reply_is_the_answer_to_everything(bench: Bench) -> None:
    delivery, fence = await bench.running()
    request, large = delivery.request, answered("x" * 100_000)
    await bench.worker.complete(delivery, fence, large)

    assert await bench.worker.complete(delivery, fence, UNKNOWN) == replies.Duplicate(CallState.SUCCEEDED)
    assert not await bench.worker.progress(request, fence, CallProgress(1))
    assert bench.renew(delivery, fence) == replies.Stale()
    assert await bench.worker.release(delivery, fence, lease_ms=LEASE_MS) == replies.Stale()
    assert await bench.engine.enqueue(request) == replies.AlreadyFinished(large)
    assert await bench.cancel(request) == replies.AlreadyFinished(large)
    assert await bench.engine.lose(request, replies.Loss.MISSING, LOST) == replies.AlreadyFinished(large)
    assert await bench.audit(request) == [encode_reply(CallFinished(large))]
    assert (await bench.ledger(request))["state"] == "succeeded"
    assert await bench.channel(request) == [CallFinished(large)]
    assert await bench.backlog() == 0


@promise("I2 only the current fence completes")
@pytest.mark.guard("start", "next_fence(known[4])", "tonumber(known[4])")
@pytest.mark.guard("complete", "not speaks(fence, known[1], known[2], known[3])", "false")
async def test_only_the_current_fence_completes(bench: Bench) -> None:
    delivery, stale_fence = await bench.running("repeatable")
    taken = await bench.claim(delivery, "b")
    fence = await bench.run(taken)

    assert await bench.worker.complete(delivery, stale_fence, EXHAUSTED, dead_reason="tried") == replies.Stale()
    assert await bench.dead_letters() == []
    assert (await bench.ledger(delivery.request))["state"] == "started"
    assert len(await bench.pending()) == 1
    assert await bench.worker.complete(taken, fence, DONE) == replies.Completed()


@pytest.mark.guard("common", "if fence >= tonumber(current or 0)", "if current and fence >= tonumber(current)")
async def test_a_result_in_hand_is_written_even_when_the_ledger_is_gone(bench: Bench) -> None:
    delivery, fence = await bench.running()
    await bench.redis.flushall()

    assert await bench.worker.complete(delivery, fence, DONE) == replies.Completed()
    assert await bench.worker.complete(delivery, fence, DONE) == replies.Duplicate(CallState.SUCCEEDED)
    assert await bench.channel(delivery.request) == [CallFinished(DONE)]


@promise("the reply of a call is stored once, in its response channel, as long as the ledger")
@pytest.mark.guard("common", "  redis.call('EXPIRE', call, 86400)")
@pytest.mark.guard("common", "  redis.call('EXPIRE', channel, 86400)")
@pytest.mark.guard("common", "redis.call('EXPIRE', mailbox, 86400)")
@pytest.mark.guard("common", "string.sub(added, -2) == '-0'", "false")
async def test_everything_of_a_finished_call_has_a_lifetime_and_lengthens_that_of_the_mailbox(bench: Bench) -> None:
    delivery, fence = await bench.running()
    await bench.redis.xadd(bench.keys.mailbox(ENGINE), {"id": "of another call", "reply": ""}, id="1-1")
    await bench.redis.expire(bench.keys.mailbox(ENGINE), 60)
    await bench.worker.complete(delivery, fence, DONE)

    lifetimes = {
        bench.keys.call(delivery.request.correlation_id): 24 * 3600,
        delivery.request.response_channel: 24 * 3600,
        bench.keys.mailbox(ENGINE): 24 * 3600,
    }
    for key, seconds in lifetimes.items():
        assert seconds - 5 <= await bench.command("TTL", key) <= seconds, key


@pytest.mark.parametrize(("size", "inline"), [(INLINE_BYTES, True), (INLINE_BYTES + 1, False)])
async def test_the_mailbox_entry_has_the_payload_up_to_16_kib(bench: Bench, size: int, inline: bool) -> None:
    delivery, fence = await bench.running()
    outcome = outcome_of(size)
    await bench.worker.complete(delivery, fence, outcome)

    payload = encode_reply(CallFinished(outcome))
    assert len(payload) == size
    assert (await bench.mailbox())[-1] == (delivery.request.correlation_id, payload if inline else b"")
    assert (await bench.channel(delivery.request))[-1] == CallFinished(outcome)


@pytest.mark.guard("common", "'XADD', mailbox, 'MAXLEN', '~', 4096,", "'XADD', mailbox,")
@pytest.mark.guard("common", "'XADD', channel, 'MAXLEN', '~', 256,", "'XADD', channel,")
async def test_mailbox_and_channel_are_trimmed_and_the_terminal_entry_stays(bench: Bench) -> None:
    delivery, fence = await bench.running()
    fill = "for _ = 1, 5000 do redis.call('XADD', KEYS[1], '*', 'reply', '') end"
    for key in (bench.keys.mailbox(ENGINE), delivery.request.response_channel):
        await bench.command("EVAL", fill, 1, key)
    await bench.worker.progress(delivery.request, fence, CallProgress(1))
    large = answered("x" * 100_000)
    await bench.worker.complete(delivery, fence, large)

    assert await bench.redis.xlen(bench.keys.mailbox(ENGINE)) < 4_500
    assert await bench.redis.xlen(delivery.request.response_channel) < 500
    assert await bench.engine.enqueue(delivery.request) == replies.AlreadyFinished(large)


@pytest.mark.guard("progress", "known[2] ~= fence", "false")
async def test_progress_is_passed_on_under_the_current_fence_and_no_other(bench: Bench) -> None:
    delivery, fence = await bench.running("repeatable")
    step = CallProgress(1, 3, "one of three")
    assert await bench.worker.progress(delivery.request, fence, step)
    assert await bench.channel(delivery.request) == [step]
    assert decode_reply((await bench.mailbox())[-1][1], cipher=CLEAR) == step

    await bench.start(await bench.claim(delivery, "b"))
    assert not await bench.worker.progress(delivery.request, fence, CallProgress(2))
    assert CallProgress(2) not in await bench.channel(delivery.request)


@promise("a dead letter answers its caller too")
@pytest.mark.guard("complete", "if reason ~= ''", "if false")
async def test_a_dead_letter_answers_its_caller_too(bench: Bench) -> None:
    delivery, fence = await bench.running()
    await bench.worker.complete(delivery, fence, EXHAUSTED, dead_reason="3 attempts")

    expected = {
        "reason": "3 attempts",
        "correlationId": delivery.request.correlation_id,
        "entry": delivery.entry,
        "starts": "1",
        "worker": delivery.consumer,
        "reply": encode_reply(CallFinished(EXHAUSTED)).decode(),
        "event": encode_request(delivery.request).decode(),
    }
    letters = await bench.dead_letters()
    assert len(letters) == 1
    (letter,) = letters
    assert re.fullmatch(rf"\d{{13}} started {delivery.consumer}\n", letter.pop("history"))
    assert letter == expected
    assert (await bench.channel(delivery.request))[-1] == CallFinished(EXHAUSTED)


async def unreadable(bench: Bench) -> str:
    """An entry that no worker can read, in the hands of consumer `a`."""
    await bench.redis.xadd(bench.keys.requests, {"event": b"{"})
    rows = await bench.redis.xreadgroup(GROUP, "a", {bench.keys.requests: ">"})
    return rows[0][1][-1][0].decode()


@pytest.mark.guard("bury", "if not worker then", "worker = worker or ''; if false then")
async def test_an_entry_that_cannot_be_read_is_buried_once(bench: Bench) -> None:
    entry = await unreadable(bench)
    for _ in range(2):
        await bench.worker.bury(entry, "not JSON", b"{")

    letters = await bench.dead_letters()
    assert len(letters) == 1
    (letter,) = letters
    assert letter.items() >= {"reason": "not JSON", "entry": entry, "worker": "a", "reply": "", "event": "{"}.items()
    assert (await bench.backlog(), await bench.pending()) == (0, [])


@pytest.mark.guard("bury", "if its_call then", "if false then")
async def test_the_call_of_a_buried_entry_is_answered(bench: Bench) -> None:
    delivery = await bench.read()
    await bench.worker.bury(delivery.entry, "version 2", b"{}", delivery.request.correlation_id)

    assert (await bench.ledger(delivery.request))["state"] == "dead"
    (answer,) = await bench.channel(delivery.request)
    assert isinstance(answer, CallFinished)
    assert [call for call, _ in await bench.mailbox()] == [delivery.request.correlation_id]
    assert (await bench.backlog(), await bench.pending()) == (0, [])


@pytest.mark.guard("bury", "known[2] == entry and")
async def test_an_unreadable_duplicate_does_not_end_its_call_and_changes_nothing_of_its_end(bench: Bench) -> None:
    delivery, fence = await bench.running()
    await bench.worker.bury(await unreadable(bench), "not JSON", b"{", delivery.request.correlation_id)
    assert await bench.worker.complete(delivery, fence, DONE) == replies.Completed()

    await bench.worker.bury(await unreadable(bench), "not JSON", b"{", delivery.request.correlation_id)
    assert await bench.channel(delivery.request) == [CallFinished(DONE)]
    assert await bench.backlog() == 0
