"""Waiting for news: everyone who waits is woken, and nobody who came later."""

import asyncio

import pytest

from dialog_engine.buffers import News

pytestmark = pytest.mark.anyio


async def test_everyone_who_waits_is_woken_and_nothing_is_remembered() -> None:
    news = News()
    news.tell()
    before = [news.wait(), news.wait()]
    assert not any(waiting.done() for waiting in before)
    news.tell()
    after = news.wait()
    assert all(waiting.done() for waiting in before)
    assert not after.done()


async def test_one_who_was_cancelled_hinders_nobody() -> None:
    news = News()
    gone, still_there = news.wait(), news.wait()
    gone.cancel()
    news.tell()
    async with asyncio.timeout(10):
        await still_there
