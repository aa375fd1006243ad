"""The files on the path of a turn are found by running one."""

import asyncio

import pytest

from benchmarks.turn_path import count_lines, profiled, turn_path
from plugins_contract.ids import new_id
from plugins_contract.keys import Keys

pytestmark = pytest.mark.anyio


async def test_the_path_of_a_turn_leads_through_engine_and_worker_and_past_what_runs_beside_them() -> None:
    path = await turn_path(turns=1)
    modules = {file.partition("/src/")[2] for file in path}

    assert len(modules) == len(path)
    assert modules > {
        "dialog_engine/http/turns.py",
        "dialog_engine/tool_calls/pipeline.py",
        "plugins_contract/messages.py",
        "plugins_mcp/handler.py",
        "plugins_mcp/mcp/server.py",
    }
    assert not modules & {"plugins_mcp/catalog.py", "plugins_mcp/adoption.py", "dialog_engine/config.py"}
    assert path.index(_named(path, "http/turns.py")) < path.index(_named(path, "plugins_mcp/handler.py"))


async def test_what_new_tasks_run_is_told_from_what_others_run() -> None:
    async def in_a_task() -> None:
        new_id()

    with profiled() as profile:
        assert Keys().requests
        await asyncio.create_task(in_a_task())

    by_new_task = {file.rpartition("/")[2]: new for file, new in profile.files.items()}
    assert (by_new_task["keys.py"], by_new_task["ids.py"]) == (False, True)


def test_lines_are_counted_by_subsystem() -> None:
    lines = count_lines()

    assert lines["plugins_contract/ledger"][".lua"] > 100
    assert lines["tests/integration"][".py"] > 1000


def _named(path: list[str], end: str) -> str:
    [file] = [file for file in path if file.endswith(end)]
    return file
