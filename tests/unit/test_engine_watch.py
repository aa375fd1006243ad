"""For how long Redis has been steady, as an engine sees it: what must pass before a turn is taken over."""

import asyncio
import time
from typing import cast

from redis.asyncio import Redis

from dialog_engine.streams.watch import RedisWatch
from plugins_contract.clock import RedisClock


def watch() -> RedisWatch:
    return RedisWatch(cast("Redis", None), RedisClock())


def sample(watch: RedisWatch, ago: float, *, redis_ahead: float = 1000.0) -> None:
    """An answer that came so many seconds ago, of a Redis that is ahead of this process's own clock."""
    at = time.monotonic() - ago
    seconds, rest = divmod(at + redis_ahead, 1)
    watch.sample((int(seconds), int(rest * 1e6)), at, at)
    watch.available = True


def test_before_the_first_answer_nothing_is_steady() -> None:
    assert watch().steady_for() == 0


def test_answers_in_a_row_make_it_steady_since_the_first() -> None:
    eye = watch()
    for ago in (8.0, 4.0, 1.0):
        sample(eye, ago)
    assert 8.0 <= eye.steady_for() < 9.0


def test_after_an_outage_it_begins_anew_and_during_one_nothing_is_steady() -> None:
    eye = watch()
    sample(eye, 8.0)
    eye.available = False
    assert eye.steady_for() == 0
    sample(eye, 1.0)
    assert 1.0 <= eye.steady_for() < 2.0


def test_after_a_sleep_of_this_process_it_begins_anew() -> None:
    eye = watch()
    for ago in (20.0, 18.0, 3.0, 1.0):
        sample(eye, ago)
    assert 3.0 <= eye.steady_for() < 4.0


def test_while_it_is_silent_nothing_is_steady() -> None:
    eye = watch()
    for ago in (20.0, 16.0, 12.0):
        sample(eye, ago)
    assert eye.steady_for() == 0


def test_after_its_clock_was_set_it_begins_anew() -> None:
    eye = watch()
    sample(eye, 4.0)
    sample(eye, 2.0, redis_ahead=1120.0)
    sample(eye, 1.0, redis_ahead=1120.0)
    assert 2.0 <= eye.steady_for() < 3.0


class SilentRedis:
    """One that takes questions and answers none until it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer = asyncio.Event()

    async def time(self) -> tuple[int, int]:
        self.asked += 1
        await self.answer.wait()
        return 0, 0

    async def ping(self) -> bool:
        return True
