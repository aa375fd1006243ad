"""The short form of every scenario: the product keeps its guarantees while parts of it fail."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.report import Size, UnableHereError


def holds(name: str, folder: Path, **options: Any) -> bool:
    """Run the short form of a scenario, print its figures and return whether everything held."""
    try:
        report = importlib.import_module(f"tests.chaos.scenarios.{name}").run(Size.SHORT, folder, **options)
    except UnableHereError as why:
        pytest.skip(str(why))
    print(report)
    return report.passed


either_store = pytest.mark.parametrize("store", ["postgres", "sqlite"])


def test_calls_survive_killed_workers(tmp_path: Path) -> None:
    assert holds("workers_killed", tmp_path)


def test_a_stopped_worker_completes_no_call_that_another_took_over(tmp_path: Path) -> None:
    assert holds("workers_stopped", tmp_path)


@either_store
def test_calls_survive_a_killed_redis(tmp_path: Path, store: str) -> None:
    assert holds("redis_killed", tmp_path, store=store)


def test_every_open_call_ends_when_redis_loses_everything(tmp_path: Path) -> None:
    assert holds("redis_wiped", tmp_path)


def test_accepted_turns_survive_a_killed_postgresql(tmp_path: Path) -> None:
    assert holds("postgres_killed", tmp_path)


def test_a_second_fault_within_seconds_doubles_no_call(tmp_path: Path) -> None:
    assert holds("fault_pairs", tmp_path)


def test_a_step_of_the_clock_of_redis_moves_no_call_to_another_worker(tmp_path: Path) -> None:
    assert holds("clock_stepped", tmp_path)


@either_store
def test_duplicate_requests_run_once_and_lost_notifications_are_made_up_for(tmp_path: Path, store: str) -> None:
    assert holds("doubled", tmp_path, store=store)


def test_rolling_restarts_leave_nothing_behind(tmp_path: Path) -> None:
    assert holds("rolling_soak", tmp_path)


@either_store
def test_turns_survive_an_engine_that_is_killed_at_any_step(tmp_path: Path, store: str) -> None:
    assert holds("engines_killed", tmp_path, store=store)


@either_store
def test_turns_survive_an_engine_that_never_comes_back(tmp_path: Path, store: str) -> None:
    assert holds("engine_gone", tmp_path, store=store)


def test_an_engine_that_stops_for_three_leases_writes_nothing_of_adopted_turns(tmp_path: Path) -> None:
    assert holds("engines_stopped", tmp_path)


def test_silent_connections_to_redis_are_noticed_and_nothing_waits_forever(tmp_path: Path) -> None:
    assert holds("black_hole", tmp_path)


def test_streams_that_are_cut_at_random_have_no_gap_and_no_duplicate(tmp_path: Path) -> None:
    assert holds("cut_streams", tmp_path)


def test_a_full_disk_is_survived(tmp_path: Path) -> None:
    assert holds("disk_full", tmp_path)


def test_frozen_clients_are_dropped_and_can_resume(tmp_path: Path) -> None:
    assert holds("frozen_clients", tmp_path)


def test_killed_mcp_servers_leave_what_the_crash_table_says(tmp_path: Path) -> None:
    assert holds("mcp_killed", tmp_path)


def test_lost_replies_of_redis_neither_double_nor_lose_a_call(tmp_path: Path) -> None:
    assert holds("replies_lost", tmp_path)


def test_stop_at_any_moment_reports_what_really_happened(tmp_path: Path) -> None:
    assert holds("stops", tmp_path)


def test_thousands_of_calls_wait_on_few_connections(tmp_path: Path) -> None:
    assert holds("waiting_calls", tmp_path)
