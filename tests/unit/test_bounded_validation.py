"""Schemas of servers that take long to apply, by design: none of them holds up the event loop."""

import asyncio
import time
from typing import Any

import pytest
from mcp import types as sdk

from dialog_engine.tool_calls.arguments import validate
from dialog_engine.tool_calls.bounded_validation import validating
from plugins_contract.catalog import Quarantined, ServerCatalog
from plugins_mcp.mcp.listing import Listing, to_catalog
from plugins_mcp.mcp.spec import ServerSpec
from plugins_mcp.mcp.transport_options import Stdio
from tests.marks import promise
from tests.support.fakes.worker import tool

LOOP_SECONDS = 0.05
"""No schema may hold the event loop longer."""
BACKTRACKING = "^(a+)+$"


def doubling(levels: int) -> dict[str, Any]:
    """Each level applies the next one twice."""
    definitions = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(levels)
    }
    return {"type": "object", "$ref": "#/$defs/d0", "$defs": definitions | {f"d{levels}": {"type": "object"}}}


BRANCHING = {
    "type": "object",
    "$ref": "#/$defs/node",
    "$defs": {"node": {"anyOf": [{"properties": {"next": {"$ref": "#/$defs/node"}}, "required": [x]} for x in "xy"]}},
}
"""It tries two ways at each level of its value."""


def nested(depth: int) -> dict[str, Any]:
    return {"next": nested(depth - 1)} if depth else {}


def properties(**schemas: Any) -> dict[str, Any]:
    return {"type": "object", "properties": schemas}


LETTERS = "a" * 40 + "!"
ATTACKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a pattern": (properties(x={"pattern": BACKTRACKING}), {"x": LETTERS}),
    "patterns of names": ({"type": "object", "patternProperties": {BACKTRACKING: {"type": "null"}}}, {LETTERS: 1}),
    "names": ({"type": "object", "propertyNames": {"pattern": BACKTRACKING}}, {LETTERS: 1}),
    "additional properties": (
        {"type": "object", "patternProperties": {BACKTRACKING: True}, "additionalProperties": False},
        {LETTERS: 1},
    ),
    "unevaluated properties": (
        {"type": "object", "patternProperties": {BACKTRACKING: True}, "unevaluatedProperties": False},
        {LETTERS: 1},
    ),
    "a pattern under another dialect": (
        properties(x={"$schema": "http://json-schema.org/draft-07/schema#", "pattern": BACKTRACKING}),
        {"x": LETTERS},
    ),
    "a large pattern on a long text": (properties(x={"pattern": "((a{0,100}){0,10}b)*c"}), {"x": "a" * 50_000}),
    "references that double": (doubling(40), {}),
    "references that branch with the value": (BRANCHING, nested(40)),
    "a reference to itself": ({"type": "object", "$ref": "#"}, {}),
    "unique objects": (properties(x={"uniqueItems": True}), {"x": [{"n": n} for n in range(10_000)]}),
    "many items": (properties(x={"items": {"type": "integer"}}), {"x": [*range(20_000)]}),
}


@promise("no schema of a server holds the event loop")
@pytest.mark.parametrize("name", ATTACKS)
def test_no_schema_holds_the_event_loop(name: str) -> None:
    schema, arguments = ATTACKS[name]

    async def attack() -> float:
        began = time.thread_time()
        await validating(validate, tool("s__t", schema), arguments, 0.5)
        return time.thread_time() - began

    assert asyncio.run(attack()) < LOOP_SECONDS


@pytest.mark.parametrize("name", ["references that double", "references that branch with the value"])
def test_a_schema_that_takes_too_long_is_named_and_not_applied_again(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    schema, arguments = ATTACKS[name]
    schema |= {"title": "one that no other test has marked"}
    expected = "the input schema of s__t takes too long to apply"
    assert expected in (validate(tool("s__t", schema), arguments, 0.05) or "")
    assert "a call of 't' at server 's' cannot be checked" in caplog.text
    began = time.thread_time()
    assert expected in (validate(tool("s__t", schema), arguments) or "")
    assert time.thread_time() - began < 0.02


def test_long_arguments_are_checked_in_a_thread_to_their_end() -> None:
    schema = properties(x={"items": {"type": "integer"}})
    numbers: list[Any] = [*range(20_000)]
    assert asyncio.run(validating(validate, tool("s__t", schema), {"x": numbers})) is None
    wrong = asyncio.run(validating(validate, tool("s__t", schema), {"x": [*numbers, "one"]}))
    assert wrong == "x[20000]: 'one' is not of type 'integer'"


@pytest.mark.parametrize(
    ("schema", "arguments", "message"),
    [
        ({"pattern": "^[a-z]+$"}, "Abc", "x: 'Abc' does not match '^[a-z]+$'"),
        ({"pattern": "^[a-z]+$"}, "abc", None),
        ({"pattern": r"^\u00e9\\u$"}, "é\\u", None),
        ({"pattern": r"^\p{Lu}$"}, "a", r"x: 'a' does not match '^\\p{Lu}$'"),
        ({"pattern": "b"}, "abc", None),
        ({"pattern": "(?=left to the server)"}, "x", None),
        ({"pattern": "x"}, 7, None),
        ({"patternProperties": {"^n": {"type": "integer"}}}, {"n1": "a", "m": "a"},
            "x.n1: 'a' is not of type 'integer'"),
        ({"patternProperties": {"^n": {}}, "additionalProperties": False}, {"n1": 1, "m": 1},
            "x: Additional properties are not allowed ('m' was unexpected)"),
        ({"patternProperties": {"(?=m)": {}}, "additionalProperties": False}, {"m": 1}, None),
        ({"additionalProperties": {"type": "null"}, "properties": {"a": {}}}, {"a": 1, "b": 1},
            "x.b: 1 is not of type 'null'"),
        ({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2, "a": 1}], "has non-unique elements"),
        ({"uniqueItems": True}, [1, True, "1", None], None),
    ],
)  # fmt: skip
def test_what_is_replaced_decides_as_before(schema: dict[str, Any], arguments: Any, message: str | None) -> None:
    found = validate(tool("s__t", properties(x=schema)), {"x": arguments})
    if message is None:
        assert found is None
    else:
        assert message in (found or ""), found


def listed(schema: dict[str, Any]) -> ServerCatalog:
    found = Listing(tools=(sdk.Tool(name="t", input_schema=schema),))
    return to_catalog(ServerSpec("s", Stdio("x")), found)


@pytest.mark.parametrize("schema", [doubling(16), {"type": "object", "$ref": "#"}])
def test_a_worker_puts_a_tool_in_quarantine_whose_references_double(schema: dict[str, Any]) -> None:
    catalog = listed(schema)
    assert not catalog.tools
    assert catalog.quarantined == (
        Quarantined(tool="t", reason="more than 10000 subschemas of the input schema apply to one value"),
    )
