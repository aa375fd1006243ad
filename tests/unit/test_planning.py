"""Planning: what is decided about a tool call before anything is sent. Pure."""

import json
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialog_engine.model import ToolCall
from dialog_engine.tool_calls import arguments as limits
from dialog_engine.tool_calls.arguments import read_arguments
from dialog_engine.tool_calls.planning import plan
from dialog_engine.tool_calls.values import Runnable, Unrunnable
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState
from tests.marks import promise
from tests.support.fakes.worker import FakeCatalog, tool

ADDRESS = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "home": {"type": "object", "properties": {"zip": {"type": "integer"}}, "required": ["zip"]},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
    },
    "required": ["name"],
    "additionalProperties": False,
}


def planned(arguments: str, schema: dict[str, Any] | None = None) -> Runnable | Unrunnable:
    return plan(ToolCall("call_1", "id", "a__b", arguments), FakeCatalog(tool("a__b", schema)))


def message(arguments: str, schema: dict[str, Any] | None = None) -> str:
    match planned(arguments, schema):
        case Unrunnable(outcome=outcome) if outcome.error:
            assert outcome.state is CallState.FAILED
            assert outcome.error.code is ErrorCode.INVALID_ARGUMENTS
            return outcome.error.message
        case other:
            raise AssertionError(other)


@pytest.mark.parametrize("text", ["", "  \n", "{}"])
def test_no_text_at_all_means_no_arguments(text: str) -> None:
    assert isinstance(planned(text), Runnable)
    assert read_arguments(text) == {}


@pytest.mark.parametrize(
    ("type_", "required", "expected"),
    [("boolean", [], {}), (["boolean", "null"], [], {"x": None}), ("null", [], {"x": None}), (["string"], "x", {})],
)
def test_a_null_for_a_field_that_may_be_left_out_is_left_out(type_: Any, required: Any, expected: Any) -> None:
    schema = {"type": "object", "properties": {"x": {"type": type_}}, "required": required}
    if not isinstance(required, list):
        del schema["required"]
    match planned('{"x": null}', schema):
        case Runnable(arguments=arguments):
            assert arguments == expected
        case other:
            raise AssertionError(other)
    assert "x: None is not of type 'boolean'" in message(
        '{"x": null}', schema | {"properties": {"x": {"type": "boolean"}}, "required": ["x"]}
    )


ADDS = FakeCatalog(tool("demo__add"), tool("other__add"), tool("other__sub"), tool("add__x"))


@promise("the name of a tool at its server is enough where one server has it; else the error lists them")
@pytest.mark.parametrize(
    ("name", "arguments", "found"),
    [
        ("sub", "{}", "other__sub"),
        ("other__sub", "{}", "other__sub"),
        ("x", "{}", "add__x"),
        ("other__add", "{}", "other__add"),
        ("add", "{broken", "several servers have a tool 'add': call demo__add or other__add"),
        ("y", "{broken", "there is no tool 'y'"),
    ],
)
def test_the_bare_name_of_a_tool_that_one_server_has_is_that_tool(name: str, arguments: str, found: str) -> None:
    match plan(ToolCall("call_1", "id", name, arguments), ADDS):
        case Runnable(call=call, tool=entry):
            assert (call.name, entry.name) == (found, found)
        case Unrunnable(outcome=outcome):
            assert outcome.error is not None
            assert (outcome.error.code, found in outcome.error.message) == (ErrorCode.TOOL_NOT_FOUND, True)


@pytest.mark.parametrize(
    "text", ['{"a": 1', "{'a': 1}", "a = 1", '{"a": NaN}', '{"a": 1} {"b": 2}', '{"a": "\\ud800"}']
)
def test_text_that_is_not_json_is_reported(text: str) -> None:
    assert "not valid JSON" in message(text)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[1]", "an array"),
        ('"a"', "a string"),
        ("1", "a number"),
        ("1.5", "a number"),
        ("true", "a boolean"),
        ("null", "null"),
    ],
)
def test_json_that_is_not_an_object_is_reported(text: str, kind: str) -> None:
    assert message(text) == f"the arguments must be one JSON object, not {kind}."


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"name": 1}, "name: 1 is not of type 'string'"),
        ({"name": "Ada", "home": {"zip": "x"}}, "home.zip: 'x' is not of type 'integer'"),
        ({"name": "Ada", "home": {}}, "home: 'zip' is a required property"),
        ({"name": "Ada", "tags": ["a", "c"]}, "tags[1]: 'c' is not one of ['a', 'b']"),
        ({}, "arguments: 'name' is a required property"),
        (
            {"name": "Ada", "age": 3},
            "arguments: Additional properties are not allowed ('age' was unexpected). Known are: name, home, tags",
        ),
        ({"name": "Ada", "home": {"zip": "12"}}, "home.zip: '12' is not of type 'integer'"),
        # Several at once, the first three of them.
        (
            {"home": {"zip": "x"}, "tags": ["c"]},
            "home.zip: 'x' is not of type 'integer'; tags[0]: 'c' is not one of ['a', 'b'];"
            " arguments: 'name' is a required property",
        ),
        (
            {"name": 1, "home": {"zip": "x"}, "tags": ["c", "d"]},
            "name: 1 is not of type 'string'; home.zip: 'x' is not of type 'integer';"
            " tags[0]: 'c' is not one of ['a', 'b']; and there is more",
        ),
    ],
)
def test_a_validation_message_names_the_field(arguments: dict[str, Any], field: str) -> None:
    assert message(json.dumps(arguments), ADDRESS) == field


@pytest.mark.parametrize(
    ("schema", "value", "words"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1, "x: 1 is not of type 'string', 'null'"),
        ({"type": ["string", "null"]}, 1, "x: 1 is not of type 'string', 'null'"),
        (
            {"anyOf": [{"type": "null"}, {"type": "object", "required": ["id"]}]},
            {"name": "x"},
            "x: 'id' is a required property",
        ),
        ({"type": "integer"}, "y" * 1000, f"x: '{'y' * 78}… is not of type 'integer'"),
        ({"minimum": 3}, 1, "x: 1 is less than the minimum of 3"),
    ],
)
def test_a_validation_message_says_what_was_expected(schema: dict[str, Any], value: object, words: str) -> None:
    assert message(json.dumps({"x": value}), {"properties": {"x": schema}}) == words


def test_a_reference_within_the_schema_is_followed() -> None:
    schema = {"$defs": {"n": {"type": "integer"}}, "properties": {"n": {"$ref": "#/$defs/n"}}}

    assert isinstance(planned('{"n": 1}', schema), Runnable)
    assert message('{"n": "x"}', schema) == "n: 'x' is not of type 'integer'"


def test_a_remote_reference_is_never_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> None:
        raise AssertionError("a schema made us open a connection")

    monkeypatch.setattr(socket.socket, "connect", connect)
    schema = {"properties": {"x": {"$ref": "http://127.0.0.1:9/schema.json"}}}

    assert "schema of a__b is broken: Unresolvable: http://127.0.0.1:9/schema.json" in message('{"x": 1}', schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "banana"},
        {"properties": {"x": {"pattern": "("}}},
        {"properties": {"x": {"minLength": "a"}}},
        {"properties": {"x": 3}},
        {"$ref": "#/definitions/nowhere"},
        {"$ref": "#"},
    ],
)
def test_a_broken_schema_accepts_nothing_and_affects_no_other_tool(schema: dict[str, Any]) -> None:
    assert "the input schema of a__b is broken" in message('{"x": "1"}', schema)


def nested(levels: int) -> str:
    return '{"x":' * levels + "1" + "}" * levels


def test_arguments_as_long_and_as_deep_as_is_allowed_are_taken_and_others_are_not() -> None:
    text = json.dumps({"x": "y" * (limits.MAX_CHARACTERS - len('{"x": ""}'))})
    schema = {"properties": {"x": {"anyOf": [{"type": "integer"}, {"$ref": "#"}]}}}

    assert isinstance(planned(text), Runnable)
    assert "256001 characters, 256000 at most" in message(text + " ")
    assert isinstance(planned(nested(limits.MAX_DEPTH), schema), Runnable)
    assert "more than 64 objects" in message(nested(limits.MAX_DEPTH + 1), schema)
    for extreme in ("[" * 100_000, nested(30_000), '{"x":' + "[" * 900 + "]" * 900 + "}"):
        assert len(message(extreme)) < 200


def test_validation_messages_are_bounded() -> None:
    long = "k" * 100_000

    assert len(message(json.dumps({"name": "Ada", long: 1}), ADDRESS)) < 1_100
    schema = {"additionalProperties": {"type": "integer"}}
    assert len(message(json.dumps({long: "x"}), schema)) < 1_100


@given(st.text())
def test_any_text_gives_an_object_or_a_message(text: str) -> None:
    assert read_arguments(text) != ""


def test_an_object_is_read_as_it_was_written() -> None:
    value = {"Ä \U0001f600\n": ["Ö\0", {"": [None, True, -(2**63), 0.1]}], "ä": []}
    assert read_arguments(json.dumps(value)) == read_arguments(json.dumps(value, ensure_ascii=False)) == value
