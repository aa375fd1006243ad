"""The short form of every scenario: the product holds its promises while parts of it die."""

from pathlib import Path

import pytest

from tests.chaos.report import Report, Size, UnableHereError
from tests.chaos.scenarios import (
    clock_stepped,
    doubled,
    engine_gone,
    engines_killed,
    engines_stopped,
    postgres_killed,
    redis_killed,
    redis_wiped,
    rolling_soak,
    workers_killed,
    workers_stopped,
)
from tests.support.store import Kind

either_store = pytest.mark.parametrize("store", ["postgres", "sqlite"])


def held(report: Report) -> bool:
    """Whether everything held; what was measured is printed."""
    print(report)
    return report.passed


def test_workers_are_killed_at_random_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    assert held(workers_killed.run(Size.SHORT, tmp_path))


def test_workers_that_were_stopped_complete_nothing_that_is_not_theirs(tmp_path: Path) -> None:
    assert held(workers_stopped.run(Size.SHORT, tmp_path))


@either_store
def test_redis_is_killed_again_and_again_and_nothing_is_lost_or_taken_from_the_living(
    tmp_path: Path, store: Kind
) -> None:
    assert held(redis_killed.run(Size.SHORT, tmp_path, store=store))


def test_redis_loses_everything_and_every_open_call_has_its_end_soon_and_no_session_is_missing(tmp_path: Path) -> None:
    assert held(redis_wiped.run(Size.SHORT, tmp_path))


def test_postgresql_is_killed_again_and_again_and_nothing_accepted_is_lost(tmp_path: Path) -> None:
    assert held(postgres_killed.run(Size.SHORT, tmp_path))


def test_the_clock_of_redis_is_set_and_no_call_is_taken_from_the_living_or_runs_out_of_time(tmp_path: Path) -> None:
    try:
        assert held(clock_stepped.run(Size.SHORT, tmp_path))
    except UnableHereError as why:
        pytest.skip(str(why))


@either_store
def test_what_comes_twice_is_done_once_and_what_does_not_ring_is_found(tmp_path: Path, store: Kind) -> None:
    assert held(doubled.run(Size.SHORT, tmp_path, store=store))


def test_a_soak_with_rolling_restarts_leaves_nothing_behind(tmp_path: Path) -> None:
    assert held(rolling_soak.run(Size.SHORT, tmp_path))


@either_store
def test_an_engine_is_killed_in_the_middle_of_turns_and_they_end_as_they_are_told(tmp_path: Path, store: Kind) -> None:
    assert held(engines_killed.run(Size.SHORT, tmp_path, store=store))


@either_store
def test_an_engine_is_gone_for_good_and_the_other_goes_on_with_its_sessions(tmp_path: Path, store: Kind) -> None:
    assert held(engine_gone.run(Size.SHORT, tmp_path, store=store))


def test_an_engine_that_stood_still_for_three_leases_writes_nothing_of_the_turns_that_others_took(
    tmp_path: Path,
) -> None:
    assert held(engines_stopped.run(Size.SHORT, tmp_path))
