"""Requests for the Responses API: what is wanted of the model, and what the conversation brings. Pure.

Unknown fields pass, as clients expect it; what is known and cannot be honoured is refused, with the field.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dialog_engine.chat.requests import MAX_NAME, SessionName
from dialog_engine.facades.images import RefusedError, check_number
from dialog_engine.facades.openai.request import check_json, check_parallel, decoded, storable, within
from dialog_engine.facades.responses.ids import CONVERSATION, RESPONSE, Named, named
from dialog_engine.facades.responses.input import Answer, InputReader, Item, Result
from dialog_engine.facades.responses.tools import Wanted, said_tools, wanted_tools
from dialog_engine.model import Brought, ClientMessage, Sampling

PROTOCOL = "responses"
"""Whose names of conversations these are, in the store."""
MAX_ITEMS = 10_000
MAX_METADATA, MAX_KEY, MAX_VALUE = 16, 64, 512
"""The pairs of `metadata`, and the characters of each key and value."""


class _Text(msgspec.Struct):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class _Reasoning(msgspec.Struct, omit_defaults=True):
    effort: str | None = None
    summary: str | None = None


class _Conversation(msgspec.Struct):
    id: str


class _Body(msgspec.Struct):
    model: str
    input: str | list[Item]
    instructions: str | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: str | _Conversation | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    text: _Text | None = None
    reasoning: _Reasoning | None = None
    metadata: dict[str, str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    top_logprobs: int | None = None
    prompt: Any = None


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """What a client wants. It asks a `question`, or has `answers` to requests for approval and `results` of its own
    functions. `after` is the response that it follows, `behind` the turn of the last item that has an id of ours;
    `refers` is that item, if it has to be there, and `new` is what is said between it and the question. `said` is what
    a response says of its request."""

    model: str
    question: str
    brought: Brought
    answers: Sequence[Answer]
    results: Sequence[Result]
    stream: bool
    store: bool
    background: bool
    after: Named | None
    conversation: str
    behind: str
    refers: str
    new: tuple[ClientMessage, ...]
    tools: Wanted
    said: dict[str, Any]

    @property
    def session_name(self) -> SessionName | None:
        """The name that the client has chosen for the conversation; None for an id of ours, and for none."""
        if not self.conversation or self.conversation.startswith(f"{CONVERSATION}_"):
            return None
        return SessionName(PROTOCOL, self.conversation)


def read_request(body: bytes) -> ResponseRequest:
    """Read the JSON of a request, in time proportional to its length.

    Raises:
        RefusedError: it is not valid, or cannot be honoured.
    """
    wanted = decoded(body, _Body)
    _check(wanted)
    tools = wanted_tools(wanted.tools or [], wanted.tool_choice)
    items = [Item(role="user", content=wanted.input)] if isinstance(wanted.input, str) else wanted.input
    read = InputReader(items)
    instructions = [storable(wanted.instructions, "instructions"), *read.instructions]
    brought = Brought(
        "\n\n".join(each for each in instructions if each.strip()),
        media=read.question.media,
        said=tuple(read.said),
        sampling=_sampling(wanted, tools.must_call),
        tools=tuple(tools.functions.values()),
        ask=tools.ask,
    )
    check_number(brought.all_media(), "input")
    return ResponseRequest(
        wanted.model,
        read.question.content,
        brought,
        [each for each in read.answers if isinstance(each, Answer)],
        [each for each in read.answers if isinstance(each, Result)],
        bool(wanted.stream),
        wanted.store is not False,
        bool(wanted.background),
        _previous(wanted.previous_response_id),
        _conversation(wanted),
        read.behind,
        read.refers,
        tuple(read.new),
        tools,
        _said(wanted),
    )


def _conversation(wanted: _Body) -> str:
    given = wanted.conversation
    name = storable(given.id if isinstance(given, _Conversation) else given, "conversation")
    if len(name) > MAX_NAME:
        raise RefusedError("conversation", f"the name of a conversation has {MAX_NAME} characters at most")
    return name


def _previous(given: str | None) -> Named | None:
    if given is None:
        return None
    if (found := named(given, RESPONSE)) is None:
        raise RefusedError("previous_response_id", "is not the id of a response")
    return found


_UNSUPPORTED = {
    "max_tool_calls": "is not available here: leave it out",
    "top_logprobs": "is not available here: leave it out",
    "prompt": "prompts are not stored here: send `instructions` and `input`",
}


def _check(wanted: _Body) -> None:
    for name, why in _UNSUPPORTED.items():
        if getattr(wanted, name):
            raise RefusedError(name, why)
    check_parallel(wanted.parallel_tool_calls)
    if wanted.conversation is not None and wanted.previous_response_id is not None:
        raise RefusedError("previous_response_id", "a request has it, or `conversation`, not both")
    if wanted.background and wanted.store is False:
        raise RefusedError("background", "a response that is not stored cannot be read later: leave `store` out")
    if isinstance(wanted.input, list) and len(wanted.input) > MAX_ITEMS:
        raise RefusedError("input", f"has {len(wanted.input)} items; {MAX_ITEMS} are allowed")
    within(wanted.temperature, 0, 2, "temperature")
    within(wanted.top_p, 0, 1, "top_p")
    if wanted.max_output_tokens is not None and wanted.max_output_tokens < 1:
        raise RefusedError("max_output_tokens", "must be at least 1")
    check_metadata(wanted.metadata or {})
    check_json(msgspec.to_builtins(wanted.reasoning), "reasoning")
    check_json(wanted.text and wanted.text.format, "text.format")
    check_json(wanted.tool_choice, "tool_choice")


def check_metadata(metadata: dict[str, str]) -> None:
    """Raises RefusedError when there is too much of it."""
    too_long = any(len(key) > MAX_KEY or len(value) > MAX_VALUE for key, value in metadata.items())
    if too_long or len(metadata) > MAX_METADATA:
        allowed = f"{MAX_METADATA} pairs, of {MAX_KEY} and {MAX_VALUE} characters"
        raise RefusedError("metadata", f"may have up to {allowed}")
    check_json(metadata, "metadata")


_SCHEMA = ("name", "schema", "strict", "description")


def _sampling(wanted: _Body, must_call: str) -> Sampling:
    form = (wanted.text and wanted.text.format) or {}
    match form.get("type", "text"):
        case "text":
            response_format = None
        case "json_object":
            response_format = {"type": "json_object"}
        case "json_schema" if "name" in form and "schema" in form:
            schema = {name: form[name] for name in _SCHEMA if form.get(name) is not None}
            response_format = {"type": "json_schema", "json_schema": schema}
        case _:
            raise RefusedError("text.format", "must be text, json_object, or json_schema with a name and a schema")
    return Sampling(
        wanted.temperature,
        wanted.top_p,
        wanted.max_output_tokens,
        response_format=response_format,
        reasoning_effort=wanted.reasoning.effort if wanted.reasoning else None,
        must_call=must_call,
    )


def _said(wanted: _Body) -> dict[str, Any]:
    conversation = wanted.conversation
    if isinstance(conversation, str):
        conversation = _Conversation(conversation)
    return {
        "background": bool(wanted.background),
        "conversation": msgspec.to_builtins(conversation),
        "instructions": wanted.instructions,
        "max_output_tokens": wanted.max_output_tokens,
        "metadata": wanted.metadata or {},
        "model": wanted.model,
        "parallel_tool_calls": True,
        "previous_response_id": wanted.previous_response_id,
        "reasoning": msgspec.to_builtins(wanted.reasoning),
        "store": wanted.store is not False,
        "temperature": wanted.temperature,
        "text": {"format": (wanted.text and wanted.text.format) or {"type": "text"}},
        "tool_choice": wanted.tool_choice or "auto",
        "tools": said_tools(wanted.tools or ()),
        "top_p": wanted.top_p,
        "truncation": "disabled",
    }
