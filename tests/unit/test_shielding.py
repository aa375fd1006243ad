"""`run_shielded` delays a cancellation until a commit, and what must follow it, is done."""

import asyncio

import pytest

from dialog_engine.sideband import run_shielded
from tests.support.fakes.engine import breathe
from tests.support.waiting import wait_until


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
