"""The client for chat completions: how a request is encoded for OpenAI and compatible providers, and posted."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import httpx2
import msgspec
from openai import APIStatusError, AsyncOpenAI, AsyncStream, Omit, OpenAIError

from dialog_engine.llm.client import ChatClient, sampling_of
from dialog_engine.llm.decoding import Decoder, is_complete
from dialog_engine.llm.images import NOT_SHOWN, images_of
from dialog_engine.llm.openai_decoding import OpenAIDecoder
from dialog_engine.llm.openai_wire import DETAILS, kept_of
from dialog_engine.llm.profiles import Images, Profile
from dialog_engine.llm.provider import CHOICE, IMAGE, Json, Provider
from dialog_engine.model import (
    ANY_TOOL,
    AssistantMessage,
    ChatRequest,
    Message,
    Sampling,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from plugins_contract.catalog import ToolEntry
from plugins_contract.outcomes import MediaBlock

SIGNATURE = "extra_content"
"""The field with the signature of a thought at Gemini's endpoint; the same key is used in a call's `extra`."""

MAX_DESCRIPTION = 1024
"""Characters of a tool's description that every provider accepts. OpenAI refuses more for many of its models."""
_SHORTENED = " … (the rest of this description is in your instructions)"

_SAMPLED = (
    "temperature",
    "top_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "response_format",
    "reasoning_effort",
)
"""The fields of a `Sampling` that are sent as they are."""

# Options that some providers refuse.
_USAGE = "stream_options"
_IMAGE_URL = "image_url"
_STOP = "stop"
_DESCRIPTION = "description"
_OTHER_LENGTH = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
"""The field for the longest answer where the other one is refused: behind a gateway it cannot be known beforehand."""


def provider_of(sdk: AsyncOpenAI, key: str, headers: Mapping[str, str]) -> Provider:
    """The account of an SDK client, which it closes. `key` and `headers` are secret."""
    # The SDK allows its Authorization field to be removed with a request only, not for all requests of a client.
    sent = {name: value or Omit() for name, value in headers.items()}

    async def post(body: Json, max_retries: int) -> httpx2.Response:
        response = await sdk.post(
            "/chat/completions",
            cast_to=httpx2.Response,
            body=body,
            options={"max_retries": max_retries, "headers": sent},
            stream=True,
            stream_cls=AsyncStream[object],
        )
        return cast("httpx2.Response", response)

    return Provider(post, sdk.close, str(sdk.base_url), APIStatusError, OpenAIError, (key, *headers.values()))


class OpenAIChatClient(ChatClient):
    """A chat model with OpenAI's chat completions."""

    stop_option = _STOP

    def _wanted(self) -> frozenset[str]:
        profile = self._profile
        by_profile = {
            _USAGE: profile.stream_usage,
            SIGNATURE: profile.thought_signatures,
            DETAILS: profile.reasoning_details,
            profile.reasoning_field or "": profile.reasoning_field is not None,
        }
        always = {CHOICE, _STOP, _DESCRIPTION, IMAGE, _IMAGE_URL, profile.length_field}
        return frozenset(always | {name for name, wanted in by_profile.items() if wanted})

    def _decoder(self) -> Decoder:
        return OpenAIDecoder(self._errors, self._model)

    def _sent(self, request: ChatRequest, options: frozenset[str]) -> Iterable[str]:
        present = {*super()._sent(request, options)}
        of_users = any(isinstance(each, UserMessage) and each.media for each in request.messages)
        if IMAGE not in present or not (of_users or self._profile.images is Images.AFTER_RESULTS):
            present -= {IMAGE, _IMAGE_URL}
        present -= {self._profile.length_field} if self._longest(request) is None else set()
        return present - (set() if has_long_description(request) else {_DESCRIPTION})

    def _longest(self, request: ChatRequest) -> int | None:
        """The bound on the answer, in tokens: the smaller one of the configured one and the sender's."""
        return min((each for each in (self._max_tokens, sampling_of(request).max_tokens) if each), default=None)

    def _body(self, request: ChatRequest, options: frozenset[str]) -> Json:
        if _DESCRIPTION not in options:
            request = with_descriptions_in_instructions(request)
        profile = _without_refused(self._profile, options)
        messages = encode_messages(request.messages, profile, self._model)
        body: Json = {"model": self._model, "messages": messages, "stream": True}
        # A provider that cannot forbid calls is sent no tools for a last answer.
        if request.tools and (CHOICE in options or not request.answer_only):
            body["tools"] = encode_tools(request.tools)
            if request.answer_only:
                body["tool_choice"] = "none"
            elif request.must_call:
                named = {"type": "function", "function": {"name": request.must_call}}
                body["tool_choice"] = "required" if request.must_call == ANY_TOOL else named
        if request.stop and _STOP in options:
            body["stop"] = request.stop
        if _USAGE in options:
            body["stream_options"] = {"include_usage": True}
        if (longest := self._longest(request)) is not None:
            field = profile.length_field
            body[field if field in options else _OTHER_LENGTH[field]] = longest
        return body | self._extra_body | _sampled(sampling_of(request))


def _without_refused(profile: Profile, options: frozenset[str]) -> Profile:
    """The profile without the options that were refused."""
    return replace(
        profile,
        reasoning_field=profile.reasoning_field if profile.reasoning_field in options else None,
        thought_signatures=SIGNATURE in options,
        reasoning_details=DETAILS in options,
        images=profile.images if {_IMAGE_URL, IMAGE} <= options else Images.REFERENCE,
        images_of_users={_IMAGE_URL, IMAGE} <= options,
    )


def _sampled(sampling: Sampling) -> Json:
    """How the sender wants the answer to be sampled."""
    wanted: Json = {name: getattr(sampling, name) for name in _SAMPLED}
    return {name: value for name, value in wanted.items() if value is not None}


# --- Requests as JSON ---


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
        case UserMessage():
            return {"role": "user", "content": _of_user(message, profile)}
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


def _of_user(message: UserMessage, profile: Profile) -> str | list[Json]:
    if not message.media:
        return message.content
    if not profile.images_of_users:
        return "\n\n".join([message.content, *[NOT_SHOWN] * len(message.media)])
    text = [_text(message.content)] if message.content.strip() else []
    return [*text, *map(_image, images_of(message))]


def _image_message(images: Sequence[MediaBlock]) -> Json:
    """A user message with the images of the results before it, because a result can hold text only."""
    note = "These are the images of the tool results above, in their order."
    return {"role": "user", "content": [_text(note), *map(_image, images)]}


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _image(block: MediaBlock) -> Json:
    return {"type": "image_url", "image_url": {"url": f"data:{block.mime_type};base64,{block.data}"}}


def _is_long(tool: ToolEntry) -> bool:
    return len(tool.description) > MAX_DESCRIPTION


def _shortened(tool: ToolEntry) -> ToolEntry:
    if not _is_long(tool):
        return tool
    beginning = tool.description[: MAX_DESCRIPTION - len(_SHORTENED)]
    return msgspec.structs.replace(tool, description=beginning + _SHORTENED)
