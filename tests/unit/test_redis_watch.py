"""The clock of Redis, and for how long it has been steady, which decides when a call or a turn may be taken over."""

import time
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

from callstream_runtime.clock import RedisClock, RedisWatch
from callstream_runtime.redis_errors import translated
from plugins_contract.keys import Keys
from tests.marks import promise


def watch() -> tuple[RedisWatch, RedisClock]:
    clock = RedisClock()
    return RedisWatch(cast("Redis", None), Keys(), clock), clock


def sample(watch: RedisWatch, ago: float, *, redis_ahead: float = 1000.0, run_id: str | None = None) -> None:
    """An answer that came so many seconds ago, of a Redis that is ahead of this process's own clock."""
    at = time.monotonic() - ago
    seconds, rest = divmod(at + redis_ahead, 1)
    watch.sample((int(seconds), int(rest * 1e6)), at, at, run_id)
    watch.available = True


ONE = {"run_id": "one"}
ANSWERS: dict[str, tuple[list[tuple[float, dict[str, Any]]], float]] = {
    "none yet": ([], 0.0),
    "in a row": ([(8.0, {}), (4.0, {}), (1.0, {})], 8.0),
    "a silence between them": ([(20.0, {}), (18.0, {}), (3.0, {}), (1.0, {})], 3.0),
    "a silence now": ([(20.0, {}), (16.0, {}), (12.0, {})], 0.0),
    "a step of the clock": ([(6.0, {}), (4.0, {"redis_ahead": 1120.0}), (2.0, {"redis_ahead": 1120.0})], 4.0),
    "a small drift": ([(8.0 - 2 * n, {"redis_ahead": 1000.0 + n / 10}) for n in range(4)], 8.0),
    "another server": ([(9.0, ONE), (8.0, ONE), (3.0, {"run_id": "two"}), (2.0, {}), (1.0, {"run_id": "two"})], 3.0),
}


@promise("nothing is taken over right after an outage or a clock step")
@pytest.mark.parametrize("answers", ANSWERS)
def test_it_counts_from_the_first_of_the_answers_of_one_server_and_clock_in_a_row(answers: str) -> None:
    eye, _ = watch()
    seen, steady = ANSWERS[answers]
    for ago, options in seen:
        sample(eye, ago, **options)
    assert eye.steady_for() == pytest.approx(steady, abs=1.0 if steady else 0.0)


def test_after_an_outage_it_starts_again_and_during_one_it_is_zero() -> None:
    eye, clock = watch()
    sample(eye, 8.0)
    eye.available = False
    assert eye.steady_for() == 0
    sample(eye, 1.0)
    assert 1.0 <= eye.steady_for() < 2.0
    assert clock.now_ms() / 1000 - 1000 == pytest.approx(time.monotonic(), abs=0.1)


class Server:
    """Answers the watch's questions with these, or fails whole."""

    def __init__(self, *, written: object = 0, who: object = None, away: Exception | None = None) -> None:
        self.written = written
        self.who = who or {"run_id": "one"}
        self.away = away
        self.asked: list[str] = []

    def pipeline(self, *, transaction: bool) -> "Server":
        assert not transaction
        self.asked = []
        return self

    def time(self) -> None:
        self.asked.append("TIME")

    def xack(self, *_: object) -> None:
        self.asked.append("XACK")

    def info(self, _: str) -> None:
        self.asked.append("INFO")

    async def execute(self, *, raise_on_error: bool) -> list[object]:
        assert not raise_on_error
        if self.away is not None:
            raise self.away
        answers = {"TIME": (int(time.time()), 0), "XACK": self.written, "INFO": self.who}
        return [answers[question] for question in self.asked]


def asking(server: Server) -> RedisWatch:
    return RedisWatch(cast("Redis", server), Keys(), RedisClock())


@promise("a full disk under Redis is an outage that heals")
@pytest.mark.parametrize(
    ("broken", "text"),
    [
        ("away", ""),
        ("written", "MISCONF Errors writing to the AOF file: No space left on device"),
        ("written", "READONLY You can't write against a read only replica."),
        ("written", "LOADING Redis is loading the dataset in memory"),
    ],
)
async def test_a_server_that_takes_no_writes_is_not_steady_though_it_tells_the_time(broken: str, text: str) -> None:
    server = Server()
    eye = asking(server)
    await eye.ask()
    assert eye.steady_for() > 0
    setattr(server, broken, translated(ConnectionRefusedError() if broken == "away" else ResponseError(text)))
    await eye.ask()
    assert eye.steady_for() == 0
    assert not eye.available


async def test_a_key_that_is_no_stream_is_no_outage() -> None:
    eye = asking(Server(written=ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")))
    await eye.ask()
    assert eye.steady_for() > 0


async def test_a_user_without_the_right_to_info_asks_for_it_once() -> None:
    server = Server(who=translated(NoPermissionError("NOPERM this user has no permissions to run the 'info' command")))
    eye = asking(server)
    await eye.ask()
    assert server.asked == ["TIME", "XACK", "INFO"]
    await eye.ask()
    assert server.asked == ["TIME", "XACK"]
    assert eye.steady_for() > 0


# --- The clock of Redis, as a process knows it ---


@pytest.fixture
def monotonic(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The machine's monotonic clock, to be set by hand."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_before_the_first_sample_it_is_this_machines_time() -> None:
    assert abs(RedisClock().now_ms() - time.time() * 1000) < 1000


@promise("I9 deadlines are kept by the clock of Redis")
def test_from_the_middle_of_the_last_round_trip_it_runs_on_by_the_monotonic_clock(
    monotonic: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = RedisClock()
    clock.sample((1_700_000_000, 0), sent_at=900.0, received_at=900.0)
    clock.sample((1_800_000_000, 500_000), sent_at=1000.0, received_at=1000.2)
    monkeypatch.setattr(time, "time", lambda: 0.0)  # a step of this machine's wall clock
    monotonic[0] = 1060.1

    assert clock.now_ms() == 1_800_000_060_500
