"""What a request looks like to a provider, and which provider is spoken to how."""

import re
from base64 import b64encode
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from dialog_engine.errors import ConfigurationError
from dialog_engine.llm.anthropic_encoding import encode_messages as for_anthropic
from dialog_engine.llm.images import NOT_SHOWN, images_of
from dialog_engine.llm.openai_client import encode_messages, encode_tools, nine_characters
from dialog_engine.llm.profiles import PROFILES, profile_of
from dialog_engine.model import AssistantMessage, SystemMessage, ToolCall, ToolMessage, UserMessage
from plugins_contract.catalog import ToolEntry
from plugins_contract.outcomes import MediaBlock
from tests.marks import promise
from tests.support.processes import ROOT

GENERIC = PROFILES["generic"]


def call(arguments: str = '{"x":1}', extra: dict[str, Any] | None = None) -> ToolCall:
    return ToolCall("a", "correlation", "clock__now", arguments, extra)


def test_a_conversation_is_encoded_in_the_roles_of_the_protocol() -> None:
    messages = (
        SystemMessage("Be brief."),
        UserMessage("What time is it?"),
        AssistantMessage("Let me see.", (call(),)),
        ToolMessage("a", "clock__now", "noon"),
        AssistantMessage("Noon."),
    )
    function = {"name": "clock__now", "arguments": '{"x":1}'}
    assert encode_messages(messages, GENERIC) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What time is it?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [{"id": "a", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "a", "name": "clock__now", "content": "noon"},
        {"role": "assistant", "content": "Noon."},
    ]


def test_content_is_null_only_where_calls_take_its_place() -> None:
    with_calls, without = encode_messages([AssistantMessage("", (call(),)), AssistantMessage("")], GENERIC)
    assert with_calls["content"] is None
    assert without["content"] == ""
    (message,) = encode_messages([AssistantMessage("", (call(),))], PROFILES["ollama"])
    assert message["content"] == "", "templates there fail on null"


@pytest.mark.parametrize("arguments", ["", " ", '{"x": oops', "[1]", "null", '"text"', '{"x":1}{"x":1}', "[" * 9999])
def test_arguments_that_are_no_json_object_are_sent_as_an_empty_one(arguments: str) -> None:
    (message,) = encode_messages([AssistantMessage("", (call(arguments),))], GENERIC)
    assert message["tool_calls"][0]["function"]["arguments"] == "{}"


def test_extras_of_a_call_are_echoed_and_never_displace_its_own_fields() -> None:
    extra = {"extra_content": {"google": {"thought_signature": "c2ln"}}, "id": "other"}
    (message,) = encode_messages([AssistantMessage("", (call(extra=extra),))], GENERIC)
    assert message["tool_calls"][0]["extra_content"] == extra["extra_content"]
    assert message["tool_calls"][0]["id"] == "a"


def test_reasoning_goes_back_with_calls_only() -> None:
    messages = [AssistantMessage("", (call(),), reasoning="hm"), AssistantMessage("Hi", reasoning="hm")]
    with_calls, without = encode_messages(messages, PROFILES["deepseek"])
    assert with_calls["reasoning_content"] == "hm"
    assert "reasoning_content" not in without
    assert "hm" not in str(encode_messages(messages, PROFILES["openai"]))


def test_a_call_and_its_result_keep_the_same_id_when_ids_are_mapped() -> None:
    messages = [AssistantMessage("", (call(),)), ToolMessage("a", "clock__now", "noon")]
    assistant, result = encode_messages(messages, PROFILES["mistral"])
    assert assistant["tool_calls"][0]["id"] == result["tool_call_id"] == nine_characters("a")


def test_ids_for_mistral_are_nine_letters_and_digits() -> None:
    assert nine_characters("D681PevKs") == "D681PevKs"
    mapped = [nine_characters(text) for text in ("call_1", "call_2", "D681PevKs_2")]
    assert all(len(text) == 9 and text.isalnum() for text in mapped)
    assert len(set(mapped)) == 3


def test_a_tool_is_a_function_with_its_schema_which_has_properties() -> None:
    schema = {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]}
    tool = ToolEntry(name="clock__now", server="clock", tool="now", description="The time", input_schema=schema)
    function = {"name": "clock__now", "description": "The time", "parameters": schema}
    assert encode_tools([tool]) == [{"type": "function", "function": function}]
    for bare in ({}, {"type": "object"}):
        (encoded,) = encode_tools([msgspec.structs.replace(tool, input_schema=bare)])
        assert encoded["function"]["parameters"] == {"type": "object", "properties": {}}


def test_a_thought_signature_goes_back_where_it_is_wanted_only() -> None:
    message = AssistantMessage("", (call(extra={"extra_content": {"google": 1}, "anthropic": {"model": "m"}}),))
    ((gemini,), (openai,)) = (encode_messages([message], PROFILES[name]) for name in ("gemini", "openai"))
    assert gemini["tool_calls"][0]["extra_content"] == {"google": 1}
    assert openai["tool_calls"][0].keys() == gemini["tool_calls"][0].keys() - {"extra_content"}
    assert "anthropic" not in gemini["tool_calls"][0]


BLOCKS = [{"type": "reasoning.text", "text": "hm", "signature": "c2ln", "index": 0}]
SIGNED = AssistantMessage(
    "", (call(extra={"reasoning_details": {"model": "claude", "blocks": BLOCKS}}), call()), reasoning="hm"
)


@promise("reasoning that comes in blocks goes back with the calls, to the model that made it")
def test_reasoning_in_blocks_goes_back_as_it_came_to_the_model_that_made_it_and_to_no_other() -> None:
    (message,) = encode_messages([SIGNED], PROFILES["openrouter"], "claude")
    assert message["reasoning_details"] == BLOCKS
    assert "reasoning" not in message
    assert "reasoning_details" not in message["tool_calls"][0]
    (message,) = encode_messages([SIGNED], PROFILES["openrouter"], "gemini")
    assert message.keys() == {"role", "content", "tool_calls"}
    for profile in ("openai", "mistral", "gemini", "generic"):
        assert "c2ln" not in str(encode_messages([SIGNED], PROFILES[profile], "claude"))


def test_without_blocks_the_text_goes_back() -> None:
    for extra in (None, {"reasoning_details": "of another release"}):
        (message,) = encode_messages([AssistantMessage("", (call(extra=extra),), "hm")], PROFILES["openrouter"], "x")
        assert message["reasoning"] == "hm"


def test_images_follow_the_results_of_their_round_where_results_hold_text_only() -> None:
    picture, sound = MediaBlock("image/png", "iVBORw0KGgo="), MediaBlock("audio/wav", "c25k")
    messages = [
        AssistantMessage("", (call(),)),
        ToolMessage("a", "camera", "[image/png]", (picture, sound)),
        ToolMessage("b", "clock__now", "noon"),
        AssistantMessage("A cat."),
        ToolMessage("c", "camera", "[image/png]", (picture,)),
    ]
    encoded = encode_messages(messages, PROFILES["openai"])
    assert " ".join(message["role"] for message in encoded) == "assistant tool tool user assistant tool user"
    _, image = encoded[3]["content"]
    assert image == {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    assert "iVBORw0KGgo=" not in str(encode_messages(messages, GENERIC))


def test_images_of_a_user_are_sent_with_the_text_and_named_where_they_are_refused() -> None:
    message = UserMessage("What is it?", (MediaBlock("image/jpeg", "iVBORw0KGgo="), MediaBlock("image/png", "QUJD")))
    text = {"type": "text", "text": "What is it?"}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    assert encode_messages([message], GENERIC)[0]["content"] == [text, image]
    assert encode_messages([replace(message, content=" ")], GENERIC)[0]["content"] == [image]
    refused = encode_messages([message], replace(GENERIC, images_of_users=False))[0]["content"]
    assert refused == f"What is it?\n\n{NOT_SHOWN}\n\n{NOT_SHOWN}"
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    assert for_anthropic([message], "m", GENERIC)[0]["content"] == [block, text]
    assert for_anthropic([message], "m", replace(GENERIC, images_of_users=False))[0]["content"][0]["text"] == refused


# --- Models are sent what really is an image, with the type that it really has ---


PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"


@promise("an image that a provider does not take fails no request, and no conversation")
@pytest.mark.parametrize(
    ("said", "data", "sent"),
    [
        ("image/png", PNG, "image/png"),
        ("image/jpeg", PNG, "image/png"),
        ("image/x-icon", PNG, "image/png"),
        ("image/jpg", b"\xff\xd8\xff\xe0\x00\x10JFIF", "image/jpeg"),
        ("image/gif", b"GIF89a\x01\x00\x01\x00", "image/gif"),
        ("image/webp", b"RIFF\x24\x00\x00\x00WEBPVP8 ", "image/webp"),
        ("image/webp", b"RIFF\x24\x00\x00\x00WAVEfmt ", None),
        ("image/png", b"ABC", None),
        ("image/png", b"", None),
        ("image/svg+xml", b"<svg/>", None),
        ("application/octet-stream", PNG, None),
    ],
)
def test_the_first_bytes_say_what_an_image_is(said: str, data: bytes, sent: str | None) -> None:
    text = b64encode(data).decode()
    shown = [*images_of(ToolMessage("a", "camera", "", (MediaBlock(said, text),)))]
    assert shown == ([MediaBlock(sent, text)] if sent else [])


def test_what_is_no_base64_is_no_image() -> None:
    assert not [*images_of(ToolMessage("a", "camera", "", (MediaBlock("image/png", "not base64!"),)))]


# --- Which provider is spoken to how ---


@pytest.mark.parametrize(
    ("url", "model", "name"),
    [
        ("https://api.openai.com/v1", "gpt-4.1-mini", "openai"),
        ("https://us.api.openai.com/v1", "gpt-4.1-mini", "openai"),
        ("https://me.openai.azure.com/openai/v1", "gpt-4.1", "openai"),
        ("https://notopenai.com/v1", "x", "generic"),
        ("https://api.mistral.ai/v1", "mistral-small", "mistral"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "gemini-2.5-flash", "gemini"),
        ("https://gateway.example/v1", "google/gemini-2.5-flash", "gemini"),
        ("https://gateway.example/v1", "deepseek/DeepSeek-R1", "deepseek"),
        ("https://api.groq.com/openai/v1", "deepseek-r1-distill", "groq"),
        ("http://localhost:11434/v1", "qwen3", "ollama"),
        ("http://localhost:1234/v1", "qwen3", "lmstudio"),
        ("http://localhost:8000/v1", "qwen3", "generic"),
        ("https://api.anthropic.com", "claude-haiku-4-5", "anthropic"),
        ("https://gateway.example/anthropic", "claude-haiku-4-5", "generic"),
    ],
)
def test_the_address_says_who_it_is_and_else_the_model(url: str, model: str, name: str) -> None:
    assert profile_of(url, model).name == name


def test_what_is_set_goes_first() -> None:
    assert profile_of("https://api.openai.com/v1", "gpt-4.1", "mistral") is PROFILES["mistral"]


def test_a_profile_that_there_is_not_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"LLM_PROFILE must be one of generic"):
        profile_of("https://api.openai.com/v1", "gpt-4.1", "x")


def test_the_example_of_the_settings_names_every_profile() -> None:
    [listed] = re.findall(r"((?:^# .*\n)+)# LLM_PROFILE=", (ROOT / ".env.example").read_text(), re.MULTILINE)

    assert PROFILES.keys() <= set(re.findall(r"\w+", listed))
