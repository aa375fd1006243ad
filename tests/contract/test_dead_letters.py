"""Dead letters: what they tell, and that each is requeued or discarded once."""

import anyio
import pytest

from plugins_contract.dead_letters import OPERATORS, DeadLetter, DeadLetters, Requeued, read_letter
from plugins_contract.encryption import CLEAR
from plugins_contract.errors import ErrorCode
from plugins_contract.ledger import replies
from plugins_contract.ledger.group import read_backlog
from plugins_contract.messages import ToolCallRequested, encode_request
from plugins_contract.outcomes import CallState, ToolOutcome
from tests.marks import promise
from tests.support.ledger import DONE, LEASE_MS, MINUTE_MS, Bench

pytestmark = pytest.mark.every_redis

EXHAUSTED = ToolOutcome.failure(CallState.DEAD, ErrorCode.UNKNOWN_ERROR, "begun 2 times")


async def dead(bench: Bench, execution_class: str = "repeatable") -> DeadLetter:
    """A call that two workers have begun, the second of which gave it up."""
    delivery, _ = await bench.running(execution_class)
    second = await bench.claim(delivery, "b")
    match await bench.start(second):
        case replies.Run(fence, _) | replies.Abandoned(fence, _):
            await bench.worker.complete(second, fence, EXHAUSTED, dead_reason="begun 2 times")
        case other:
            raise AssertionError(other)
    return await only(bench)


async def only(bench: Bench) -> DeadLetter:
    (letter,) = [letter async for letter in letters(bench).newest_first()]
    return letter


def letters(bench: Bench) -> DeadLetters:
    return DeadLetters(bench.redis, bench.keys, cipher=CLEAR)


async def again(bench: Bench, letter: DeadLetter) -> ToolCallRequested:
    assert letter.request is not None
    return letters(bench).again(letter.request, deadline=await bench.now_ms() + MINUTE_MS)


async def test_an_attempt_that_was_given_back_is_in_the_history_too(bench: Bench) -> None:
    delivery, fence = await bench.running()
    await bench.worker.release(delivery, fence, lease_ms=LEASE_MS)
    second = await bench.claim(delivery, "b")
    fence = await bench.run(second)
    await bench.worker.complete(second, fence, EXHAUSTED, dead_reason="begun")

    happened = [(each.what, each.worker) for each in (await only(bench)).history]
    assert happened == [("started", "a"), ("released", "a"), ("started", "b")]


@pytest.mark.guard("requeue", "'ledger', 1,")
@pytest.mark.guard("requeue", "keep_while_open(call, deadline)")
async def test_a_requeued_call_is_a_new_one_that_runs_as_any_other(bench: Bench) -> None:
    letter = await dead(bench)
    assert [(each.what, each.worker) for each in letter.history] == [("started", "a"), ("lost", "a"), ("started", "b")]
    assert (letter.worker, letter.starts, letter.outcome) == ("b", 2, EXHAUSTED)
    new = await again(bench, letter)

    assert await letters(bench).requeue(letter, new) == Requeued(new.correlation_id, new.deadline)
    assert await bench.dead_letters() == []
    [(_, fields)] = await bench.redis.xrange(bench.keys.requests)
    assert fields.get(b"ledger") == b"1"
    assert await bench.command("PTTL", bench.keys.call(new.correlation_id)) > MINUTE_MS
    assert letter.request is not None
    assert (await bench.ledger(new))["requeuedFrom"] == letter.correlation_id
    assert (await bench.ledger(letter.request))["requeuedAs"] == new.correlation_id
    delivery = await bench.deliver("c")
    assert delivery.request == new
    assert new.mailbox == bench.keys.mailbox(OPERATORS)
    assert await bench.worker.complete(delivery, await bench.run(delivery), DONE) == replies.Completed()
    assert await letters(bench).outcome(new.correlation_id) == DONE


@pytest.mark.guard("requeue", "redis.call('EXISTS', dead_call) == 1", "true")
async def test_a_dead_call_that_redis_has_forgotten_is_not_brought_back(bench: Bench) -> None:
    letter = await dead(bench)
    await bench.command("DEL", bench.keys.call(letter.correlation_id))
    await letters(bench).requeue(letter, await again(bench, letter))

    assert await bench.command("EXISTS", bench.keys.call(letter.correlation_id)) == 0


@promise("operators list, show, requeue and discard dead letters")
@pytest.mark.guard("requeue", "if not stands(dead, letter, event)", "if false")
@pytest.mark.guard("requeue", "redis.call('XDEL', dead, letter)")
async def test_one_of_many_operators_requeues(bench: Bench) -> None:
    letter = await dead(bench)
    answers: list[Requeued | None] = []

    async def requeue() -> None:
        answers.append(await letters(bench).requeue(letter, await again(bench, letter)))

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(requeue)

    assert len([answer for answer in answers if answer]) == 1
    assert await bench.backlog() == 1


@promise("operators list, show, requeue and discard dead letters")
@pytest.mark.guard("requeue", "if entry then", "if false then")
async def test_a_requeue_whose_answer_was_lost_may_be_asked_for_again(bench: Bench) -> None:
    letter = await dead(bench)
    new = await again(bench, letter)
    expected = Requeued(new.correlation_id, new.deadline)

    assert [await letters(bench).requeue(letter, new) for _ in range(2)] == [expected, expected]
    assert await bench.backlog() == 1


async def put_another_in_its_place(bench: Bench, letter: DeadLetter) -> None:
    """Redis has lost its data, and by chance the id is that of another letter now."""
    await bench.command("DEL", bench.keys.dead)
    await bench.command("XADD", bench.keys.dead, letter.id, "reason", "another", "event", "{}")


@pytest.mark.guard("letters", "== event\nend", "~= ''\nend")
async def test_a_letter_that_is_another_by_now_is_neither_requeued_nor_discarded(bench: Bench) -> None:
    letter = await dead(bench)
    await put_another_in_its_place(bench, letter)

    assert await letters(bench).requeue(letter, await again(bench, letter)) is None
    assert not await letters(bench).discard(letter)
    assert await bench.backlog() == 0
    assert (await only(bench)).reason == "another"


@pytest.mark.guard("discard", "if not stands(dead, letter, event)", "if false")
async def test_a_letter_is_discarded_once_and_not_requeued_then(bench: Bench) -> None:
    letter = await dead(bench)
    assert (await read_backlog(bench.redis, bench.keys)).dead == 1

    assert [await letters(bench).discard(letter) for _ in range(2)] == [True, False]
    assert await letters(bench).requeue(letter, await again(bench, letter)) is None
    assert ((await read_backlog(bench.redis, bench.keys)).dead, await bench.backlog()) == (0, 0)


@pytest.mark.guard("requeue", "redis.call('EXISTS', requests) == 0", "false")
async def test_a_requeue_makes_stream_and_group_when_they_are_gone(bench: Bench) -> None:
    letter = await dead(bench)
    await bench.command("DEL", bench.keys.requests)
    await letters(bench).requeue(letter, await again(bench, letter))

    assert await bench.command("XINFO", "GROUPS", bench.keys.requests)
    assert await bench.next_delivery("c") is not None


@pytest.mark.parametrize(
    ("execution_class", "starts", "risky"),
    [("once", b"1", True), ("once", b"0", False), ("once", b"", True), ("repeatable", b"2", False)],
)
async def test_a_once_call_that_may_have_begun_may_have_run(
    bench: Bench, execution_class: str, starts: bytes, risky: bool
) -> None:
    event = encode_request(await bench.request(execution_class))

    assert read_letter("1-0", {b"event": event, b"starts": starts}, cipher=CLEAR).may_have_run is risky


async def test_a_call_whose_ledger_was_lost_may_have_run(bench: Bench) -> None:
    delivery, _ = await bench.running()
    await bench.command("DEL", bench.keys.call(delivery.request.correlation_id))
    await bench.worker.complete(delivery, 0, EXHAUSTED, dead_reason="its ledger is gone")

    assert (await only(bench)).may_have_run


async def test_letters_are_read_page_by_page_from_the_newest_and_since_a_time(bench: Bench) -> None:
    for at in range(1, 251):
        await bench.command("XADD", bench.keys.dead, f"{at}-0", "reason", str(at), "event", "{")

    read = [letter.reason async for letter in letters(bench).newest_first()]
    assert read == [str(at) for at in range(250, 0, -1)]
    assert [letter.reason async for letter in letters(bench).newest_first(since_ms=249)] == ["250", "249"]


def test_a_request_of_another_version_still_tells_its_tool() -> None:
    letter = read_letter(
        "1-0", {b"event": b'{"eventVersion":9,"server":"demo","tool":"add","subject":7}'}, cipher=CLEAR
    )

    assert [letter.word(field) for field in ("server", "tool", "subject")] == ["demo", "add", ""]
