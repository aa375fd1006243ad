"""Names: what a model calls a tool, and what each call is called."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins_contract.catalog import MAX_NAME_LENGTH, exposed_name
from plugins_contract.messages import new_id
from tests.marks import promise

ACCEPTED = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@pytest.mark.parametrize(
    ("server", "tool", "name"),
    [
        ("time", "convert_time", "time__convert_time"),
        ("s", "t" * 61, "s__" + "t" * 61),
        ("demo", "a__b", "demo__a__b"),
        ("github.com", "search", "github_com__search_a0ac03fd"),
    ],
)
def test_a_name_that_fits_is_server_and_tool_and_never_changes(server: str, tool: str, name: str) -> None:
    assert exposed_name(server, tool) == name


@promise("tool names are stable, at most 64 characters and never collide")
@given(st.text(min_size=1), st.text(min_size=1))
def test_every_name_is_one_that_providers_accept(server: str, tool: str) -> None:
    name = exposed_name(server, tool)

    assert ACCEPTED.fullmatch(name)
    assert len(name) <= MAX_NAME_LENGTH


@promise("tool names are stable, at most 64 characters and never collide")
@given(st.lists(st.tuples(st.text("ab_.", min_size=1), st.text("ab_.", min_size=1)), unique=True))
def test_two_tools_never_share_a_name(pairs: list[tuple[str, str]]) -> None:
    assert len({exposed_name(*pair) for pair in pairs}) == len(pairs)


def test_ids_are_unique_and_sort_by_the_millisecond_they_were_made_in() -> None:
    ids = [new_id() for _ in range(1_000)]

    assert len(set(ids)) == len(ids)
    assert [name[:13] for name in ids] == sorted(name[:13] for name in ids)
