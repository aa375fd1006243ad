"""Encodes a request as the JSON of the Anthropic Messages API. Pure.

A message there is a list of blocks. Roles alternate, and the results of a round are the first blocks of the one message
that follows its calls. A text block may not be blank.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from dialog_engine.llm.anthropic_decoding import EXTRA, Thought, Thoughts
from dialog_engine.llm.decoding import is_complete
from dialog_engine.llm.images import NOT_SHOWN, images_of
from dialog_engine.llm.profiles import Images, Profile
from dialog_engine.model import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from plugins_contract.catalog import ToolEntry
from plugins_contract.outcomes import MediaBlock

Json = dict[str, Any]

CACHE: Json = {"type": "ephemeral"}
"""Marks the end of a prefix that the provider caches for the next request."""
_COMBINED = ("oneOf", "anyOf", "allOf")


def encode_system(messages: Sequence[Message]) -> list[Json]:
    """The instructions, which the API takes in a field of their own."""
    text = "\n\n".join(message.content for message in messages if isinstance(message, SystemMessage))
    return [_text(text)] if text.strip() else []


def encode_messages(messages: Sequence[Message], model: str, profile: Profile) -> list[Json]:
    """The conversation. Adjacent messages of a role are joined; thinking goes back to the `model` that wrote it."""
    encoded: list[Json] = []
    for message in messages:
        match message:
            case SystemMessage():
                continue
            case UserMessage():
                role, blocks = "user", _of_user(message, profile)
            case ToolMessage():
                role, blocks = "user", [_result(message, profile)]
            case AssistantMessage(content, calls):
                role, blocks = "assistant", list(_assistant_blocks(content, calls, model))
        if encoded and encoded[-1]["role"] == role:
            encoded[-1]["content"] += blocks
        elif blocks:
            encoded.append({"role": role, "content": blocks})
    return encoded


def encode_tools(tools: Sequence[ToolEntry]) -> list[Json]:
    """The tools."""
    return [
        {"name": tool.name, "description": tool.description, "input_schema": input_schema(tool.input_schema)}
        for tool in tools
    ]


def with_cache(system: list[Json], tools: list[Json], messages: list[Json]) -> None:
    """Mark the prefixes that the next request will share: tools and instructions, and the conversation so far."""
    stable = system or tools
    if stable:
        stable[-1]["cache_control"] = CACHE
    if messages and messages[-1]["role"] == "user":
        messages[-1]["content"][-1]["cache_control"] = CACHE


def input_schema(schema: Mapping[str, Any]) -> Json:
    """`schema` as the API accepts it: an object without alternatives at the top level.

    The properties of the alternatives become optional. Arguments are validated against the original schema before a
    call runs, and the model is sent what is wrong.
    """
    plain: Json = {"type": "object"} | {name: value for name, value in schema.items() if name not in _COMBINED}
    properties: Json = dict(plain.get("properties") or {})
    for combined in _COMBINED:
        for branch in cast("list[Json]", schema.get(combined) or []):
            properties = cast("Json", branch.get("properties") or {}) | properties
            if combined == "allOf" and "required" in branch:
                plain["required"] = list(dict.fromkeys([*plain.get("required", []), *branch["required"]]))
    return plain | {"properties": properties}


def clean_id(call_id: str) -> str:
    """`call_id` in the characters that the API accepts. The same id gives the same result, two ids give two."""
    if re.fullmatch(r"[a-zA-Z0-9_-]+", call_id):
        return call_id
    digest = hashlib.sha256(call_id.encode()).hexdigest()[:12]
    return f"{re.sub('[^a-zA-Z0-9_-]', '_', call_id)[:40]}_{digest}"


def _assistant_blocks(content: str, calls: Sequence[ToolCall], model: str) -> Iterator[Json]:
    """The text, thinking and calls of an assistant message, each thinking block where it was."""
    thoughts = [_thoughts(call, model) for call in calls]
    sent = 0
    for number, call in enumerate(calls):
        for thought in thoughts[number]:
            yield from _texts(content[sent : thought.at])
            sent = max(sent, thought.at)
            yield thought.block
        later = [thought.at for each in thoughts[number + 1 :] for thought in each]
        until = min(later, default=len(content))
        yield from _texts(content[sent:until])
        sent = max(sent, until)
        arguments: Any = msgspec.json.decode(call.arguments) if is_complete(call.arguments) else {}
        yield {"type": "tool_use", "id": clean_id(call.tool_call_id), "name": call.name, "input": arguments}
    yield from _texts(content[sent:])


def _thoughts(call: ToolCall, model: str) -> list[Thought]:
    try:
        thoughts = msgspec.convert((call.extra or {}).get(EXTRA), Thoughts)
    except msgspec.ValidationError:
        return []
    return thoughts.blocks if thoughts.model == model else []


def _result(message: ToolMessage, profile: Profile) -> Json:
    blocks = _texts(message.content)
    if profile.images is Images.IN_RESULTS:
        blocks += [*map(_image, images_of(message))]
    result: Json = {"type": "tool_result", "tool_use_id": clean_id(message.tool_call_id), "content": blocks}
    return result | ({"is_error": True} if message.failed else {})


def _of_user(message: UserMessage, profile: Profile) -> list[Json]:
    if not profile.images_of_users:
        return _texts("\n\n".join([message.content, *[NOT_SHOWN] * len(message.media)]))
    return [*map(_image, images_of(message)), *_texts(message.content)]


def _image(image: MediaBlock) -> Json:
    return {"type": "image", "source": {"type": "base64", "media_type": image.mime_type, "data": image.data}}


def _texts(text: str) -> list[Json]:
    return [_text(text)] if text.strip() else []


def _text(text: str) -> Json:
    return {"type": "text", "text": text}
