"""The log of a running turn: what Redis has of it takes little room here, and can be stored again from any place."""

import asyncio

import pytest

from dialog_engine.chat.frames import START, Cursor
from dialog_engine.model import TextDelta, Turn
from dialog_engine.streams.turn_log import RUN_CHARACTERS, LiveLog

pytestmark = pytest.mark.anyio


def log_of(count: int, text: str = "token ") -> LiveLog:
    """A log into which so many deltas came one by one, each stored before the next."""
    log = LiveLog(Turn("turn", "session", "alice"), lambda _: None)
    for number in range(1, count + 1):
        log.append(TextDelta(text))
        log.stored(number)
    return log


async def test_deltas_that_came_one_by_one_stay_as_a_few_runs() -> None:
    log = log_of(2_000)
    entries = log.since(START)
    assert [entry.first for entry in entries] == [1, *(entry.last + 1 for entry in entries[:-1])]
    assert entries[-1].last == 2_000
    assert max(len(entry.data) for entry in entries) <= RUN_CHARACTERS
    assert len(entries) <= 2_000 * len("token ") // RUN_CHARACTERS + 1
    assert log.to_store() == []


@pytest.mark.parametrize("left", [0, 1, 6, 9])
async def test_what_redis_has_lost_of_a_run_is_stored_again_and_no_more(left: int) -> None:
    log = log_of(10, "x")
    log.stored(left)
    assert log.stored_up_to == left
    assert [(entry.first, entry.last, entry.data) for entry in log.to_store()] == [(left + 1, 10, "x" * (10 - left))]
    log.stored(10)
    assert log.to_store() == []
    assert [entry.frame(Cursor(1, 3)).data for entry in log.since(Cursor(1, 3))] == ['{"delta":"xxxxxxx"}']


async def test_the_end_waits_until_everything_is_stored() -> None:
    log = log_of(3)
    log.append(TextDelta("y"))
    closing = asyncio.ensure_future(log.close())
    await asyncio.sleep(0)
    log.stored(3)
    await asyncio.sleep(0)
    assert not log.ended
    log.stored(4)
    await closing
    assert log.ended
