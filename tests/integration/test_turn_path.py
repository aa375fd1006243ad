"""The files of a tool-calling turn in docs/architecture.md are those that a real turn passes through."""

import asyncio
import re
from difflib import SequenceMatcher
from pathlib import Path

import pytest

from benchmarks.turn_path import (
    MOST_FILES,
    MOST_GENERATORS,
    MOST_LINES,
    as_markdown,
    count_lines,
    documented,
    lines_of,
    profiled,
    token_path,
    turn_path,
)
from plugins_contract.keys import Keys
from plugins_contract.messages import new_id
from tests.marks import exhaustive

pytestmark = pytest.mark.anyio


async def test_the_documented_files_of_a_turn_are_the_ones_that_it_passes_through() -> None:
    """After a change of the files: `python -m benchmarks.turn_path --write`."""
    path = await turn_path(turns=1)
    found, listed = files_in(as_markdown(path)), files_in(documented())

    assert sorted(listed) == sorted(found)
    # Where engine and worker work at the same time the order of two files is not always the same.
    assert SequenceMatcher(None, listed, found, autojunk=False).ratio() > 0.9
    assert len(path) <= MOST_FILES
    assert {file: count for file, count in lines_of(path).items() if count > MOST_LINES} == {}


@pytest.mark.parametrize(
    "tool_mode", [pytest.param("native", marks=exhaustive("slow, and a part of the other")), "tool_use"]
)
async def test_a_token_passes_through_few_generators(tool_mode: str) -> None:
    path = await token_path(tool_mode)

    assert "dialog_engine/llm/client.py: ChatClient._answer" in path
    assert "dialog_engine/http/sse.py: _events" in path
    assert len(path) <= MOST_GENERATORS, path


async def test_background_work_is_not_on_the_path() -> None:
    async def in_a_task() -> None:
        new_id()

    with profiled() as idle:
        assert Keys().requests
    with profiled() as turn:
        assert Keys().requests
        await asyncio.create_task(in_a_task())

    assert [Path(file).name for file in turn.path(idle)] == ["messages.py"]


def test_lines_are_counted_by_subsystem() -> None:
    lines = count_lines()

    assert lines["plugins_contract/ledger"][".lua"] > 100
    assert lines["tests/integration"][".py"] > 1000


def files_in(listed: str) -> list[str]:
    """The files of a list, as `folder/name`."""
    return [
        folder + name
        for folder, names in re.findall(r"^\d+\. (\S+): (.*)$", listed, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", names)
    ]
