"""BackgroundTasks: whoever closes them waits for their tasks, for a bounded time."""

import asyncio

import pytest

from callstream_runtime.background import BackgroundTasks
from tests.marks import promise


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
