"""The short form of every scenario: the product holds its promises while parts of it die."""

from pathlib import Path

from tests.chaos.report import Report, Size
from tests.chaos.scenarios import redis_killed, workers_killed, workers_stopped


def held(report: Report) -> bool:
    """Whether everything held; what did not is printed."""
    print(report)
    return report.passed


def test_workers_are_killed_at_random_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    assert held(workers_killed.run(Size.SHORT, tmp_path))


def test_workers_that_were_stopped_complete_nothing_that_is_not_theirs(tmp_path: Path) -> None:
    assert held(workers_stopped.run(Size.SHORT, tmp_path))


def test_redis_is_killed_again_and_again_and_nothing_is_lost_or_taken_from_the_living(tmp_path: Path) -> None:
    assert held(redis_killed.run(Size.SHORT, tmp_path))
