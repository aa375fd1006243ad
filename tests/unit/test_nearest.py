"""A name that does not exist is answered with those that come nearest to it."""

import pytest

from dialog_engine.tool_calls.nearest import MAX_LISTED, instead, nearest

TOOLS = ("files__delete", "files__list", "files__read", "notes__read", "web__fetch_page")


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("files__raed", "files__read"),
        ("Files__Read", "files__read"),
        ("files.read", "files__read"),
        ("fetch_page", "web__fetch_page"),
        ("browser__fetch_page", "web__fetch_page"),
        ("raed", "files__read"),
        ("fetchpage", "web__fetch_page"),
    ],
)
def test_what_is_meant_comes_first(name: str, first: str) -> None:
    assert nearest(name, TOOLS)[0] == first


@pytest.mark.parametrize("name", ["", "zebra", "x" * 1000])
def test_what_is_like_nothing_is_nothings(name: str) -> None:
    assert nearest(name, TOOLS) == []
    assert instead(name, TOOLS, "Tools") == f"Tools: {', '.join(TOOLS)}."


def test_the_rest_follows_in_its_order() -> None:
    assert instead("files__lost", TOOLS, "Tools") == (
        "Did you mean files__list? Tools: files__list, files__delete, files__read, notes__read, web__fetch_page."
    )


def test_of_very_many_names_those_that_come_nearest_are_told() -> None:
    many = [f"server__tool_{number}" for number in range(200)]
    said = instead("last__thing", [*many, "last__think"], "Tools")
    assert said.startswith("Did you mean last__think? Tools: last__think, server__tool_0, ")
    assert said.endswith(f", and {len(many) + 1 - MAX_LISTED} more.")
    assert said.count("__") == MAX_LISTED + 1


def test_where_there_are_none_that_is_said() -> None:
    assert instead("files__read", (), "Tools") == "Tools: none at the moment."
