"""The port of tool calls with its implementations: Redis, and the twin in `tests.support.fakes`."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from dialog_engine.calls.times import ExecutorTimes
from dialog_engine.tool_calls.ports import ToolCalls
from plugins_contract.ledger import Delivery, replies
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import CallProgress, CallStarted
from tests.integration.engines import at_work
from tests.integration.executor_harness import Harness
from tests.support.fakes.worker import Behaviour, Execution, FakeWorker
from tests.support.ledger import CANCELLED, Bench
from tests.support.waiting import wait_until


@dataclass(frozen=True, slots=True)
class Calls:
    """What runs tool calls. `commit` does with a request what the relay does; `executed` counts executions."""

    port: ToolCalls
    commit: Callable[[ToolCallRequested], Any]
    staff: Callable[[Mapping[str, Behaviour]], Any]
    executed: list[str]


@pytest.fixture(params=["twin", "redis"])
async def calls(request: pytest.FixtureRequest, redis_url: str) -> AsyncGenerator[Calls]:
    if request.param == "twin":
        worker = FakeWorker()
        worker.staffed = False

        async def commit(_: ToolCallRequested) -> None:
            await asyncio.sleep(0)

        yield Calls(worker, commit, worker.staff, worker.executed)
        await worker.close()
        return
    async with real_calls(redis_url) as real:
        yield real


@asynccontextmanager
async def real_calls(redis_url: str) -> AsyncGenerator[Calls]:
    """The executor of an engine on a real server, and a worker made of its ledger."""
    async with AsyncExitStack() as stack:
        harness = Harness(redis_url, ExecutorTimes(grace=0.2, cancel=0.5))
        stack.push_async_callback(harness.aclose)
        await harness.bench.open()
        worker = ScriptedWorker(harness.bench)
        await stack.enter_async_context(at_work(harness.mailbox.run))
        # On Python 3.11 a cancellation that comes while redis-py sends a command is lost: cancel readers that wait.
        await at_rest(harness.bench)
        stack.push_async_callback(at_rest, harness.bench)

        async def commit(request: ToolCallRequested) -> None:
            harness.calls.enqueued(request.correlation_id, await harness.ledger.enqueue(request))

        async def staff(behaviours: Mapping[str, Behaviour]) -> None:
            worker.begin(behaviours)
            stack.push_async_callback(worker.end)

        yield Calls(harness.executor, commit, staff, worker.executed)


async def at_rest(bench: Bench) -> None:
    """Wait until the mailbox's reader waits in its blocking read."""

    async def waits() -> bool:
        return b" flags=b " in await bench.command("CLIENT", "LIST")

    await wait_until(waits, what="a blocking read")


class ScriptedWorker:
    """The least that is a worker: reads, STARTs, runs a behaviour, minds cancellations, COMPLETEs."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._behaviours: Mapping[str, Behaviour] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self.executed: list[str] = []

    def begin(self, behaviours: Mapping[str, Behaviour]) -> None:
        self._behaviours = behaviours
        self._tasks.add(asyncio.create_task(self._run()))

    async def end(self) -> None:
        self._ended.set()
        await asyncio.wait(self._tasks)

    async def _run(self) -> None:
        while not self._ended.is_set():
            if delivery := await self._bench.next_delivery("worker"):
                self._tasks.add(asyncio.create_task(self._handle(delivery)))
            else:
                await self._ended_within(0.005)

    async def _ended_within(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()

    async def _handle(self, delivery: Delivery) -> None:
        started = await self._bench.start(delivery)
        if not isinstance(started, replies.Run):
            return
        request, said = delivery.request, list[CallProgress]()
        await self._bench.worker.progress(request, started.fence, CallStarted(started.starts))

        def progress(done: float, total: float | None, message: str | None) -> None:
            said.append(CallProgress(done, total, message))

        self.executed.append(request.correlation_id)
        behaviour = self._behaviours[request.tool_name]
        work = asyncio.ensure_future(behaviour(Execution(request.arguments, progress)))
        try:
            while not work.done() and not self._ended.is_set():
                await asyncio.wait([work], timeout=0.02)
                match self._bench.renew(delivery, started.fence):
                    case replies.Renewed(cancel_requested=True) if request.tool_name != "a__deaf":
                        work.cancel()
                    case _:
                        pass
        finally:
            work.cancel()
        if self._ended.is_set():
            return
        for each in said:
            await self._bench.worker.progress(request, started.fence, each)
        outcome = CANCELLED if work.cancelled() else work.result()
        await self._bench.worker.complete(delivery, started.fence, outcome)
