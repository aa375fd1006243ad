"""For how long Redis has been steady: what must pass before anything is taken over."""

import time
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from plugins_contract.clock import RedisClock
from plugins_mcp.watch import RedisWatch


def watch() -> tuple[RedisWatch, RedisClock]:
    clock = RedisClock()
    return RedisWatch(cast("Redis", None), clock), clock


def sample(watch: RedisWatch, ago: float, *, redis_ahead: float = 1000.0) -> None:
    """An answer that came so many seconds ago, of a Redis that is ahead of this process's own clock."""
    at = time.monotonic() - ago
    seconds, rest = divmod(at + redis_ahead, 1)
    watch.sample((int(seconds), int(rest * 1e6)), at, at)


def test_before_the_first_answer_nothing_is_steady() -> None:
    assert watch()[0].steady_for() == 0


def test_answers_in_a_row_make_it_steady_since_the_first() -> None:
    eye, clock = watch()
    for ago in (8.0, 4.0, 1.0):
        sample(eye, ago)
    assert 8.0 <= eye.steady_for() < 9.0
    assert abs(clock.now_ms() / 1000 - time.monotonic() - 1000) < 0.1


def test_after_a_silence_it_begins_anew() -> None:
    eye, _ = watch()
    for ago in (20.0, 18.0, 3.0, 1.0):
        sample(eye, ago)
    assert 3.0 <= eye.steady_for() < 4.0


def test_while_it_is_silent_nothing_is_steady() -> None:
    eye, _ = watch()
    for ago in (20.0, 16.0, 12.0):
        sample(eye, ago)
    assert eye.steady_for() == 0


def test_after_its_clock_was_set_it_begins_anew() -> None:
    eye, _ = watch()
    sample(eye, 6.0)
    sample(eye, 4.0, redis_ahead=1120.0)
    sample(eye, 2.0, redis_ahead=1120.0)
    assert 4.0 <= eye.steady_for() < 5.0


def test_a_clock_that_drifts_a_little_is_steady() -> None:
    eye, _ = watch()
    for number, ago in enumerate((8.0, 6.0, 4.0, 2.0)):
        sample(eye, ago, redis_ahead=1000.0 + number / 10)
    assert eye.steady_for() >= 8.0


class _Away:
    async def time(self) -> Any:
        raise ConnectionRefusedError


@pytest.mark.anyio
async def test_an_outage_ends_it_at_once() -> None:
    eye = RedisWatch(cast("Redis", _Away()), RedisClock())
    sample(eye, 4.0)
    sample(eye, 1.0)
    assert eye.steady_for() > 0
    await eye.ask()
    assert eye.steady_for() == 0


class _Full:
    """A server whose disk is full: it tells the time, and can write nothing."""

    async def time(self) -> Any:
        return int(time.time()), 0

    async def ping(self) -> Any:
        raise ResponseError("MISCONF Errors writing to the AOF file: No space left on device")


@pytest.mark.anyio
async def test_a_full_disk_is_an_outage_though_the_time_is_told() -> None:
    eye = RedisWatch(cast("Redis", _Full()), RedisClock())
    sample(eye, 4.0)
    sample(eye, 1.0)
    assert eye.steady_for() > 0
    await eye.ask()
    assert eye.steady_for() == 0
