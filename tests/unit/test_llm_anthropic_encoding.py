"""What a request looks like to the Anthropic Messages API."""

from typing import Any

import pytest

from dialog_engine.llm.anthropic_encoding import (
    CACHE,
    clean_id,
    encode_messages,
    encode_system,
    encode_tools,
    input_schema,
    with_cache,
)
from dialog_engine.llm.profiles import PROFILES
from dialog_engine.model import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from plugins_contract.catalog import ToolEntry
from plugins_contract.outcomes import MediaBlock

Json = dict[str, Any]


def call(call_id: str = "toolu_1", arguments: str = '{"x":1}', extra: Json | None = None) -> ToolCall:
    return ToolCall(call_id, "correlation", "clock__now", arguments, extra)


def encoded(*messages: Message, profile: str = "anthropic") -> list[Json]:
    return encode_messages(messages, "claude", PROFILES[profile])


def text(words: str) -> Json:
    return {"type": "text", "text": words}


def use(call_id: str, arguments: Json) -> Json:
    return {"type": "tool_use", "id": call_id, "name": "clock__now", "input": arguments}


def test_instructions_stand_apart_from_the_conversation() -> None:
    messages = [SystemMessage("Be brief."), SystemMessage("Be kind."), UserMessage("Hi")]
    assert encode_system(messages) == [text("Be brief.\n\nBe kind.")]
    assert encode_messages(messages, "claude", PROFILES["anthropic"]) == [{"role": "user", "content": [text("Hi")]}]
    assert encode_system([SystemMessage(" ")]) == []


def test_the_results_of_a_round_are_one_message_right_behind_its_calls_and_before_what_the_user_said_then() -> None:
    assert encoded(
        UserMessage("What time is it?"),
        AssistantMessage("Let me see.", (call("a"), call("b", ""))),
        ToolMessage("a", "clock__now", "noon"),
        ToolMessage("b", "clock__now", "Error TIMEOUT: too slow", failed=True),
        UserMessage("Never mind."),
    ) == [
        {"role": "user", "content": [text("What time is it?")]},
        {"role": "assistant", "content": [text("Let me see."), use("a", {"x": 1}), use("b", {})]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [text("noon")]},
            {"type": "tool_result", "tool_use_id": "b", "content": [text("Error TIMEOUT: too slow")], "is_error": True},
            text("Never mind.")]},
    ]  # fmt: skip


def test_no_blank_text_is_sent_and_neighbours_of_a_role_are_one_message() -> None:
    assert encoded(
        UserMessage("One"),
        AssistantMessage(" \n"),
        UserMessage("Two"),
        AssistantMessage("\n", (call("a"),)),
        ToolMessage("a", "clock__now", " "),
    ) == [
        {"role": "user", "content": [text("One"), text("Two")]},
        {"role": "assistant", "content": [use("a", {"x": 1})]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": []}]},
    ]


@pytest.mark.parametrize("arguments", ["", '{"x": oops', "[1]", "null"])
def test_arguments_that_are_no_json_object_are_sent_as_an_empty_one(arguments: str) -> None:
    (message,) = encoded(AssistantMessage("", (call("a", arguments),)))
    assert message["content"] == [use("a", {})]


def test_images_are_blocks_of_their_result_where_the_model_takes_them() -> None:
    picture, sound = MediaBlock("image/png", "iVBORw0KGgo="), MediaBlock("audio/wav", "c25k")
    result = ToolMessage("a", "camera", "[image/png]", (picture, sound))
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    assert encoded(result)[0]["content"][0]["content"] == [text("[image/png]"), image]
    assert encoded(result, profile="generic")[0]["content"][0]["content"] == [text("[image/png]")]


@pytest.mark.parametrize("call_id", ["call.1", "", "functions.now:0", "é", "a b"])
def test_ids_are_sent_in_the_characters_that_are_taken_the_same_for_call_and_result(call_id: str) -> None:
    assistant, result = encoded(AssistantMessage("", (call(call_id),)), ToolMessage(call_id, "clock__now", "noon"))
    sent = assistant["content"][0]["id"]
    assert sent == result["content"][0]["tool_use_id"] == clean_id(call_id)
    assert sent.replace("_", "").replace("-", "").isalnum()
    assert sent.isascii()
    assert clean_id("toolu_1-A") == "toolu_1-A"
    assert len({clean_id(call_id) for call_id in ("a.b", "a:b", "a_b", "é", "ü", "")}) == 6


# --- Thoughts --------------------------------------------------------------------------------------------------------


def thought(at: int, words: str) -> Json:
    return {"at": at, "block": {"type": "thinking", "thinking": words, "signature": f"sig {words}"}}


def thoughts(*blocks: Json, model: str = "claude") -> Json:
    return {"anthropic": {"model": model, "blocks": list(blocks)}}


def test_what_was_thought_goes_back_in_its_place() -> None:
    one, two, three = thought(0, "one"), thought(5, "two"), thought(8, "three")
    calls = (call("a", extra=thoughts(one, two)), call("b", extra=thoughts(three)))
    (message,) = encoded(AssistantMessage("Hello me.", calls))
    assert message["content"] == [
        one["block"],
        text("Hello"),
        two["block"],
        text(" me"),
        use("a", {"x": 1}),
        three["block"],
        text("."),
        use("b", {"x": 1}),
    ]


@pytest.mark.parametrize(
    "extra",
    [
        thoughts(thought(0, "one"), model="another"),
        {"anthropic": {"model": "claude"}},
        {"anthropic": 7},
        {"extra_content": {}},
    ],
)
def test_thoughts_of_another_model_and_what_cannot_be_read_are_left_out(extra: Json) -> None:
    (message,) = encoded(AssistantMessage("Hi", (call("a", extra=extra),)))
    assert message["content"] == [text("Hi"), use("a", {"x": 1})]


# --- Tools -----------------------------------------------------------------------------------------------------------


def test_a_tool_is_sent_with_its_schema() -> None:
    schema = {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]}
    tool = ToolEntry(name="clock__now", server="clock", tool="now", description="The time", input_schema=schema)
    assert encode_tools([tool]) == [{"name": "clock__now", "description": "The time", "input_schema": schema}]
    assert input_schema({}) == {"type": "object", "properties": {}}


def test_alternatives_at_the_top_of_a_schema_become_optional_properties() -> None:
    schema = {
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "anyOf": [{"properties": {"b": {"type": "string"}}, "required": ["b"]}, {"required": ["c"]}],
        "allOf": [{"properties": {"d": {"type": "null"}}, "required": ["d"]}],
    }
    assert input_schema(schema) == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "d": {"type": "null"}},
        "required": ["a", "d"],
    }


def test_what_the_next_request_begins_with_too_is_marked_for_the_cache() -> None:
    system, tools, messages = [text("Be brief.")], encode_tools([]), encoded(UserMessage("Hi"), UserMessage("Ho"))
    with_cache(system, tools, messages)
    assert [system[-1].get("cache_control"), messages[-1]["content"][-1].get("cache_control")] == [CACHE, CACHE]
    assert "cache_control" not in messages[0]["content"][0]

    tool = ToolEntry(name="clock__now", server="clock", tool="now", input_schema={})
    tools = encode_tools([tool, tool])
    with_cache([], tools, [])
    assert ["cache_control" in each for each in tools] == [False, True]
