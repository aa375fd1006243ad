"""The files of a tool-calling turn in docs/architecture.md are those that a real turn passes through."""

import re
from difflib import SequenceMatcher

import pytest

from benchmarks.turn_path import (
    MOST_FILES,
    MOST_GENERATORS,
    MOST_LINES,
    as_markdown,
    documented,
    lines_of,
    token_path,
    turn_path,
)
from tests.marks import exhaustive

pytestmark = exhaustive("slow, and it changes with the architecture only")


async def test_the_documented_files_of_a_turn_are_the_ones_that_it_passes_through() -> None:
    """After a change of the files: `python -m benchmarks.turn_path --write`."""
    path = await turn_path(turns=1)
    found, listed = files_in(as_markdown(path)), files_in(documented())

    assert sorted(listed) == sorted(found)
    # Where engine and worker work at the same time the order of two files is not always the same.
    assert SequenceMatcher(None, listed, found, autojunk=False).ratio() > 0.9
    assert len(path) <= MOST_FILES
    assert {file: count for file, count in lines_of(path).items() if count > MOST_LINES} == {}


@pytest.mark.parametrize("tool_mode", ["native", "tool_use"])
async def test_a_token_passes_through_few_generators(tool_mode: str) -> None:
    path = await token_path(tool_mode)

    assert "dialog_engine/llm/client.py: ChatClient._answer" in path
    assert "dialog_engine/http/sse.py: _events" in path
    assert len(path) <= MOST_GENERATORS, path


def files_in(listed: str) -> list[str]:
    """The files of a list, as `folder/name`."""
    return [
        folder + name
        for folder, names in re.findall(r"^\d+\. (\S+): (.*)$", listed, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", names)
    ]
