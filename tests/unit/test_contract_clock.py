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
