"""The observer can fail: samples with something wrong in them are found out."""

import math
from dataclasses import replace

import pytest

from tests.chaos.observer import STOLEN, Away, Observations, from_the_living
from tests.chaos.sample import Seen
from tests.marks import promise

BEGUN = Seen("started", "once", 9_000, 1, "1-0", "worker-1", 500, on_stream=True)
ENDED = replace(BEGUN, state="succeeded", holder="", on_stream=False)


def observed(*states: Seen, redis_loses_data: bool = False) -> Observations:
    observations = Observations(redis_loses_data)
    for number, seen in enumerate(states):
        observations.add({"call": seen}, float(number))
    return observations


def test_a_call_on_its_way_is_not_complained_about() -> None:
    waiting = replace(BEGUN, state="published", holder="", fence=0)

    assert observed(waiting, BEGUN, replace(BEGUN, fence=2, holder="worker-2"), replace(ENDED, fence=2)).findings == []


@promise("a checker of every call finds out what must not be, and breaks when a guard is taken out")
@pytest.mark.parametrize(
    ("rule", "states"),
    [
        ("I6", (replace(BEGUN, on_stream=False),)),
        ("I5", (replace(BEGUN, holder=""),)),
        ("I1", (ENDED, BEGUN)),
        ("I1", (ENDED, replace(ENDED, state="failed"))),
        ("I10", (BEGUN, replace(BEGUN, execution_class="repeatable"))),
        ("I9", (BEGUN, replace(BEGUN, deadline=9_001))),
        ("I2", (replace(BEGUN, fence=2), BEGUN)),
    ],
)
def test_a_broken_guarantee_is_found(rule: str, states: tuple[Seen, ...]) -> None:
    assert [finding.rule for finding in observed(*states).findings] == [rule]


def test_a_wiped_server_may_lose_requests() -> None:
    assert observed(replace(BEGUN, on_stream=False), redis_loses_data=True).findings == []


def test_a_call_that_goes_back_to_who_had_lost_it_is_stolen_if_its_holder_lives() -> None:
    first, second = "host-7-ab", "host-8-cd"
    states = (replace(BEGUN, holder=first), replace(BEGUN, holder=second), replace(BEGUN, holder=first))
    away = Away(7, since=-math.inf, until=1.5)
    handovers = observed(*states).handovers

    assert [finding.what for finding in from_the_living(handovers, [away])] == [STOLEN]
    assert from_the_living(handovers, [away, Away(8, since=1.5)]) == []


def test_a_call_may_be_taken_from_a_worker_that_is_away_and_from_no_other() -> None:
    [taken] = observed(replace(BEGUN, holder="host-7-ab"), *2 * [replace(BEGUN, holder="host-8-cd")]).handovers

    assert from_the_living([taken], [Away(7, since=0.5)]) == []
    assert from_the_living([taken], [Away(7, since=0.5, until=1.5)]) == []
    for away in (Away(8, since=0.5), Away(7, since=1.5), Away(7, since=0.1, until=0.9)):
        assert [finding.call for finding in from_the_living([taken], [away])] == ["call"]


def test_the_holder_of_a_call_is_known_after_redis_lost_it_and_not_after_its_end() -> None:
    observations = observed(BEGUN, redis_loses_data=True)
    observations.add({}, 1.0)
    assert observations.held == {"call": "worker-1"}

    observations.add({"call": ENDED}, 2.0)
    assert observations.held == {}
