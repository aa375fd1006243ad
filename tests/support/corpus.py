"""The files of `tests/corpus`, read. Its README says what is in them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from dialog_engine.errors import LLMError
from dialog_engine.llm.decoding import Decoder, merged
from dialog_engine.llm.error_classification import ErrorClassifier
from dialog_engine.llm.openai_decoding import OpenAIDecoder
from dialog_engine.model import (
    AssistantMessage,
    ChatEvent,
    LLMEvent,
    Message,
    ReasoningDelta,
    StreamEnd,
    SystemMessage,
    TextDelta,
    ToolCall,
    ToolCallEvent,
    ToolMessage,
    Usage,
    UserMessage,
)
from tests.support.protocols import anthropic_sse, openai_sse

CORPUS = Path(__file__).parent.parent / "corpus"
MODEL = "model"
"""What the model is called that answers in the corpus."""

Json = dict[str, Any]


KINDS_OF_EVENTS = ({"text"}, {"reasoning"}, {"call"}, {"end"}, {"end", "usage"}, {"error"})


class BadFileError(ValueError):
    """A file of the corpus that is not written as its README says."""

    def __init__(self, path: Path, what: object) -> None:
        super().__init__(f"{path.parent.name}/{path.name}: {what} (tests/corpus/README.md says what is in such a file)")


class StreamCase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a provider sends, and the events that it must become."""

    name: str
    quirk: str
    source: str
    events: list[Json]
    chunks: list[Json] | None = None
    """None: the bytes are in the `.sse` file of the same name."""


class HistoryCase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages as they were stored, and those that are sent."""

    name: str
    quirk: str
    messages: list[Json]
    sent: list[Json]


class PromptCase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reply as the model wrote it, and the events that it must become."""

    name: str
    dialect: Literal["tool_use", "function_calls"]
    reply: list[str]
    finish: Literal["stop", "length", "content_filter"]
    events: list[Json]
    source: str = ""
    repeats: bool = False
    """A result in it may be one that the model was given."""


Case = TypeVar("Case", StreamCase, HistoryCase, PromptCase)


def files_of(folder: Literal["streams", "anthropic", "histories", "prompt"]) -> list[Path]:
    return sorted((CORPUS / folder).glob("*.json"))


def read_case(path: Path, kind: type[Case]) -> Case:
    try:
        case = msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise BadFileError(path, error) from None
    if not isinstance(case, HistoryCase):
        _check_events(path, case.events)
    if isinstance(case, StreamCase) and case.chunks is None and not path.with_suffix(".sse").exists():
        raise BadFileError(path, f"has no `chunks`, and there is no {path.stem}.sse beside it")
    return case


def read_stream(path: Path) -> StreamCase:
    return read_case(path, StreamCase)


def _check_events(path: Path, events: Sequence[Json]) -> None:
    for number, event in enumerate(events):
        if event.keys() not in KINDS_OF_EVENTS:
            raise BadFileError(path, f"`$.events[{number}]` is none of text, reasoning, call, end and error")
    if not events or events[-1].keys().isdisjoint(("end", "error")):
        raise BadFileError(path, "the last of its `events` must be end or error")


def stream_bytes(path: Path) -> bytes:
    """The answer's body, byte by byte as the provider sends it. The events of the Anthropic Messages API have names."""
    chunks = read_stream(path).chunks
    if chunks is None:
        return path.with_suffix(".sse").read_bytes()
    return anthropic_sse(*chunks) if path.parent.name == "anthropic" else openai_sse(*chunks) + b"data: [DONE]\n\n"


def decoded(reads: Sequence[bytes], decoder: Decoder | None = None) -> list[LLMEvent | LLMError]:
    """What becomes of an answer that arrives in these reads; an error is the last."""
    decoder = decoder or OpenAIDecoder(ErrorClassifier(), MODEL)
    events: list[LLMEvent] = []
    try:
        for read in reads:
            events += decoder.feed(read)
            if decoder.done:
                break
        events += decoder.finish()
    except LLMError as error:
        return [*merged(events), error]
    return [*merged(events)]


def as_written(events: Sequence[ChatEvent | LLMError], expected: Sequence[Json]) -> list[Json]:
    """The events as the corpus writes them; `*` stands for an id that `expected` does not know: a minted one."""
    known = {event["call"]["id"] for event in expected if "call" in event}
    return [_written(event, known) for event in events]


def messages_of(written: Sequence[Json]) -> list[Message]:
    return [_message(dict(fields)) for fields in written]


def messages_written(messages: Sequence[Message]) -> list[Json]:
    return [_message_written(message) for message in messages]


def _written(event: ChatEvent | LLMError, known: set[str]) -> Json:
    match event:
        case LLMError():
            return {"error": event.code}
        case TextDelta(text):
            return {"text": text}
        case ReasoningDelta(text):
            return {"reasoning": text}
        case ToolCallEvent(call_id, name, arguments, extra, problem):
            call: Json = {"id": call_id if call_id in known else "*", "name": name, "arguments": arguments}
            call |= {"extra": extra} if extra else {}
            return {"call": call | ({"problem": True} if problem else {})}
        case StreamEnd(reason, Usage(0, 0)):
            return {"end": str(reason)}
        case StreamEnd(reason, usage):
            parts = [usage.cached_tokens, usage.cache_write_tokens, usage.reasoning_tokens]
            return {
                "end": str(reason),
                "usage": [usage.input_tokens, usage.output_tokens, *(parts if any(parts) else ())],
            }
        case _:
            raise TypeError(event)


def _message(fields: Json) -> Message:
    match fields:
        case {"system": content, **rest} if not rest:
            return SystemMessage(content)
        case {"user": content, **rest} if not rest:
            return UserMessage(content)
        case {"assistant": content, **rest} if rest.keys() <= {"calls", "reasoning", "interrupted"}:
            calls = tuple(
                ToolCall(call["id"], "", call["name"], call.get("arguments", "{}"), call.get("extra"))
                for call in rest.get("calls", ())
            )
            return AssistantMessage(content, calls, rest.get("reasoning", ""), rest.get("interrupted", False))
        case {"result": call_id, "of": name, "content": content, **rest} if not rest:
            return ToolMessage(call_id, name, content)
        case _:
            raise ValueError(f"not a message of the corpus, see its README: {json.dumps(fields)}")


def _message_written(message: Message) -> Json:
    match message:
        case SystemMessage(content):
            return {"system": content}
        case UserMessage(content):
            return {"user": content}
        case ToolMessage():
            return {"result": message.tool_call_id, "of": message.name, "content": message.content}
        case AssistantMessage():
            fields: Json = {"assistant": message.content}
            if message.tool_calls:
                fields["calls"] = [_call_written(call) for call in message.tool_calls]
            if message.reasoning:
                fields["reasoning"] = message.reasoning
            return fields | ({"interrupted": True} if message.interrupted else {})


def _call_written(call: ToolCall) -> Json:
    fields: Json = {"id": call.tool_call_id, "name": call.name}
    fields |= {"arguments": call.arguments} if call.arguments != "{}" else {}
    return fields | ({"extra": call.extra} if call.extra else {})
