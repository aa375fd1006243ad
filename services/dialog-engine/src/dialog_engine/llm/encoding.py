"""The engine's request as the JSON that OpenAI-compatible providers take."""

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from dialog_engine.llm.arguments import is_complete
from dialog_engine.llm.images import images_of
from dialog_engine.llm.profiles import Images, Profile
from dialog_engine.llm.reasoning_details import DETAILS, kept_of
from dialog_engine.model import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from plugins_contract.catalog import ToolEntry
from plugins_contract.outcomes import MediaBlock

Json = dict[str, Any]

SIGNATURE = "extra_content"
"""Where Gemini's endpoint puts the signature of a thought, in a call's `extra` as on the wire."""


def encode_messages(messages: Sequence[Message], profile: Profile, model: str = "") -> list[Json]:
    """The history, in the way that the provider wants it.

    Reasoning goes back with messages that have tool calls only: providers that think between calls ask for it there
    and refuse it elsewhere. What is signed goes back to the `model` that signed it.
    """
    encoded: list[Json] = []
    images: list[MediaBlock] = []
    for message in messages:
        if images and not isinstance(message, ToolMessage):
            encoded.append(_shown(images))
            images = []
        encoded.append(_message(message, profile, model))
        if isinstance(message, ToolMessage) and profile.images is Images.AFTER_RESULTS:
            images += images_of(message)
    return [*encoded, _shown(images)] if images else encoded


def encode_tools(tools: Sequence[ToolEntry]) -> list[Json]:
    """The tools as functions."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                # Some providers refuse a schema of an object that does not name its properties, even if there are none.
                "parameters": {"type": "object", "properties": {}} | tool.input_schema,
            },
        }
        for tool in tools
    ]


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
    """Blocks hold all that the text does; of another model's reasoning with blocks nothing goes back."""
    kept = kept_of([call.extra for call in calls]) if profile.reasoning_details else None
    if kept:
        return {DETAILS: kept.blocks} if kept.model == model else {}
    field = profile.reasoning_field
    return {field: text} if text and field else {}


def _call(call: ToolCall, profile: Profile) -> Json:
    # Providers parse the arguments again: one broken text in the history would make every later request fail.
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


def _shown(images: Sequence[MediaBlock]) -> Json:
    """A user's message with the images of the results before it, which can hold text only."""
    urls = [f"data:{block.mime_type};base64,{block.data}" for block in images]
    return {
        "role": "user",
        "content": [
            {"type": "text", "text": "These are the images of the tool results above, in their order."},
            *({"type": "image_url", "image_url": {"url": url}} for url in urls),
        ],
    }
