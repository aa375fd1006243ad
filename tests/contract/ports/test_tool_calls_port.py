"""ToolCalls: one suite for the executor on a real ledger, with a worker beside it, and for its twin."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import pytest

from dialog_engine.model import CallAnswered, CallProgressed, CallQueued, CallRunning, CallUpdate, ToolCall, Turn
from plugins_contract.catalog import ToolEntry
from plugins_contract.errors import ErrorCode
from plugins_contract.messages import ExecutionClass, ToolCallRequested, new_id
from plugins_contract.outcomes import CallState, ToolOutcome
from tests.contract.ports.conftest import Calls
from tests.support.fakes.worker import Execution, gives, succeeded, tool
from tests.support.waiting import wait_until

TURN = Turn("turn", "session", "ada", 2, traceparent="00-trace")
NEVER = asyncio.Event


def request(calls: Calls, entry: ToolEntry | None = None) -> ToolCallRequested:
    entry = entry or tool("a__b")
    return calls.port.request(TURN, ToolCall("call_1", new_id(), entry.name, '{"x": 1}'), entry, {"x": 1})


class Watch:
    """Sees requests through, as a turn does: they are committed right before it begins to listen."""

    def __init__(self, calls: Calls, requests: Sequence[ToolCallRequested]) -> None:
        self.seen: list[CallUpdate] = []
        self._calls = calls
        self._requests = requests
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with aclosing(self._calls.port.run(self._requests)) as updates:
            async for update in updates:
                self.seen.append(update)

    async def commit(self) -> "Watch":
        await asyncio.sleep(0)
        for each in self._requests:
            await self._calls.commit(each)
        return self

    async def until(self, kind: type[CallUpdate]) -> None:
        await wait_until(lambda: any(isinstance(update, kind) for update in self.seen), what=f"{kind}: {self.seen}")

    async def end(self) -> list[CallUpdate]:
        async with asyncio.timeout(10):
            await self._task
        return self.seen

    async def leave(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


def outcomes(seen: Sequence[CallUpdate]) -> dict[str, ToolOutcome]:
    return {update.correlation_id: update.outcome for update in seen if isinstance(update, CallAnswered)}


def code(outcome: ToolOutcome) -> ErrorCode | None:
    return outcome.error.code if outcome.error else None


async def test_a_request_says_on_whose_behalf_what_is_to_run_and_until_when(calls: Calls) -> None:
    entry = tool("a__b", execution_class=ExecutionClass.REPEATABLE, timeout_ms=5_000)
    call = ToolCall("call_1", new_id(), "mcp_query", '{"x": 1}', tool="a__b")

    one = calls.port.request(TURN, call, entry, {"x": 1})
    longer = calls.port.request(TURN, call, tool("a__b"), {"x": 1})

    assert (one.correlation_id, one.tool_call_id) == (call.correlation_id, "call_1")
    assert (one.server, one.tool, one.tool_name, one.arguments) == ("a", "b", "a__b", {"x": 1})
    assert (one.turn_id, one.turn, one.session_id, one.subject) == ("turn", 2, "session", "ada")
    assert (one.execution_class, one.traceparent) == (ExecutionClass.REPEATABLE, "00-trace")
    assert 20_000 < longer.deadline - one.deadline < 60_000


async def test_a_call_is_queued_then_runs_then_tells_its_progress_then_is_answered_once(calls: Calls) -> None:
    async def work(execution: Execution) -> ToolOutcome:
        execution.progress(1, 2, "half")
        execution.progress(2, 2, None)
        return succeeded(str(execution.arguments))

    one = request(calls)
    watch = await Watch(calls, [one]).commit()
    await calls.staff({"a__b": work})

    call_id = one.correlation_id
    assert await watch.end() == [
        CallQueued(call_id, 0),
        CallRunning(call_id, 1),
        CallProgressed(call_id, 1, 2, "half"),
        CallProgressed(call_id, 2, 2, None),
        CallAnswered(call_id, succeeded("{'x': 1}")),
    ]


async def test_a_call_that_no_worker_takes_up_in_time_is_over_and_never_runs(calls: Calls) -> None:
    one = request(calls, tool("a__b", timeout_ms=50))
    watch = await Watch(calls, [one]).commit()

    [outcome] = outcomes(await watch.end()).values()

    assert (outcome.state, code(outcome)) == (CallState.EXPIRED, ErrorCode.TIMEOUT)
    await only_later_calls_run(calls)


async def only_later_calls_run(calls: Calls) -> None:
    """A worker comes now, and runs the call that is requested now and no earlier one."""
    later = request(calls)
    watch = await Watch(calls, [later]).commit()
    await calls.staff({"a__b": gives(succeeded("x"))})
    await watch.end()
    assert calls.executed == [later.correlation_id]


async def test_a_call_that_began_and_does_not_answer_in_time_is_a_timeout_of_unknown_outcome(calls: Calls) -> None:
    one = request(calls, tool("a__deaf", timeout_ms=400))
    watch = await Watch(calls, [one]).commit()
    await calls.staff({"a__deaf": gives(succeeded("x"), NEVER())})

    [outcome] = outcomes(await watch.end()).values()

    assert (outcome.state, code(outcome)) == (CallState.UNKNOWN, ErrorCode.TIMEOUT)


async def test_a_call_that_is_cancelled_before_it_began_never_does(calls: Calls) -> None:
    one = request(calls)
    watch = await Watch(calls, [one]).commit()
    await watch.until(CallQueued)
    await watch.leave()

    outcome = (await calls.port.cancel([one]))[one.correlation_id]

    assert (outcome.state, code(outcome)) == (CallState.CANCELLED, ErrorCode.CANCELLED)
    await only_later_calls_run(calls)


@pytest.mark.parametrize(
    ("name", "state", "expected"),
    [("a__b", CallState.CANCELLED, ErrorCode.CANCELLED), ("a__deaf", CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN)],
)
async def test_a_call_that_is_cancelled_while_it_runs_says_what_its_worker_says_and_without_an_answer_is_unknown(
    calls: Calls, name: str, state: CallState, expected: ErrorCode
) -> None:
    one = request(calls, tool(name))
    watch = await Watch(calls, [one]).commit()
    await calls.staff({name: gives(succeeded("x"), NEVER())})
    await watch.until(CallRunning)
    await watch.leave()

    outcome = (await calls.port.cancel([one]))[one.correlation_id]

    assert (outcome.state, code(outcome)) == (state, expected)


async def test_cancelling_returns_the_outcome_of_each_call(calls: Calls) -> None:
    ended, running = request(calls), request(calls, tool("a__c"))
    watch = await Watch(calls, [ended, running]).commit()
    await calls.staff({"a__b": gives(succeeded("x")), "a__c": gives(succeeded("y"), NEVER())})
    await wait_until(lambda: len(outcomes(watch.seen)) == 1 and len(calls.executed) == 2)
    await watch.leave()

    cancelled = await calls.port.cancel([ended, running])

    assert cancelled[ended.correlation_id] == succeeded("x")
    assert cancelled[running.correlation_id].state is CallState.CANCELLED
    assert await calls.port.cancel([]) == {}
    assert await Watch(calls, []).end() == []
