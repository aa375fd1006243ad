"""The clock of Redis, as a process knows it."""

import time

import pytest

from callstream_runtime.clock import RedisClock
from tests.marks import promise


@pytest.fixture
def monotonic(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The machine's monotonic clock, to be set by hand."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_before_the_first_sample_it_is_this_machines_time() -> None:
    assert abs(RedisClock().now_ms() - time.time() * 1000) < 1000


def test_a_sample_is_taken_as_of_the_middle_of_its_round_trip(monotonic: list[float]) -> None:
    clock = RedisClock()
    clock.sample((1_800_000_000, 500_000), sent_at=1000.0, received_at=1000.2)
    monotonic[0] = 1000.2

    assert clock.now_ms() == 1_800_000_000_600


@promise("I9 deadlines are kept by the clock of Redis")
def test_between_samples_it_runs_on_by_the_monotonic_clock(
    monotonic: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = RedisClock()
    clock.sample((1_800_000_000, 0), sent_at=1000.0, received_at=1000.0)
    monkeypatch.setattr(time, "time", lambda: 0.0)  # a step of this machine's wall clock
    monotonic[0] = 1060.0

    assert clock.now_ms() == 1_800_000_060_000


def test_a_later_sample_replaces_an_earlier_one(monotonic: list[float]) -> None:
    clock = RedisClock()
    clock.sample((1_800_000_000, 0), sent_at=1000.0, received_at=1000.0)
    clock.sample((1_800_000_900, 0), sent_at=1000.0, received_at=1000.0)

    assert clock.now_ms() == 1_800_000_900_000
