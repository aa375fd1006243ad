"""One delivery from START to COMPLETE, with in-process twins of the ledger, of the leases and of an MCP server."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from mcp.types import CallToolResult, TextContent
from redis.exceptions import ConnectionError as RedisConnectionError

from plugins_contract.clock import Clock
from plugins_contract.errors import ErrorCode
from plugins_contract.ids import new_id
from plugins_contract.ledger import Delivery
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
from plugins_contract.messages import ExecutionClass, ToolCallRequested
from plugins_contract.outcomes import CallProgress, CallState, TextBlock, ToolOutcome
from plugins_mcp.handler import CallHandler
from plugins_mcp.mcp import Ambiguous, Answered, CallResult, NotSent, RetryLater, TimedOut
from plugins_mcp.ports import CallLedger, Leases, Observer, ToolServer, ToolServers
from plugins_mcp.progress import PROGRESS_SECONDS
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

DONE = Answered(CallToolResult(content=[TextContent(type="text", text="done")]))
Behaviour = Callable[[Callable[[CallProgress], None]], Awaitable[CallResult]]


@dataclass
class LedgerTwin(CallLedger):
    """Answers START as told, and keeps what was written."""

    started: Started = field(default_factory=lambda: Run(7, 1))
    completes_as: Completed | Stale | Duplicate = field(default_factory=Completed)
    away: int = 0
    """So many commands find no Redis."""
    tried: int = 0
    starts: int = 0
    outcomes: list[tuple[int, ToolOutcome, str]] = field(default_factory=list[tuple[int, ToolOutcome, str]])
    released: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    reported: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def _reach(self) -> None:
        self.tried += 1
        if self.away:
            self.away -= 1
            raise RedisConnectionError("away")

    async def start(self, delivery: Delivery, *, max_starts: int, expired: ToolOutcome) -> Started:
        self._reach()
        assert expired.state is CallState.EXPIRED
        self.starts += 1
        return self.started

    async def progress(self, request: ToolCallRequested, fence: int, progress: CallProgress) -> bool:
        self._reach()
        assert not self.outcomes
        self.reported.append((time.monotonic(), progress.progress))
        return True

    async def complete(
        self, delivery: Delivery, fence: int, outcome: ToolOutcome, *, dead_reason: str = ""
    ) -> Completed | Stale | Duplicate:
        self._reach()
        self.outcomes.append((fence, outcome, dead_reason))
        return self.completes_as

    async def release(self, delivery: Delivery, fence: int, *, lease_ms: int) -> Completed | Stale:
        self._reach()
        self.released.append((fence, lease_ms))
        return Completed()


@dataclass
class LeasesTwin(Leases):
    """Holds one lease, which a test may cancel or take away."""

    holding: bool = False
    held_for: list[int] = field(default_factory=list[int])
    cancel: Callable[[], None] = lambda: None
    lose: Callable[[], None] = lambda: None

    @contextlib.contextmanager
    def held(
        self,
        delivery: Delivery,
        fence: int,
        *,
        since: float,
        on_cancel: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> Generator[None]:
        assert 0 <= time.monotonic() - since < 5
        self.holding, self.cancel, self.lose = True, on_cancel, on_lost
        self.held_for.append(fence)
        try:
            yield
        finally:
            self.holding = False


@dataclass
class ServerTwin(ToolServer):
    """An MCP server: each call takes the next behaviour, and the last one again and again."""

    behaviours: list[Behaviour] = field(default_factory=list[Behaviour])
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    cancelled: int = 0

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        *,
        timeout_s: float,
        on_progress: Callable[[CallProgress], None] = lambda progress: None,
        meta: dict[str, Any] | None = None,
    ) -> CallResult:
        self.calls.append({"tool": tool, "arguments": arguments, "timeout_s": timeout_s, "meta": meta})
        behaviour = self.behaviours[min(len(self.calls), len(self.behaviours)) - 1]
        try:
            return await behaviour(on_progress)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


@dataclass
class Facts(Observer):
    """What was counted."""

    ended: list[CallState] = field(default_factory=list[CallState])
    retries: int = 0
    lost: int = 0

    def finished(self, request: ToolCallRequested, outcome: ToolOutcome) -> None:
        self.ended.append(outcome.state)

    def retried(self, request: ToolCallRequested) -> None:
        self.retries += 1

    def lease_lost(self, request: ToolCallRequested) -> None:
        self.lost += 1


class StoppedClock(Clock):
    """It is always the same time."""

    def now_ms(self) -> int:
        return 1_000_000


def gives(result: CallResult) -> Behaviour:
    async def behave(_: Callable[[CallProgress], None]) -> CallResult:
        return result

    return behave


async def hangs(_: Callable[[CallProgress], None]) -> CallResult:
    await asyncio.Event().wait()
    raise AssertionError


@dataclass
class Bench(ToolServers):
    """A handler among its twins."""

    ledger: LedgerTwin = field(default_factory=LedgerTwin)
    leases: LeasesTwin = field(default_factory=LeasesTwin)
    server: ServerTwin = field(default_factory=ServerTwin)
    facts: Facts = field(default_factory=Facts)
    handler: CallHandler = field(init=False)

    def __post_init__(self) -> None:
        self.handler = CallHandler(
            self.ledger,
            self,
            self.leases,
            StoppedClock(),
            self.facts,
            max_retries=2,
            result_max_bytes=4096,
            lease_ms=10_000,
        )

    def get(self, server: str) -> ToolServer | None:
        return self.server if server == "demo" else None

    async def handle(
        self, *behaviours: Behaviour, execution_class: ExecutionClass = ExecutionClass.ONCE, server: str = "demo"
    ) -> None:
        self.server.behaviours = list(behaviours)
        await self.handler.handle(delivery(execution_class, server))

    @asynccontextmanager
    async def handling(
        self, *behaviours: Behaviour, execution_class: ExecutionClass = ExecutionClass.ONCE
    ) -> AsyncGenerator[None]:
        """Enter once the lease is held, leave when the handler is through."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: self.handle(*behaviours, execution_class=execution_class))
            await wait_until(lambda: self.leases.holding and self.server.calls)
            yield

    @property
    def outcome(self) -> ToolOutcome:
        ((_, outcome, _),) = self.ledger.outcomes
        return outcome


def delivery(execution_class: ExecutionClass = ExecutionClass.ONCE, server: str = "demo") -> Delivery:
    request = ToolCallRequested(
        correlation_id=new_id(),
        session_id="s",
        turn_id="t",
        turn=1,
        tool_call_id="c",
        tool_name="demo__add",
        server=server,
        tool="add",
        arguments={"a": 1},
        response_channel="r",
        mailbox="m",
        deadline=1_030_000,
        execution_class=execution_class,
        subject="u",
        traceparent="00-1-2-01",
    )
    return Delivery(request, "1-1", "me", "token")


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_call_is_run_under_its_lease_and_its_result_is_written_with_its_fence(bench: Bench) -> None:
    async def look(_: Callable[[CallProgress], None]) -> CallResult:
        assert bench.leases.holding
        assert len(bench.handler) == 1
        return DONE

    await bench.handle(look)
    ((fence, outcome, dead),) = bench.ledger.outcomes
    assert (fence, outcome.state, outcome.content, outcome.attempts) == (
        7,
        CallState.SUCCEEDED,
        (TextBlock("done"),),
        1,
    )
    assert dead == ""
    assert bench.server.calls == [
        {"tool": "add", "arguments": {"a": 1}, "timeout_s": 30.0, "meta": {"traceparent": "00-1-2-01"}}
    ]
    assert bench.facts == Facts(ended=[CallState.SUCCEEDED])
    assert not bench.leases.holding
    assert len(bench.handler) == 0


@pytest.mark.parametrize(
    ("started", "state", "code", "dead"),
    [
        (Abandoned(9, 1), CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, False),
        (Exhausted(9, 3), CallState.DEAD, ErrorCode.UNKNOWN_ERROR, True),
        (NoLedger(), CallState.FAILED, ErrorCode.LOST, True),
        (CancelledBefore(9, 1), CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, False),
    ],
)
async def test_what_start_refuses_is_answered_and_not_run(
    bench: Bench, started: Started, state: CallState, code: ErrorCode, dead: bool
) -> None:
    bench.ledger.started = started
    await bench.handle(hangs)
    ((fence, outcome, reason),) = bench.ledger.outcomes
    assert (outcome.state, outcome.error.code if outcome.error else None, bool(reason)) == (state, code, dead)
    assert fence == (0 if isinstance(started, NoLedger) else 9)
    assert not bench.server.calls


async def test_a_repeatable_call_that_was_cancelled_before_ends_as_cancelled(bench: Bench) -> None:
    bench.ledger.started = CancelledBefore(9, 1)
    await bench.handle(hangs, execution_class=ExecutionClass.REPEATABLE)
    assert bench.outcome.state is CallState.CANCELLED


async def test_what_is_no_business_of_ours_is_left_alone(bench: Bench) -> None:
    bench.ledger.started = NothingToDo("another worker has it")
    await bench.handle(hangs)
    assert not bench.ledger.outcomes
    assert not bench.server.calls


async def test_a_call_for_a_server_that_is_not_configured_here_is_given_back(bench: Bench) -> None:
    await bench.handle(hangs, server="elsewhere")
    assert bench.ledger.released == [(7, 10_000)]
    assert not bench.ledger.outcomes


async def test_what_was_not_sent_is_run_again(bench: Bench) -> None:
    await bench.handle(gives(RetryLater("503", 0.01)), gives(NotSent("refused")), gives(DONE))
    assert bench.outcome.state is CallState.SUCCEEDED
    assert len(bench.server.calls) == 3
    assert bench.facts.retries == 2
    assert bench.ledger.starts == 1


async def test_retries_end(bench: Bench) -> None:
    await bench.handle(gives(RetryLater("503", 0.01)))
    assert len(bench.server.calls) == 3
    assert bench.outcome.state is CallState.FAILED


async def test_a_call_that_may_not_run_twice_is_not_repeated_after_a_lost_connection(bench: Bench) -> None:
    await bench.handle(gives(Ambiguous("gone")), gives(DONE))
    assert bench.outcome.state is CallState.UNKNOWN
    assert len(bench.server.calls) == 1


async def test_a_call_that_may_run_twice_is(bench: Bench) -> None:
    await bench.handle(gives(Ambiguous("gone")), gives(DONE), execution_class=ExecutionClass.REPEATABLE)
    assert bench.outcome.state is CallState.SUCCEEDED


async def test_a_call_that_took_too_long_is_not_run_again(bench: Bench) -> None:
    await bench.handle(gives(TimedOut()), execution_class=ExecutionClass.REPEATABLE)
    assert bench.outcome.error is not None
    assert bench.outcome.error.code is ErrorCode.TIMEOUT
    assert len(bench.server.calls) == 1


async def test_a_cancelled_call_is_cancelled_at_its_server(bench: Bench) -> None:
    async with bench.handling(hangs, execution_class=ExecutionClass.REPEATABLE):
        bench.leases.cancel()
    assert bench.server.cancelled == 1
    assert bench.outcome.state is CallState.CANCELLED


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


async def test_a_call_that_answers_in_spite_of_its_cancellation_has_that_answer(bench: Bench) -> None:
    async def stubborn(_: Callable[[CallProgress], None]) -> CallResult:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return DONE

    async with bench.handling(stubborn):
        bench.leases.cancel()
    assert bench.outcome.state is CallState.SUCCEEDED


async def test_a_call_cancelled_while_it_waits_for_a_retry_has_not_run(bench: Bench) -> None:
    async with bench.handling(gives(RetryLater("503", 20.0))):
        await wait_until(lambda: bench.facts.retries)
        bench.leases.cancel()
    assert bench.outcome.state is CallState.CANCELLED
    assert bench.outcome.error is not None
    assert "before it ran" in bench.outcome.error.message


async def test_nothing_is_written_for_a_lease_that_is_lost_during_the_call(bench: Bench) -> None:
    async with bench.handling(hangs):
        bench.leases.lose()
    assert bench.server.cancelled == 1
    assert not bench.ledger.outcomes
    assert bench.facts == Facts(lost=1)


async def test_nothing_is_written_for_a_lease_that_is_lost_before_a_retry(bench: Bench) -> None:
    async with bench.handling(gives(RetryLater("503", 20.0))):
        await wait_until(lambda: bench.facts.retries)
        bench.leases.lose()
    assert not bench.ledger.outcomes
    assert len(bench.server.calls) == 1


async def test_a_result_that_comes_too_late_is_dropped_and_counted_as_lost(bench: Bench) -> None:
    bench.ledger.completes_as = Stale()
    await bench.handle(gives(DONE))
    assert bench.facts == Facts(lost=1)


async def test_a_result_that_was_written_already_is_finished(bench: Bench) -> None:
    bench.ledger.completes_as = Duplicate(CallState.SUCCEEDED)
    await bench.handle(gives(DONE))
    assert bench.facts.ended == [CallState.SUCCEEDED]


async def test_a_result_is_written_as_soon_as_redis_is_back_and_the_lease_is_held_until_then(bench: Bench) -> None:
    async def ends(_: Callable[[CallProgress], None]) -> CallResult:
        bench.ledger.away = 2
        return DONE

    async with bench.handling(ends):
        await wait_until(lambda: bench.ledger.tried >= 3)
        assert bench.leases.holding
        assert not bench.ledger.outcomes
    assert bench.outcome.state is CallState.SUCCEEDED
    assert len(bench.server.calls) == 1


async def test_start_is_asked_again_while_redis_is_away(bench: Bench) -> None:
    bench.ledger.away = 1
    await bench.handle(gives(DONE))
    assert bench.ledger.starts == 1
    assert bench.outcome.state is CallState.SUCCEEDED


async def test_a_mistake_in_a_command_is_not_repeated(bench: Bench) -> None:
    async def broken(*_: object, **__: object) -> Completed:
        bench.ledger.tried += 1
        raise RuntimeError("wrong release")

    bench.ledger.complete = broken
    with pytest.raises(RuntimeError, match="wrong release"):
        await bench.handle(gives(DONE))
    assert bench.ledger.tried == 2
    assert not bench.leases.holding


async def test_progress_is_passed_on_at_intervals_with_the_newest_first_in_line(bench: Bench) -> None:
    async def report(on_progress: Callable[[CallProgress], None]) -> CallResult:
        for step in range(60):
            on_progress(CallProgress(step, 60))
            await asyncio.sleep(0.01)
        return DONE

    await bench.handle(report)
    times, values = zip(*bench.ledger.reported, strict=True)
    assert 2 <= len(values) <= 5
    assert list(values) == sorted(values)
    assert all(later - earlier >= PROGRESS_SECONDS * 0.9 for earlier, later in itertools.pairwise(times))


async def test_progress_that_comes_after_the_end_goes_nowhere(bench: Bench) -> None:
    sink: list[Callable[[CallProgress], None]] = []

    async def keep(on_progress: Callable[[CallProgress], None]) -> CallResult:
        sink.append(on_progress)
        return DONE

    await bench.handle(keep)
    sink[0](CallProgress(1))
    await anyio.sleep(0.05)
    assert not bench.ledger.reported


async def test_progress_that_cannot_be_passed_on_does_not_hold_up_the_call(bench: Bench) -> None:
    async def report(on_progress: Callable[[CallProgress], None]) -> CallResult:
        bench.ledger.away = 1
        on_progress(CallProgress(1))
        await wait_until(lambda: not bench.ledger.away)
        return DONE

    await bench.handle(report)
    assert bench.outcome.state is CallState.SUCCEEDED


async def test_a_worker_that_ends_cuts_its_call_off_at_the_server_and_writes_nothing(bench: Bench) -> None:
    bench.server.behaviours = [hangs]
    work = asyncio.create_task(bench.handler.handle(delivery()))
    await wait_until(lambda: bench.server.calls)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert bench.server.cancelled == 1
    assert not bench.ledger.outcomes
    assert len(bench.handler) == 0
