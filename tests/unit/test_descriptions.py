"""Tools in words for a model: a tool in one line, and suggestions for a name that does not exist. Pure."""

from typing import Any

import pytest

from dialog_engine.tool_calls.exposure.descriptions import (
    MAX_LISTED,
    MAX_SENTENCE,
    purpose,
    signature,
    similar_names,
    suggestion,
)
from tests.marks import promise
from tests.support.fakes.worker import tool


def of(properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> str:
    schema = {"type": "object", "properties": properties, "required": required or [], **more}
    return signature(tool("a__find", schema))


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ({"type": "string"}, "string"),
        ({"type": ["string", "null"]}, "string|null"),
        ({"type": "string", "enum": ["asc", "desc"]}, '"asc"|"desc"'),
        ({"type": "integer", "enum": [*range(20)]}, "integer"),
        ({"const": "yes"}, '"yes"'),
        ({"type": "array", "items": {"type": "number"}}, "number[]"),
        ({"type": "array", "items": {"type": ["number", "null"]}}, "(number|null)[]"),
        ({"type": "array"}, "array"),
        (
            {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
            "string|array|null",
        ),
        ({"$ref": "#/$defs/Order"}, '"up"|"down"'),
        ({"$ref": "#/$defs/Nothing"}, "any"),
        ({"$ref": "https://example.org/order.json"}, "any"),
        ({"$ref": "#/$defs/Self"}, "any"),
        ({"type": "object", "properties": {"x": {"type": "string"}}}, "object"),
        ({}, "any"),
        (True, "any"),
        ("broken", "any"),
    ],
)
def test_types_are_written_as_short_as_they_can_be(schema: object, written: str) -> None:
    definitions = {"Order": {"enum": ["up", "down"]}, "Self": {"$ref": "#/$defs/Self"}}
    assert of({"x": schema}, ["x"], **{"$defs": definitions}) == f"find(x: {written})"


def test_required_parameters_come_first_and_optional_ones_have_a_question_mark() -> None:
    properties = {"limit": {"type": "integer"}, "query": {"type": "string"}}
    assert of(properties, ["query"]) == "find(query: string, limit?: integer)"
    assert signature(tool("a__find", {"type": "object"})) == "find()"


@pytest.mark.parametrize("schema", [None, 1, "x", [1, {"a": 1}], {"x": {"anyOf": 3, "items": None}, "y": {"enum": 3}}])
def test_no_schema_is_too_broken(schema: object) -> None:
    assert signature(tool("a__find", {"properties": schema, "required": schema, "x": schema})).startswith("find(")
    assert signature(tool("a__find", {"properties": {"y": {}}, "required": 7})) == "find(y?: any)"


@pytest.mark.parametrize(
    ("description", "written"),
    [
        ("Finds notes. In all folders.", "Finds notes."),
        ("Finds notes\nin all folders", "Finds notes"),
        ("  Finds   notes e.g.this ", "Finds notes e.g.this"),
        ("", "Find"),
        ("x" * 500, "x" * (MAX_SENTENCE - 1) + "…"),
    ],
)
def test_the_purpose_is_the_first_sentence_or_else_the_title(description: str, written: str) -> None:
    assert purpose(tool("a__find", description=description, title="Find")) == written


# --- Suggestions ---


TOOLS = ("files__delete", "files__list", "files__read", "notes__read", "web__fetch_page")


@promise("a call of what does not exist is answered with the names that come nearest")
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
def test_similar_names_come_first(name: str, first: str) -> None:
    assert similar_names(name, TOOLS)[0] == first


@pytest.mark.parametrize("name", ["", "zebra", "x" * 1000])
def test_a_name_without_similar_ones_gives_no_guess(name: str) -> None:
    assert similar_names(name, TOOLS) == []
    assert suggestion(name, TOOLS, "Tools") == f"Tools: {', '.join(TOOLS)}."
    assert suggestion(name, (), "Tools") == "Tools: none at the moment."


def test_other_names_follow_in_their_order() -> None:
    assert suggestion("files__lost", TOOLS, "Tools") == (
        "Did you mean files__list? Tools: files__list, files__delete, files__read, notes__read, web__fetch_page."
    )


@promise("a call of what does not exist is answered with the names that come nearest")
def test_of_very_many_names_the_most_similar_are_listed() -> None:
    many = [f"server__tool_{number}" for number in range(200)]
    said = suggestion("last__thing", [*many, "last__think"], "Tools")
    assert said.startswith("Did you mean last__think? Tools: last__think, server__tool_0, ")
    assert said.endswith(f", and {len(many) + 1 - MAX_LISTED} more.")
    assert said.count("__") == MAX_LISTED + 1
