"""Background tasks end with who closes them; `run_shielded` delays a cancellation until a commit is done."""

import asyncio

import pytest

from callstream_runtime.background import BackgroundTasks
from dialog_engine.sideband import run_shielded
from tests.marks import promise
from tests.support.fakes.engine import breathe
from tests.support.waiting import wait_until


@promise("what ends with the last turns is counted and published before an engine is gone")
async def test_closing_waits_for_tasks_and_for_those_that_begin_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    tasks, done = BackgroundTasks(), list[str]()

    async def second() -> None:
        await asyncio.sleep(0)
        done.append("second")

    async def first() -> None:
        await asyncio.sleep(0)
        tasks.start(second(), "second")
        done.append("first")

    tasks.start(first(), "first")
    await tasks.close()
    assert done == ["first", "second"]
    assert caplog.records == []


async def test_a_task_that_takes_too_long_is_cancelled_and_named(caplog: pytest.LogCaptureFixture) -> None:
    tasks = BackgroundTasks(close_seconds=0.05)
    tasks.start(asyncio.Event().wait(), "the slow one")
    await tasks.close()
    assert "the slow one" in caplog.text
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "the slow one"]


# --- `run_shielded` delays a cancellation until a commit, and what must follow it, is done ---


async def test_a_cancellation_is_raised_when_the_work_has_ended() -> None:
    go, done = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await go.wait()
        done.set()

    task = asyncio.create_task(run_shielded(work()))
    await breathe()
    task.cancel()
    await breathe()
    assert not task.done()
    go.set()
    await asyncio.wait([task])

    assert task.cancelled()
    assert done.is_set()


async def test_work_that_does_not_end_in_time_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    cut = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cut.set()

    task = asyncio.create_task(run_shielded(work(), max_delay_seconds=0.01))
    await breathe()
    task.cancel()
    await asyncio.wait([task])

    await wait_until(cut.is_set)
    assert task.cancelled()
    assert "has not ended" in caplog.text


async def test_a_failure_during_a_delayed_cancellation_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    go = asyncio.Event()

    async def work() -> None:
        await go.wait()
        raise ValueError("the disk is full")

    task = asyncio.create_task(run_shielded(work()))
    await breathe()
    task.cancel()
    go.set()
    await asyncio.wait([task])

    assert task.cancelled()
    assert "the disk is full" in caplog.text
