"""One delivery from START to COMPLETE, with in-process fakes of the ledger, of the leases and of an MCP server."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest

from plugins_contract.errors import ErrorCode
from plugins_contract.ledger.replies import (
    Abandoned,
    CancelledBefore,
    Completed,
    Duplicate,
    Exhausted,
    NoLedger,
    NothingToDo,
    Run,
    Stale,
    Started,
)
from plugins_contract.messages import ExecutionClass, new_id
from plugins_contract.outcomes import CallProgress, CallState, TextBlock
from plugins_mcp.decisions import Interruption
from plugins_mcp.mcp import Ambiguous, CallResult, NotSent, RetryLater, TimedOut
from plugins_mcp.running_call import PROGRESS_SECONDS, RunningCalls
from tests.marks import promise
from tests.support.handling import (
    DONE,
    Behaviour,
    Bench,
    Facts,
    LeasesTwin,
    LedgerTwin,
    StoppedClock,
    delivery,
    gives,
    hangs,
)
from tests.support.waiting import wait_until

ONCE, REPEATABLE = ExecutionClass.ONCE, ExecutionClass.REPEATABLE


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_call_is_run_under_its_lease_and_its_result_is_written_with_its_fence(bench: Bench) -> None:
    async def look(_: Callable[[CallProgress], None]) -> CallResult:
        assert bench.leases.holding
        assert len(bench.handler) == 1
        assert not any(task.get_name().startswith("reports of") for task in asyncio.all_tasks())
        return DONE

    await bench.handle(look)
    ((fence, outcome, dead),) = bench.ledger.outcomes
    said = (outcome.state, outcome.content, outcome.attempts)
    assert (fence, *said, dead) == (7, CallState.SUCCEEDED, (TextBlock("done"),), 1, "")
    assert bench.server.calls == [
        {"tool": "add", "arguments": {"a": 1}, "timeout_s": 30.0, "meta": {"traceparent": "00-1-2-01"}}
    ]
    assert bench.server.granted_s == 40.0
    assert bench.facts == Facts(ended=[CallState.SUCCEEDED])
    assert not bench.leases.holding
    assert len(bench.handler) == 0


@pytest.mark.parametrize(
    ("started", "execution_class", "state", "code", "dead"),
    [
        (Abandoned(9, 1), ONCE, CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, False),
        (Exhausted(9, 3), ONCE, CallState.DEAD, ErrorCode.UNKNOWN_ERROR, True),
        (NoLedger(), ONCE, CallState.UNKNOWN, ErrorCode.LOST, True),
        (NoLedger(), REPEATABLE, CallState.FAILED, ErrorCode.LOST, True),
        (CancelledBefore(9, 1), ONCE, CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, False),
        (CancelledBefore(9, 1), REPEATABLE, CallState.CANCELLED, ErrorCode.CANCELLED, False),
        (CancelledBefore(9, 0), ONCE, CallState.CANCELLED, ErrorCode.CANCELLED, False),
    ],
)
async def test_what_start_refuses_is_answered_and_not_run(
    bench: Bench, started: Started, execution_class: ExecutionClass, state: CallState, code: ErrorCode, dead: bool
) -> None:
    bench.ledger.started = started
    await bench.handle(hangs, execution_class=execution_class)
    ((fence, outcome, reason),) = bench.ledger.outcomes
    assert (outcome.state, outcome.error.code if outcome.error else None, bool(reason)) == (state, code, dead)
    assert fence == (0 if isinstance(started, NoLedger) else 9)
    assert not bench.server.calls


async def test_a_call_of_another_worker_is_left_alone(bench: Bench) -> None:
    bench.ledger.started = NothingToDo("another worker has it")
    await bench.handle(hangs)
    assert not bench.ledger.outcomes
    assert not bench.server.calls


@pytest.mark.parametrize("begun", [False, True], ids=["not begun", "begun elsewhere"])
async def test_a_call_for_a_server_that_is_not_configured_here_is_left_to_others_and_given_back_if_it_has_begun(
    bench: Bench, begun: bool
) -> None:
    bench.ledger.passes = not begun
    await bench.handle(hangs, server="elsewhere")
    assert bench.ledger.released == [(7, 10_000)] * begun
    assert (bench.ledger.passed, bench.ledger.starts) == ((0, 1) if begun else (1, 0))
    assert not bench.ledger.outcomes


BUSY, OPEN_END = gives(RetryLater("503", 0.01)), gives(Ambiguous("gone"))


@promise("an MCP server killed mid-call leaves exactly the crash table")
@pytest.mark.parametrize(
    ("attempts", "execution_class", "state", "calls"),
    [
        ([BUSY, gives(NotSent("refused")), gives(DONE)], ONCE, CallState.SUCCEEDED, 3),
        ([BUSY], ONCE, CallState.FAILED, 3),
        ([OPEN_END, gives(DONE)], ONCE, CallState.UNKNOWN, 1),
        ([OPEN_END, gives(DONE)], REPEATABLE, CallState.SUCCEEDED, 2),
        ([gives(TimedOut())], REPEATABLE, CallState.FAILED, 1),
    ],
    ids=["not sent", "not sent again and again", "a lost connection", "one of a repeatable call", "too long"],
)
async def test_only_what_was_not_sent_or_may_run_twice_is_run_again(
    bench: Bench, attempts: list[Behaviour], execution_class: ExecutionClass, state: CallState, calls: int
) -> None:
    await bench.handle(*attempts, execution_class=execution_class)
    assert (bench.outcome.state, len(bench.server.calls), bench.facts.retries) == (state, calls, calls - 1)
    assert bench.ledger.starts == 1


@promise("stop reaches the MCP server")
async def test_a_cancelled_call_is_cancelled_at_its_server(bench: Bench) -> None:
    async with bench.handling(hangs, execution_class=ExecutionClass.REPEATABLE):
        bench.leases.cancel()
    assert bench.server.cancelled == 1
    assert bench.outcome.state is CallState.CANCELLED


async def test_a_second_request_to_cancel_does_not_interrupt_the_cancellation_at_the_server(bench: Bench) -> None:
    """The control message and RENEW both report a cancel request. The SDK notifies the server in between."""
    informed = False

    async def cancels_slowly(_: Callable[[CallProgress], None]) -> CallResult:
        nonlocal informed
        try:
            await asyncio.Event().wait()
        finally:
            bench.leases.cancel()
            await asyncio.sleep(0)
            informed = True
        raise AssertionError

    async with bench.handling(cancels_slowly):
        bench.leases.cancel()
    assert informed


async def test_a_call_is_cancelled_by_its_id_and_a_strange_id_does_nothing(bench: Bench) -> None:
    ours = delivery()
    bench.server.behaviours = [hangs]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.handler.handle, ours)
        await wait_until(lambda: bench.server.calls)
        bench.handler.cancel(new_id())
        assert bench.leases.holding
        bench.handler.cancel(ours.request.correlation_id)
    assert bench.outcome.state is CallState.UNKNOWN
    bench.handler.cancel(ours.request.correlation_id)


async def test_a_stop_that_is_heard_before_the_answer_to_start_is_not_missed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = delivery()
    start = bench.ledger.start

    async def overtaken(*args: Any, **kwargs: Any) -> Any:
        started = await start(*args, **kwargs)
        bench.handler.cancel(ours.request.correlation_id)
        return started

    monkeypatch.setattr(bench.ledger, "start", overtaken)
    bench.server.behaviours, bench.server.sends = [hangs], False
    async with asyncio.timeout(10):
        await bench.handler.handle(ours)
    assert bench.outcome.state is CallState.CANCELLED
    assert bench.outcome.error is not None
    assert "before it ran" in bench.outcome.error.message


async def test_a_call_that_was_stopped_in_the_stream_does_not_run_when_redis_has_lost_that(bench: Bench) -> None:
    ours = delivery()
    bench.handler.cancel(ours.request.correlation_id)
    bench.server.behaviours, bench.server.sends = [gives(DONE)], False
    await bench.handler.handle(ours)
    assert (bench.outcome.state, bench.server.calls) == (CallState.CANCELLED, [])


def test_the_calls_that_were_stopped_are_forgotten_after_a_time() -> None:
    calls = RunningCalls(recent_seconds=-1)
    calls.cancel("first")
    calls.cancel("second")  # forgets the first
    assert calls.begin("first").interruption is None
    assert calls.begin("second").interruption is Interruption.CALLER


@pytest.mark.parametrize("lost", [False, True], ids=["cancelled", "its lease is lost"])
async def test_a_call_that_answers_all_the_same_has_that_answer(bench: Bench, lost: bool) -> None:
    async def stubborn(_: Callable[[CallProgress], None]) -> CallResult:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return DONE

    async with bench.handling(stubborn):
        (bench.leases.lose if lost else bench.leases.cancel)()
    assert bench.outcome.state is CallState.SUCCEEDED


@pytest.mark.parametrize("retrying", [False, True], ids=["before it is sent", "while it waits for a retry"])
@pytest.mark.parametrize("lost", [False, True], ids=["cancelled", "its lease is lost"])
async def test_a_call_that_was_not_sent_has_not_run(bench: Bench, retrying: bool, lost: bool) -> None:
    bench.server.sends = retrying
    async with bench.handling(gives(RetryLater("503", 20.0)) if retrying else hangs):
        await wait_until(lambda: bench.facts.retries or not retrying)
        (bench.leases.lose if lost else bench.leases.cancel)()
    if lost:
        assert (bench.ledger.released, bench.ledger.outcomes) == ([(7, 10_000)], [])
        assert bench.facts.lost == 1
    else:
        assert bench.outcome.state is CallState.CANCELLED
        assert bench.outcome.error is not None
        assert "before it ran" in bench.outcome.error.message


async def test_a_repeatable_call_whose_first_attempt_may_have_run_is_not_said_to_have_been_cancelled_before(
    bench: Bench,
) -> None:
    async def ends_openly(_: Callable[[CallProgress], None]) -> CallResult:
        bench.server.sends = False  # the next attempt does not get as far
        return Ambiguous("gone")

    async with bench.handling(ends_openly, hangs, execution_class=REPEATABLE):
        await wait_until(lambda: len(bench.server.calls) == 2)
        bench.leases.cancel()
    assert bench.outcome.error is not None
    assert "while it ran" in bench.outcome.error.message


@pytest.mark.parametrize("lost", [False, True], ids=["a result", "what is said after a lost lease"])
async def test_what_comes_after_another_worker_has_the_call_is_dropped_and_counted_as_lost(
    bench: Bench, lost: bool
) -> None:
    bench.ledger.completes_as = Stale()
    if lost:
        async with bench.handling(hangs):
            bench.leases.lose()
    else:
        await bench.handle(gives(DONE))
    assert bench.facts == Facts(lost=1)


async def test_a_result_that_was_written_already_is_finished(bench: Bench) -> None:
    bench.ledger.completes_as = Duplicate(CallState.SUCCEEDED)
    await bench.handle(gives(DONE))
    assert bench.facts.ended == [CallState.SUCCEEDED]


async def test_while_redis_is_away_start_and_complete_are_asked_again_and_the_lease_is_held(bench: Bench) -> None:
    async def ends(_: Callable[[CallProgress], None]) -> CallResult:
        bench.ledger.away = 2
        return DONE

    bench.ledger.away = 1
    async with bench.handling(ends):
        await wait_until(lambda: bench.ledger.tried >= 4)
        assert bench.leases.holding
        assert not bench.ledger.outcomes
    assert bench.outcome.state is CallState.SUCCEEDED
    assert (bench.ledger.starts, len(bench.server.calls)) == (1, 1)


async def test_a_mistake_in_a_command_is_not_repeated(bench: Bench) -> None:
    async def broken(*_: object, **__: object) -> Completed:
        bench.ledger.tried += 1
        raise RuntimeError("wrong release")

    bench.ledger.complete = broken
    with pytest.raises(RuntimeError, match="wrong release"):
        await bench.handle(gives(DONE))
    assert bench.ledger.tried == 2
    assert not bench.leases.holding


async def test_only_a_call_that_runs_for_a_while_is_reported_as_started_once_with_its_attempt(bench: Bench) -> None:
    bench.ledger.started = Run(9, 2)
    quick, waits, adopted, runs = delivery(), delivery(), replace(delivery(), adopted=True), delivery()
    bench.server.behaviours = [gives(DONE), hangs]
    await bench.handler.handle(quick)
    bench.server.has_slots = False
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.handler.handle, waits)
        await wait_until(lambda: len(bench.server.calls) == 2)
        bench.server.has_slots = True
        tasks.start_soon(bench.handler.handle, adopted)
        await wait_until(lambda: len(bench.server.calls) == 3)
        tasks.start_soon(bench.handler.handle, runs)
        await wait_until(lambda: bench.ledger.notices)  # that of any other would have come before
        for each in (waits, adopted, runs):
            bench.handler.cancel(each.request.correlation_id)
    assert bench.ledger.notices == [(runs.request.correlation_id, 2)]


async def test_progress_before_the_notice_replaces_it_and_progress_after_it_is_not_delayed_by_it(bench: Bench) -> None:
    async def report(on_progress: Callable[[CallProgress], None]) -> CallResult:
        on_progress(CallProgress(1))
        await wait_until(lambda: len(bench.ledger.reported) == 1)
        on_progress(CallProgress(2))
        await wait_until(lambda: len(bench.ledger.reported) == 2)
        return DONE

    await bench.handle(report)
    assert bench.ledger.notices == []

    async def late(on_progress: Callable[[CallProgress], None]) -> CallResult:
        await wait_until(lambda: bench.ledger.notices)
        asked_at = time.monotonic()
        on_progress(CallProgress(3))
        await wait_until(lambda: len(bench.ledger.reported) == 3)
        assert bench.ledger.reported[2][0] - asked_at < PROGRESS_SECONDS / 2
        return DONE

    await bench.handle(late)


async def test_progress_is_passed_on_at_intervals_with_the_newest_first_in_line(bench: Bench) -> None:
    async def report(on_progress: Callable[[CallProgress], None]) -> CallResult:
        steps = itertools.count()

        def step() -> bool:
            on_progress(CallProgress(next(steps), None))
            return len(bench.ledger.reported) >= 3

        await wait_until(step)
        return DONE

    began = time.monotonic()
    await bench.handle(report)
    times, values = zip(*bench.ledger.reported, strict=True)
    assert 2 <= len(values) <= (time.monotonic() - began) / PROGRESS_SECONDS + 1
    assert list(values) == sorted(values)
    assert all(later - earlier >= PROGRESS_SECONDS * 0.9 for earlier, later in itertools.pairwise(times))


async def test_progress_that_comes_after_the_end_goes_nowhere(bench: Bench) -> None:
    sink: list[Callable[[CallProgress], None]] = []

    async def keep(on_progress: Callable[[CallProgress], None]) -> CallResult:
        sink.append(on_progress)
        return DONE

    await bench.handle(keep)
    sink[0](CallProgress(1))
    await anyio.wait_all_tasks_blocked()
    assert not bench.ledger.reported


async def test_neither_a_notice_nor_progress_that_redis_does_not_take_fails_a_call(bench: Bench) -> None:
    async def report(on_progress: Callable[[CallProgress], None]) -> CallResult:
        bench.ledger.away = 1
        await wait_until(lambda: bench.ledger.notices)  # it is sent again
        bench.ledger.away = 1
        on_progress(CallProgress(1))
        await wait_until(lambda: not bench.ledger.away)
        return DONE

    await bench.handle(report)
    assert bench.outcome.state is CallState.SUCCEEDED


async def ended(bench: Bench, execution_class: ExecutionClass, *, retrying: bool = False) -> None:
    """Run a call until this worker ends."""
    bench.server.behaviours = [gives(RetryLater("503", 20.0)) if retrying else hangs]
    work = asyncio.create_task(bench.handler.handle(delivery(execution_class)))
    await wait_until(lambda: bench.facts.retries if retrying else bench.server.calls)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert bench.server.cancelled == (0 if retrying else 1)
    assert len(bench.handler) == 0
    assert not bench.leases.holding


@pytest.mark.parametrize("execution_class", [ONCE, REPEATABLE])
@pytest.mark.parametrize("lost", [True, False], ids=["its lease is lost", "its worker ends"])
async def test_a_call_that_is_cut_off_while_it_runs_is_unknown_or_left_to_the_next_worker(
    bench: Bench, execution_class: ExecutionClass, lost: bool
) -> None:
    if lost:
        async with bench.handling(hangs, execution_class=execution_class):
            bench.leases.lose()
    else:
        await ended(bench, execution_class)
    assert bench.server.cancelled == 1
    assert [outcome.state for _, outcome, _ in bench.ledger.outcomes] == [CallState.UNKNOWN] * (execution_class is ONCE)
    assert not bench.ledger.released
    assert bench.facts.lost == lost


@pytest.mark.parametrize("execution_class", [ONCE, REPEATABLE])
@pytest.mark.parametrize("retrying", [True, False])
async def test_a_worker_that_ends_gives_back_what_was_not_sent(
    bench: Bench, execution_class: ExecutionClass, retrying: bool
) -> None:
    bench.server.sends = False
    await ended(bench, execution_class, retrying=retrying)
    assert bench.ledger.released == [(7, 10_000)]
    assert not bench.ledger.outcomes


async def test_a_worker_that_ends_while_redis_is_away_does_not_wait_for_it() -> None:
    bench = Bench(shutdown_write_seconds=0.2)
    bench.server.behaviours = [hangs]
    work = asyncio.create_task(bench.handler.handle(delivery()))
    await wait_until(lambda: bench.server.calls)
    bench.ledger.away = 1_000
    work.cancel()
    done, _ = await asyncio.wait([work], timeout=5)
    assert done
    assert not bench.ledger.outcomes


async def test_a_call_whose_server_of_redis_changed_after_its_start_is_started_again_there_and_sent_once() -> None:
    bench = Bench(leases=LeasesTwin(servers=["before", "after"]))
    await bench.handle(gives(DONE))
    assert (bench.ledger.reported_at, len(bench.server.calls)) == (["before", "after"], 1)
    assert bench.outcome.state is CallState.SUCCEEDED


async def test_a_start_that_must_wait_is_asked_again_until_it_is_decided() -> None:
    bench = Bench(ledger=LedgerTwin(not_yet=2, started=Abandoned(7, 0)))
    await bench.handle()
    assert (bench.ledger.starts, bench.server.calls) == (3, [])
    assert bench.outcome.state is CallState.UNKNOWN


async def test_nothing_is_sent_to_a_server_when_no_time_is_left(bench: Bench) -> None:
    await bench.handle(gives(DONE), deadline=StoppedClock().now_ms())
    assert (bench.server.calls, bench.outcome.state) == ([], CallState.FAILED)
    assert "it was not run" in (bench.outcome.error.message if bench.outcome.error else "")
