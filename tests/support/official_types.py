"""Outputs of encoders as the official types of their protocols have them: the models of the package `openai`, and the
chunks of the AI SDK, whose types `tests/e2e/test_stack_ai_sdk.py` holds against the package `ai`."""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, get_args, get_type_hints

import msgspec
from openai import omit
from openai.lib.streaming.responses import ResponseStreamState
from openai.types import ErrorObject
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from dialog_engine.facades.ai_sdk.encoder import Version
from dialog_engine.facades.ai_sdk.types import Chunk
from dialog_engine.facades.encoder import Output

DONE = "[DONE]"
SINCE = {"tool-approval-request": 6, "tool-output-denied": 6, "tool-approval-response": 7, "reset-step": 7}
"""The first version of the AI SDK that knows these chunks. One that does not ends its chat with an error."""
_CHUNKS: dict[str, Any] = {kind: each for each in get_args(Chunk) for kind in get_args(get_type_hints(each)["type"])}


@cache
def _responses() -> TypeAdapter[Any]:
    """Made when it is first needed: that takes 0.2 s."""
    return TypeAdapter(ResponseStreamEvent)


def chat_chunks(data: bytes) -> list[Any]:
    """What a client of Chat Completions reads: chunks, an error, or "[DONE]"."""
    return [*map(_chat_chunk, _events(data))]


def _chat_chunk(event: str) -> Any:
    if event == DONE:
        return event
    data = json.loads(event)
    if "error" in data:
        ErrorObject.model_validate(data["error"], strict=True)
        return data
    return ChatCompletionChunk.model_validate(data, strict=True)


def response_events(outputs: Sequence[Output]) -> None:
    """The types accept the events of a response, and so does the helper of the package for streams. Each item has the
    next place."""
    places = 0
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=omit, text_format=omit)
    for output in outputs:
        name, data = output.data.decode().removesuffix("\n\n").split("\n")
        event = _responses().validate_python(json.loads(data.removeprefix("data: ")), strict=True)
        assert name == f"event: {event.type}"
        assert event.sequence_number == output.number
        state.handle_event(event)
        if event.type == "response.output_item.added":
            assert event.output_index == places
            places += 1


def ui_chunks(data: bytes, version: Version) -> None:
    """The types accept the chunks, and this version of the AI SDK knows them."""
    for event in _events(data):
        if event != DONE:
            chunk = json.loads(event)
            kind = _CHUNKS[chunk["type"]]
            msgspec.convert(chunk, kind, strict=True)
            assert chunk.keys() <= kind.__annotations__.keys()
            assert SINCE.get(chunk["type"], version) <= version


def _events(data: bytes) -> Iterable[str]:
    found: Iterator[str] = (each.removeprefix("data: ") for each in data.decode().removesuffix("\n\n").split("\n\n"))
    return found if data else ()
