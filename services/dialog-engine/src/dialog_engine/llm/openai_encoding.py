"""Encodes a request as the JSON that OpenAI-compatible providers accept. Pure."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from dialog_engine.llm.images import images_of
from dialog_engine.llm.lenient_json import is_complete
from dialog_engine.llm.openai_wire import DETAILS, kept_of
from dialog_engine.llm.profiles import Images, Profile
from dialog_engine.model import (
    AssistantMessage,
    ChatRequest,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from plugins_contract.catalog import ToolEntry
from plugins_contract.outcomes import MediaBlock

Json = dict[str, Any]

SIGNATURE = "extra_content"
"""The field with the signature of a thought at Gemini's endpoint; the same key is used in a call's `extra`."""

MAX_DESCRIPTION = 1024
"""Characters of a tool's description that every provider accepts. OpenAI refuses more for many of its models."""
_SHORTENED = " … (the rest of this description is in your instructions)"


def encode_messages(messages: Sequence[Message], profile: Profile, model: str = "") -> list[Json]:
    """The history, in the form that `profile` describes.

    Reasoning goes back with messages that have tool calls only: providers whose models reason between calls require it
    there and refuse it elsewhere. Signed reasoning goes back only to the `model` that signed it.
    """
    encoded: list[Json] = []
    images: list[MediaBlock] = []
    for message in messages:
        if images and not isinstance(message, ToolMessage):
            encoded.append(_image_message(images))
            images = []
        encoded.append(_message(message, profile, model))
        if isinstance(message, ToolMessage) and profile.images is Images.AFTER_RESULTS:
            images += images_of(message)
    return [*encoded, _image_message(images)] if images else encoded


def encode_tools(tools: Sequence[ToolEntry]) -> list[Json]:
    """The tools as functions."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                # Some providers refuse an object schema without `properties`, even where there are none.
                "parameters": {"type": "object", "properties": {}} | tool.input_schema,
            },
        }
        for tool in tools
    ]


def has_long_description(request: ChatRequest) -> bool:
    """Whether a tool has a description that some providers refuse as too long."""
    return any(map(_is_long, request.tools))


def with_descriptions_in_instructions(request: ChatRequest) -> ChatRequest:
    """The same request with each long description in the system message, and only its beginning with the tool."""
    moved = [f"About the tool {tool.name}:\n{tool.description}" for tool in request.tools if _is_long(tool)]
    if not moved:
        return request
    match request.messages:
        case (SystemMessage(content), *others):
            moved.insert(0, content)
        case others:
            pass
    instructions = SystemMessage("\n\n".join(moved))
    return replace(request, messages=(instructions, *others), tools=tuple(map(_shortened, request.tools)))


def nine_characters(call_id: str) -> str:
    """`call_id` for Mistral, whose ids are exactly nine letters and digits. The same id gives the same result."""
    return call_id if re.fullmatch(r"[A-Za-z0-9]{9}", call_id) else hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _message(message: Message, profile: Profile, model: str) -> Json:
    match message:
        case SystemMessage(content):
            return {"role": "system", "content": content}
        case UserMessage(content):
            return {"role": "user", "content": content}
        case ToolMessage(tool_call_id, name, content):
            named = {"name": name} if profile.names_in_results else {}
            return {"role": "tool", "tool_call_id": _call_id(tool_call_id, profile), **named, "content": content}
        case AssistantMessage(content, ()):
            return {"role": "assistant", "content": content}
        case AssistantMessage(content, calls, reasoning):
            encoded: Json = {
                "role": "assistant",
                "content": content or profile.empty_content,
                "tool_calls": [_call(call, profile) for call in calls],
            }
            return encoded | _reasoning(reasoning, calls, profile, model)


def _reasoning(text: str, calls: Sequence[ToolCall], profile: Profile, model: str) -> Json:
    """Blocks hold everything that the text does. Reasoning in blocks of another model does not go back."""
    kept = kept_of([call.extra for call in calls]) if profile.reasoning_details else None
    if kept:
        return {DETAILS: kept.blocks} if kept.model == model else {}
    field = profile.reasoning_field
    return {field: text} if text and field else {}


def _call(call: ToolCall, profile: Profile) -> Json:
    # Providers parse the arguments again: broken JSON in the history would make every later request fail.
    arguments = call.arguments if is_complete(call.arguments) else "{}"
    encoded: Json = {
        "id": _call_id(call.tool_call_id, profile),
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }
    signature = (call.extra or {}).get(SIGNATURE) if profile.thought_signatures else None
    return encoded | {SIGNATURE: signature} if signature else encoded


def _call_id(call_id: str, profile: Profile) -> str:
    return nine_characters(call_id) if profile.nine_character_ids else call_id


def _image_message(images: Sequence[MediaBlock]) -> Json:
    """A user message with the images of the results before it, because a result can hold text only."""
    urls = [f"data:{block.mime_type};base64,{block.data}" for block in images]
    return {
        "role": "user",
        "content": [
            {"type": "text", "text": "These are the images of the tool results above, in their order."},
            *({"type": "image_url", "image_url": {"url": url}} for url in urls),
        ],
    }


def _is_long(tool: ToolEntry) -> bool:
    return len(tool.description) > MAX_DESCRIPTION


def _shortened(tool: ToolEntry) -> ToolEntry:
    if not _is_long(tool):
        return tool
    beginning = tool.description[: MAX_DESCRIPTION - len(_SHORTENED)]
    return msgspec.structs.replace(tool, description=beginning + _SHORTENED)
