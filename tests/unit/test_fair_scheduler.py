"""FairScheduler: which calls may be published."""

import random

import pytest

from dialog_engine.relay.fair_scheduler import FairScheduler
from tests.marks import promise


def flooded(window: int = 2, **asked: int) -> FairScheduler:
    """Subjects that asked for so many calls each: `a` for a0, a1, …"""
    scheduler = FairScheduler(window)
    for subject, count in asked.items():
        for number in range(count):
            scheduler.admit(subject, f"{subject}{number}")
    return scheduler


def test_without_a_window_nothing_is_held_back() -> None:
    scheduler = FairScheduler(0)
    assert all(scheduler.admit("a", str(n)) for n in range(10_000))
    assert scheduler.held == 0


def test_subjects_take_turns() -> None:
    scheduler = flooded(2, a=6, b=6, c=3)
    for call in ("a0", "a1", "b0", "b1", "c0"):
        scheduler.remove(call)
    assert scheduler.take(4) == ["a2", "b2", "c2", "a3"]
    assert scheduler.take(4) == ["b3"]


def test_a_call_that_could_not_be_published_is_the_first_of_its_subject_again() -> None:
    scheduler = flooded(3, a=5)
    for call in ("a2", "a1"):
        scheduler.put_back(call)
    assert scheduler.held == 4
    assert scheduler.take(1) == ["a1"]
    assert scheduler.take(9) == ["a2"]


def test_calls_published_before_a_restart_count_against_the_window() -> None:
    scheduler = FairScheduler(2)
    for number in range(3):
        scheduler.add_published("a", f"old{number}")
    assert not scheduler.admit("a", "a0")
    scheduler.remove("old0")
    assert scheduler.take(9) == []
    scheduler.remove("old1")
    assert scheduler.take(9) == ["a0"]


def test_the_oldest_calls_that_block_others_are_named_first() -> None:
    scheduler = flooded(3, a=9, b=9, c=3)
    assert scheduler.blocking(4) == ["a0", "a1", "b0", "b1"]
    assert flooded(3, c=3).blocking(4) == []
    assert flooded(1, a=2, b=2).blocking(1) == ["a0", "b0"]


@promise("subjects get fair shares of one stream")
@pytest.mark.parametrize("seed", range(20))
def test_in_any_order_of_events_a_subject_keeps_to_its_window_and_its_order(seed: int) -> None:
    chance = random.Random(seed)
    scheduler, window = FairScheduler(3), 3
    waiting: dict[str, list[str]] = {"a": [], "b": [], "c": []}
    standing: dict[str, list[str]] = {"a": [], "b": [], "c": []}
    for number in range(2000):
        subject = chance.choice("abc")
        match chance.randrange(4):
            case 0 | 1:
                call = f"{subject}{number}"
                (standing if scheduler.admit(subject, call) else waiting)[subject].append(call)
            case 2:
                if calls := standing[subject] + waiting[subject]:
                    call = chance.choice(calls)
                    (standing if call in standing[subject] else waiting)[subject].remove(call)
                    scheduler.remove(call)
            case _:
                for call in scheduler.take(chance.randrange(5)):
                    assert waiting[call[0]].pop(0) == call
                    standing[call[0]].append(call)
        assert all(len(calls) <= window for calls in standing.values())
        assert scheduler.held == sum(map(len, waiting.values()))
        assert scheduler.ready == any(waiting[s] and len(standing[s]) < window for s in "abc")
    for call in [call for calls in (*waiting.values(), *standing.values()) for call in calls]:
        scheduler.remove(call)
    assert (scheduler.held, scheduler.ready, scheduler.take(9)) == (0, False, [])
