"""The short form of every scenario: the product keeps its guarantees while parts of it fail."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.report import Size, UnableHereError
from tests.marks import exhaustive, promise

pytestmark = exhaustive("real processes fail for many seconds")


def holds(name: str, folder: Path, **options: Any) -> bool:
    """Run the short form of a scenario, print its figures and return whether everything held."""
    try:
        report = importlib.import_module(f"tests.chaos.scenarios.{name}").run(Size.SHORT, folder, **options)
    except UnableHereError as why:
        pytest.skip(str(why))
    print(report)
    return report.passed


either_store = pytest.mark.parametrize("store", ["postgres", "sqlite"])


@promise("workers are killed at random: nothing lost, nothing doubled")
def test_calls_survive_killed_workers(tmp_path: Path) -> None:
    assert holds("workers_killed", tmp_path)


@promise("stopped workers wake up and complete nothing that is not theirs")
def test_a_stopped_worker_completes_no_call_that_another_took_over(tmp_path: Path) -> None:
    assert holds("workers_stopped", tmp_path)


@promise("Redis is killed again and again: nothing lost, no live lease taken")
@either_store
def test_calls_survive_a_killed_redis(tmp_path: Path, store: str) -> None:
    assert holds("redis_killed", tmp_path, store=store)


@promise("FLUSHALL: every open call is terminal within 15 seconds")
def test_every_open_call_ends_when_redis_loses_everything(tmp_path: Path) -> None:
    assert holds("redis_wiped", tmp_path)


@promise("PostgreSQL is killed again and again: nothing accepted is lost, no living engine's turn is taken")
def test_accepted_turns_survive_a_killed_postgresql(tmp_path: Path) -> None:
    assert holds("postgres_killed", tmp_path)


@promise(
    "two faults within seconds cost an `unknown` at most: nothing is doubled, without an end or told differently",
    only_in_test_all="real processes fail twice",
)
def test_a_second_fault_within_seconds_doubles_no_call(tmp_path: Path) -> None:
    assert holds("fault_pairs", tmp_path)


@promise("nothing is taken over right after an outage or a clock step")
def test_a_step_of_the_clock_of_redis_moves_no_call_to_another_worker(tmp_path: Path) -> None:
    assert holds("clock_stepped", tmp_path)


@promise("what comes twice is done once; a lost notification delays an answer and loses none")
@either_store
def test_duplicate_requests_run_once_and_lost_notifications_are_made_up_for(tmp_path: Path, store: str) -> None:
    assert holds("doubled", tmp_path, store=store)


@promise(
    "a soak with rolling restarts leaves nothing behind", only_in_test_all="only long use shows what is left behind"
)
def test_rolling_restarts_leave_nothing_behind(tmp_path: Path) -> None:
    assert holds("rolling_soak", tmp_path)


@promise("engines killed at any step of a turn, restarted or replaced: clients receive what is stored, tools run once")
@promise("the turns of an engine that is gone for good end elsewhere, and the model is shown the whole history")
@either_store
def test_turns_survive_an_engine_that_is_killed_at_any_step(tmp_path: Path, store: str) -> None:
    assert holds("engines_killed", tmp_path, store=store)


@promise("another engine adopts the turns of an engine that is gone, and the old owner is fenced")
def test_an_engine_that_stops_for_three_leases_writes_nothing_of_adopted_turns(tmp_path: Path) -> None:
    assert holds("engines_stopped", tmp_path)


@promise("a black-holed connection is noticed")
@promise("a Redis that falls silent does not keep a turn's first words")
def test_silent_connections_to_redis_are_noticed_and_nothing_waits_forever(tmp_path: Path) -> None:
    assert holds("black_hole", tmp_path)


@promise("streams cut at random have no gap and no duplicate")
def test_streams_that_are_cut_at_random_have_no_gap_and_no_duplicate(tmp_path: Path) -> None:
    assert holds("cut_streams", tmp_path)


@promise("a full disk under SQLite refuses before anything is accepted, and heals")
@promise("a full disk under Redis is an outage that heals")
def test_a_full_disk_is_survived(tmp_path: Path) -> None:
    assert holds("disk_full", tmp_path)


@promise("a frozen client is dropped and affects no other")
def test_frozen_clients_are_dropped_and_can_resume(tmp_path: Path) -> None:
    assert holds("frozen_clients", tmp_path)


@promise("an MCP server killed mid-call leaves exactly the crash table")
def test_killed_mcp_servers_leave_what_the_crash_table_says(tmp_path: Path) -> None:
    assert holds("mcp_killed", tmp_path)


@promise(
    "with every part killed no question is lost, no answer is sent twice, and each is answerable afterwards",
    only_in_test_all="real processes fail while people are asked",
)
def test_questions_survive_the_kill_of_every_part(tmp_path: Path) -> None:
    assert holds("questions_killed", tmp_path)


@promise(
    "clients of other protocols have what is stored, whatever is killed, and their tools run once",
    only_in_test_all="real processes fail while clients of every protocol ask",
)
def test_clients_of_other_protocols_have_what_is_stored(tmp_path: Path) -> None:
    assert holds("foreign_clients", tmp_path)


@promise("one reply in a hundred of Redis is lost: no duplicate entry, no lost delivery")
def test_lost_replies_of_redis_neither_double_nor_lose_a_call(tmp_path: Path) -> None:
    assert holds("replies_lost", tmp_path)


@promise("what users receive after a stop is what happened, whenever and wherever they press it")
def test_stop_at_any_moment_reports_what_really_happened(tmp_path: Path) -> None:
    assert holds("stops", tmp_path)


@promise("10,000 calls wait on at most 8 connections")
def test_thousands_of_calls_wait_on_few_connections(tmp_path: Path) -> None:
    assert holds("waiting_calls", tmp_path)
