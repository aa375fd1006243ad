"""The short form of every scenario: the product keeps its guarantees while parts of it fail."""

import importlib
from pathlib import Path

import pytest

from tests.chaos.report import Size, UnableHereError
from tests.marks import exhaustive, promise

pytestmark = exhaustive("real processes fail for many seconds")


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param("workers_killed", marks=promise("workers are killed at random: nothing lost, nothing doubled")),
        pytest.param(
            "workers_stopped", marks=promise("stopped workers wake up and complete nothing that is not theirs")
        ),
        pytest.param(
            "redis_killed postgres", marks=promise("Redis is killed again and again: nothing lost, no live lease taken")
        ),
        "redis_killed sqlite",
        pytest.param("redis_wiped", marks=promise("FLUSHALL: every open call is terminal within 15 seconds")),
        pytest.param(
            "postgres_killed",
            marks=promise(
                "PostgreSQL is killed again and again: nothing accepted is lost, no living engine's turn is taken"
            ),
        ),
        pytest.param(
            "fault_pairs",
            marks=promise(
                "two faults within seconds cost an `unknown` at most: nothing is doubled, without an end or told differently",
                only_in_test_all="real processes fail twice",
            ),
        ),
        pytest.param("clock_stepped", marks=promise("nothing is taken over right after an outage or a clock step")),
        pytest.param(
            "doubled postgres",
            marks=promise("what comes twice is done once; a lost notification delays an answer and loses none"),
        ),
        "doubled sqlite",
        pytest.param(
            "rolling_soak",
            marks=promise(
                "a soak with rolling restarts leaves nothing behind",
                only_in_test_all="only long use shows what is left behind",
            ),
        ),
        pytest.param(
            "engines_killed postgres",
            marks=[
                promise(
                    "engines killed at any step of a turn, restarted or replaced: clients receive what is stored, tools run once"
                ),
                promise(
                    "the turns of an engine that is gone for good end elsewhere, and the model is shown the whole history"
                ),
            ],
        ),
        "engines_killed sqlite",
        pytest.param(
            "engines_stopped",
            marks=promise("another engine adopts the turns of an engine that is gone, and the old owner is fenced"),
        ),
        pytest.param(
            "black_hole",
            marks=[
                promise("a black-holed connection is noticed"),
                promise("a Redis that falls silent does not keep a turn's first words"),
            ],
        ),
        pytest.param("cut_streams", marks=promise("streams cut at random have no gap and no duplicate")),
        pytest.param(
            "disk_full",
            marks=[
                promise("a full disk under SQLite refuses before anything is accepted, and heals"),
                promise("a full disk under Redis is an outage that heals"),
            ],
        ),
        pytest.param("frozen_clients", marks=promise("a frozen client is dropped and affects no other")),
        pytest.param("mcp_killed", marks=promise("an MCP server killed mid-call leaves exactly the crash table")),
        pytest.param(
            "replies_lost",
            marks=promise("one reply in a hundred of Redis is lost: no duplicate entry, no lost delivery"),
        ),
        pytest.param(
            "stops",
            marks=promise("what users receive after a stop is what happened, whenever and wherever they press it"),
        ),
        pytest.param("waiting_calls", marks=promise("10,000 calls wait on at most 8 connections")),
    ],
)
def test_the_product_keeps_its_promise(scenario: str, tmp_path: Path) -> None:
    name, *store = scenario.split()
    module = importlib.import_module(f"tests.chaos.scenarios.{name}")
    try:
        report = module.run(Size.SHORT, tmp_path, **{"store": each for each in store})
    except UnableHereError as why:
        pytest.skip(str(why))
    print(report)
    assert report.passed
