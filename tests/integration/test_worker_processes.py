"""Workers as real processes that are killed, stopped, continued and terminated while they run calls."""

import signal
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import anyio
import pytest

from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState
from tests.marks import exhaustive, promise
from tests.support.processes import Process, answers
from tests.support.quick_worker import QUICK
from tests.support.stack import BIN, Stack, running_stack
from tests.support.waiting import wait_until
from tests.support.working import Caller, calling


@pytest.fixture(scope="module")
def stack() -> Generator[Stack]:
    """Redis and the demo MCP server; workers are each test's own."""
    with running_stack(start=False, quick=True, forked=True, worker_env={"WORKER_CONCURRENCY": "2"}) as stack:
        stack.redis.start()
        stack.start_demo()
        yield stack


@pytest.fixture
async def caller(stack: Stack) -> AsyncGenerator[Caller]:
    async with calling(stack.redis.url) as caller:
        await caller.command("FLUSHALL")
        yield caller
    for worker in stack.workers.values():
        worker.kill()
    stack.workers.clear()


async def start(stack: Stack) -> Process:
    port = await anyio.to_thread.run_sync(stack.start_worker)
    return stack.workers[port]


async def effects(stack: Stack, token: str, count: int = 1) -> None:
    await wait_until(lambda: len(stack.effects(token)) >= count, 20, what=f"{count} effects {token!r}")


@promise("workers are killed at random: nothing lost, nothing doubled")
async def test_what_a_killed_worker_had_in_hand_ends_as_its_execution_class_allows(
    stack: Stack, caller: Caller
) -> None:
    first = await start(stack)
    once = await caller.call("increment_counter", token="kill-once", answer_after_seconds=60)
    again = await caller.call("slow_job", execution_class="repeatable", token="kill-again", seconds=1, steps=2)
    await effects(stack, "kill-once")
    await effects(stack, "kill-again")
    unstarted = await caller.call("echo", text="not yet")
    assert await caller.starts(unstarted) == 0
    first.kill()
    await start(stack)
    assert (await caller.outcome(unstarted)).state is CallState.SUCCEEDED
    outcome = await caller.outcome(once)
    assert outcome.state is CallState.UNKNOWN
    assert outcome.error is not None
    assert outcome.error.code is ErrorCode.OUTCOME_UNKNOWN
    assert len(stack.effects("kill-once")) == 1
    assert (await caller.outcome(again)).state is CallState.SUCCEEDED
    assert await caller.starts(again) == 2
    assert await caller.backlog() == 0


@promise("stopped workers wake up and complete nothing that is not theirs")
async def test_a_worker_that_was_stopped_past_its_lease_neither_completes_nor_steals_back(
    stack: Stack, caller: Caller
) -> None:
    stopped = await start(stack)
    once = await caller.call("increment_counter", token="frozen", answer_after_seconds=5)
    await effects(stack, "frozen")
    job = await caller.call("slow_job", execution_class="repeatable", token="frozen-job", seconds=5, steps=2)
    await effects(stack, "frozen-job")
    (old,) = await caller.consumers()
    stopped.send(signal.SIGSTOP)
    await start(stack)
    assert (await caller.outcome(once)).state is CallState.UNKNOWN
    await wait_until(lambda: caller.starts_again(job), 20)
    stopped.send(signal.SIGCONT)
    await wait_until(lambda: "lease lost" in stopped.output(), what="the loss to be noticed")
    assert (await caller.outcome(job)).state is CallState.SUCCEEDED
    assert (await caller.consumers())[old] == 0
    assert [reply.__class__.__name__ for reply in await caller.channel(once)].count("CallFinished") == 1
    assert [reply.__class__.__name__ for reply in await caller.channel(job)].count("CallFinished") == 1
    assert len(stack.effects("frozen")) == 1
    # It is well again, and takes what comes.
    assert (await caller.outcome(await caller.call())).state is CallState.SUCCEEDED


@promise("SIGTERM drains a worker")
@promise("leases are kept while a worker drains")
@promise("SIGHUP drains as SIGTERM does, and no text reaches the terminal through a log")
async def test_a_worker_that_is_terminated_finishes_its_calls_and_takes_no_new_one(
    stack: Stack, caller: Caller
) -> None:
    worker = await start(stack)
    running = await caller.call("slow_job", seconds=1.5 * QUICK.lease, steps=3, token="drain")
    await effects(stack, "drain")
    worker.send(signal.SIGTERM)
    await wait_until(lambda: "waiting up to" in worker.output())
    late = await caller.call("slow_job", seconds=1, steps=2, token="late")
    assert await caller.starts(late) == 0
    second = await start(stack)
    await effects(stack, "late")
    second.send(signal.SIGHUP)
    for request in (late, running):
        assert (await caller.outcome(request)).state is CallState.SUCCEEDED
        assert await caller.starts(request) == 1
    for process in (worker, second):
        assert await process.ended() == 0
        assert "\x1b" not in process.output()
    assert await caller.consumers() == {}


@pytest.mark.usefixtures("caller")
async def test_a_worker_starts_without_redis_and_begins_when_it_is_there(stack: Stack) -> None:
    stack.redis.kill()
    port = stack.start_worker(wait=False)
    await wait_until(lambda: _answers(port, "healthz"), 30)
    assert not await _answers(port, "readyz")
    await anyio.to_thread.run_sync(stack.redis.start)
    await wait_until(lambda: _answers(port, "readyz"), 30)
    async with calling(stack.redis.url) as caller:  # the one before has lost its connection
        assert (await caller.outcome(await caller.call())).state is CallState.SUCCEEDED


async def _answers(port: int, path: str) -> bool:
    return await anyio.to_thread.run_sync(answers, f"http://127.0.0.1:{port}/{path}")


@exhaustive("a process that starts as a user starts it, to see its message")
async def test_an_address_that_is_taken_is_said_with_its_setting(stack: Stack, tmp_path: Path) -> None:
    env = {"MCP_SERVER_ENDPOINT": "http://127.0.0.1:9/mcp", "HEALTH_PORT": str(stack.demo_port)}
    worker = Process([BIN / "plugins-mcp"], env=env, cwd=tmp_path)
    try:
        assert await worker.ended(30) == 1
        assert "HEALTH_HOST, HEALTH_PORT" in worker.output()
        assert "Traceback" not in worker.output()
    finally:
        worker.close()
