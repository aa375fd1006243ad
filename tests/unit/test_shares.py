"""Fair shares: which calls may stand in the stream."""

import random

import pytest

from dialog_engine.relay.fair_scheduler import FairScheduler


def flooded(window: int = 2, **asked: int) -> FairScheduler:
    """Subjects that asked for so many calls each: `a` for a0, a1, …"""
    shares = FairScheduler(window)
    for subject, count in asked.items():
        for number in range(count):
            shares.enter(subject, f"{subject}{number}")
    return shares


def test_up_to_the_window_calls_go_at_once_and_then_they_are_held_back() -> None:
    shares = FairScheduler(2)
    assert [shares.enter("a", f"a{n}") for n in range(4)] == [True, True, False, False]
    assert (shares.held, shares.ready, shares.take(9)) == (2, False, [])
    assert shares.enter("b", "b0")


def test_without_a_window_nothing_is_held_back() -> None:
    shares = FairScheduler(0)
    assert all(shares.enter("a", str(n)) for n in range(10_000))
    assert shares.held == 0


@pytest.mark.parametrize("freed", ["a0", "a1"])
def test_a_call_that_begins_or_ends_lets_the_oldest_go(freed: str) -> None:
    shares = flooded(a=5)
    shares.leave(freed)
    assert shares.ready
    assert shares.take(9) == ["a2"]
    assert not shares.ready


def test_who_is_new_does_not_overtake_its_own_subject() -> None:
    shares = flooded(a=3)
    shares.leave("a0")
    assert not shares.enter("a", "a3")
    assert shares.take(9) == ["a2"]


def test_subjects_take_turns() -> None:
    shares = flooded(2, a=6, b=6, c=3)
    for call in ("a0", "a1", "b0", "b1", "c0"):
        shares.leave(call)
    assert shares.take(4) == ["a2", "b2", "c2", "a3"]
    assert shares.take(4) == ["b3"]


def test_what_could_not_be_published_is_the_first_of_its_subject_again() -> None:
    shares = flooded(3, a=5)
    for call in ("a2", "a1"):
        shares.put_back(call)
    assert shares.held == 4
    assert shares.take(1) == ["a1"]
    assert shares.take(9) == ["a2"]


def test_a_call_that_is_held_back_and_ends_never_goes() -> None:
    shares = flooded(a=5)
    assert shares.leave("a2")
    assert not shares.leave("a0")
    assert not shares.leave("nobody's")
    assert (shares.take(9), shares.held) == (["a3"], 1)
    assert "a2" not in shares


def test_calls_of_an_earlier_life_have_their_places_even_past_the_window() -> None:
    shares = FairScheduler(2)
    for number in range(3):
        shares.stand("a", f"old{number}")
    assert not shares.enter("a", "a0")
    shares.leave("old0")
    assert shares.take(9) == []
    shares.leave("old1")
    assert shares.take(9) == ["a0"]


def test_those_that_should_have_begun_first_are_doubted_first_and_only_where_others_wait() -> None:
    shares = flooded(3, a=9, b=9, c=3)
    assert shares.in_the_way(4) == ["a0", "a1", "b0", "b1"]
    assert flooded(3, c=3).in_the_way(4) == []
    assert flooded(1, a=2, b=2).in_the_way(1) == ["a0", "b0"]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_a_subject_has_no_more_than_its_window_and_its_order(seed: int) -> None:
    chance = random.Random(seed)
    shares, window = FairScheduler(3), 3
    waiting: dict[str, list[str]] = {"a": [], "b": [], "c": []}
    standing: dict[str, list[str]] = {"a": [], "b": [], "c": []}
    for number in range(2000):
        subject = chance.choice("abc")
        match chance.randrange(4):
            case 0 | 1:
                call = f"{subject}{number}"
                (standing if shares.enter(subject, call) else waiting)[subject].append(call)
            case 2:
                if calls := standing[subject] + waiting[subject]:
                    call = chance.choice(calls)
                    (standing if call in standing[subject] else waiting)[subject].remove(call)
                    shares.leave(call)
            case _:
                for call in shares.take(chance.randrange(5)):
                    assert waiting[call[0]].pop(0) == call
                    standing[call[0]].append(call)
        assert all(len(calls) <= window for calls in standing.values())
        assert shares.held == sum(map(len, waiting.values()))
        assert shares.ready == any(waiting[s] and len(standing[s]) < window for s in "abc")
    for call in [call for calls in (*waiting.values(), *standing.values()) for call in calls]:
        shares.leave(call)
    assert (shares.held, shares.ready, shares.take(9)) == (0, False, [])
