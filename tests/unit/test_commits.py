"""`to_its_end`: a cancellation waits for a commit and what follows from it."""

import asyncio

import pytest

from dialog_engine.tool_calls import commits
from dialog_engine.tool_calls.commits import to_its_end
from tests.support.fakes import breathe
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def test_it_gives_what_the_work_gives_and_raises_what_it_raises() -> None:
    async def give() -> int:
        return 7

    async def fail() -> None:
        raise ValueError("no")

    assert await to_its_end(give()) == 7
    with pytest.raises(ValueError, match="no"):
        await to_its_end(fail())


async def test_a_cancellation_is_raised_when_the_work_has_ended() -> None:
    go, done = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await go.wait()
        done.set()

    task = asyncio.create_task(to_its_end(work()))
    await breathe()
    task.cancel()
    await breathe()
    assert not task.done()
    go.set()
    await asyncio.wait([task])

    assert task.cancelled()
    assert done.is_set()


async def test_work_that_does_not_end_is_cut_in_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(commits, "END_SECONDS", 0.01)
    cut = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cut.set()

    task = asyncio.create_task(to_its_end(work()))
    await breathe()
    task.cancel()
    await asyncio.wait([task])

    await wait_until(cut.is_set)
    assert task.cancelled()
    assert "takes too long" in caplog.text


async def test_a_failure_behind_a_cancellation_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    go = asyncio.Event()

    async def work() -> None:
        await go.wait()
        raise ValueError("the disk is full")

    task = asyncio.create_task(to_its_end(work()))
    await breathe()
    task.cancel()
    go.set()
    await asyncio.wait([task])

    assert task.cancelled()
    assert "the disk is full" in caplog.text
