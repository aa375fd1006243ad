"""Bodies of other protocols that must not be stored or copied as they are, with the fields that errors name."""

import json
from typing import Any

import pytest

from dialog_engine.facades.chat_completions.request import read_request as read_completion
from dialog_engine.facades.conversations.request import read_described
from dialog_engine.facades.images import MAX_IMAGES, RefusedError
from dialog_engine.facades.responses.request import read_request as read_response
from dialog_engine.model import Sampling
from tests.marks import promise

HI = {"role": "user", "content": "Hi"}
TURN = "0" * 32
PNG = "data:image/png;base64,iVBORw0KGgo="


def read(reader: str, body: dict[str, Any]) -> Any:
    match reader:
        case "chat":
            return read_completion(json.dumps({"model": "m", "messages": [HI]} | body).encode())
        case "response":
            return read_response(json.dumps({"model": "m", "input": "Hi"} | body).encode())
        case _:
            return read_described(json.dumps(body).encode())


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"type": "json_object", "a": value}
    return value


def called(**fields: Any) -> list[Any]:
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"} | fields}
    return [{"role": "assistant", "tool_calls": [call]}, HI]


def function(**fields: Any) -> list[Any]:
    return [{"type": "function", "name": "f", **fields}]


def server(label: str = "s", **fields: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": label, **fields}


def item(kind: str, **fields: Any) -> list[Any]:
    return [{"type": kind, **fields}, HI]


FORMAT = {"type": "json_schema", "name": "n"}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("chat", {"response_format": nested(900)}, "response_format"),
    ("chat", {"response_format": {"type": "json_object", "\0": 1}}, "response_format"),
    ("chat", {"response_format": {"type": "a" * 200_000}}, "response_format"),
    ("chat", {"stop": ["a\0"]}, "stop"),
    ("chat", {"stop": ["a"] * 51}, "stop"),
    ("chat", {"reasoning_effort": "\0"}, "reasoning_effort"),
    ("chat", {"parallel_tool_calls": False}, "parallel_tool_calls"),
    ("chat", {"messages": called(name="\0")}, "messages[0].tool_calls[0].function.name"),
    ("chat", {"messages": called(arguments="\0")}, "messages[0].tool_calls[0].function.arguments"),
    ("chat", {"messages": [called()[0] | {"tool_calls": called()[0]["tool_calls"] * 10_001}, HI]}, "messages"),
    ("chat", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG}}] * 501}]},
        "messages"),
    ("chat", {"logit_bias": {"a": [1] * 500_000}}, "body"),
    ("response", {"tools": [server(), server(allowed_tools=[])]}, "tools[1].server_label"),
    ("response", {"tools": [server(f"{n}", allowed_tools=[]) for n in range(51)]}, "tools"),
    ("response", {"tools": function() * 500}, "tools"),
    ("response", {"tools": function(parameters={"type": "object", "a": nested(900)})}, "tools[0].parameters"),
    ("response", {"tools": function(strict=nested(900))}, "tools[0].strict"),
    ("response", {"tools": [server(require_approval={"never": nested(900)})]}, "tools[0].require_approval"),
    ("response", {"tools": [server(server_description="\0")]}, "tools[0].server_description"),
    ("response", {"tools": function(), "tool_choice": {"type": "function", "name": "f", "a": nested(900)}},
        "tool_choice"),
    ("response", {"text": {"format": FORMAT | {"schema": nested(900)}}}, "text.format"),
    ("response", {"text": {"format": FORMAT | {"schema": {"\0": 1}}}}, "text.format"),
    ("response", {"reasoning": {"effort": "\0"}}, "reasoning"),
    ("response", {"metadata": {"a\0": "b"}}, "metadata"),
    ("response", {"previous_response_id": f"resp_{TURN}_\0"}, "previous_response_id"),
    ("response", {"input": [{"type": "mcp_approval_response", "approval_request_id": f"mcpr_{TURN}_a\0.h"}]},
        "input[0].approval_request_id"),
    ("response", {"input": item("item_reference", id=f"msg_{TURN}_\0")}, "input[0].id"),
    ("response", {"input": item("function_call", call_id="c", name="\0")}, "input[0].name"),
    ("response", {"input": item("function_call", call_id="c", arguments="\0")}, "input[0].arguments"),
    ("response", {"input": item("mcp_call", id="\0")}, "input[0].id"),
    ("response", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": PNG}] * 501}]}, "input"),
    ("response", {"prompt": [[]] * 500_000}, "body"),
    ("metadata", {"metadata": {"a": "b\0"}}, "metadata"),
]  # fmt: skip


@promise("U+0000 is refused in requests, replaced in what models and tools write, and never an outage of the database")
@pytest.mark.parametrize(("reader", "body", "param"), REFUSED)
def test_what_cannot_be_stored_and_read_again_is_refused_with_its_field(
    reader: str, body: dict[str, Any], param: str
) -> None:
    with pytest.raises(RefusedError) as refused:
        read(reader, body)
    assert refused.value.param == param


def test_a_field_that_is_null_is_one_that_is_left_out() -> None:
    said = [*called(arguments=None), {"role": "user", "content": [{"type": "text", "text": "Hi", "refusal": None}]}]
    assert read("chat", {"messages": [each | {"tool_call_id": None} for each in said]}).question == "Hi"
    nothing = dict.fromkeys(("id", "call_id", "name", "arguments", "approve", "reason", "output"))
    assert read("response", {"input": [nothing | HI]}).question == "Hi"


def test_what_a_response_says_of_its_tools_is_what_is_known_of_them() -> None:
    tools = [server(allowed_tools=["a"], junk=nested(900)), *function(junk="a")]
    said = read("response", {"tools": tools}).said["tools"]
    unsaid = {"description": None, "parameters": None, "strict": None}
    assert said == [server(allowed_tools=["a"]), {**function()[0], **unsaid}]


def test_as_many_images_as_are_allowed_are_read_and_reasoning_effort_is_for_the_model() -> None:
    images = [{"type": "image_url", "image_url": {"url": PNG}}] * MAX_IMAGES
    wanted = read("chat", {"messages": [{"role": "user", "content": images}], "reasoning_effort": "low"})
    assert len(wanted.brought.media) == MAX_IMAGES
    assert wanted.brought.sampling == Sampling(reasoning_effort="low")
