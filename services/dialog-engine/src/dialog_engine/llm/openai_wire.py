"""Chunks of a chat completion as OpenAI-compatible providers write them. Only the fields that are used are declared.

Two of their parts have forms of their own: content as a list of parts (Mistral's reasoning models), and reasoning as
blocks (OpenRouter).
"""

from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from typing import Any, cast

import msgspec

from dialog_engine.llm.lenient_json import Tokens, Wire, read_json
from dialog_engine.model import LLMEvent, ReasoningDelta, TextDelta


class FunctionDelta(Wire):
    """A piece of a function call. A few providers send the arguments as an object instead of text."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class CallDelta(Wire):
    """A piece of a tool call."""

    index: int | None = None
    id: str | None = None
    function: FunctionDelta | None = None
    extra_content: dict[str, Any] | None = None


class Delta(Wire):
    """A piece of a message, or a whole one. `content` may be a list of parts."""

    content: str | list[dict[str, Any]] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    refusal: str | None = None
    tool_calls: list[CallDelta] | None = None
    function_call: FunctionDelta | None = None


class PromptDetails(Wire):
    """What a part of the prompt was. Few providers say what was written to a cache."""

    cached_tokens: Tokens | None = None
    cache_write_tokens: Tokens | None = None


class CompletionDetails(Wire):
    """What a part of the completion was."""

    reasoning_tokens: Tokens | None = None


class TokenCount(Wire):
    """Token counts so far."""

    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class Choice(Wire):
    """One answer; `message` is a whole one."""

    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    usage: TokenCount | None = None


class Chunk(Wire):
    """One event of the stream, or the whole of an answer that is not streamed."""

    choices: list[Choice] | None = None
    usage: TokenCount | None = None
    error: Any = None
    """The error that the provider reports, in any form; falsy without one."""


def bare_error(data: bytes) -> object:
    """An error that is not wrapped in `error`, as FastAPI and older vLLM servers send it. Raises ValueError."""
    value = read_json(data)
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, Any]", value)
    bare = fields.get("object") == "error" or "detail" in fields or {"message", "code"} <= fields.keys()
    return fields if bare else None


def content_events(content: list[dict[str, Any]]) -> Iterator[LLMEvent]:
    """The text and reasoning of a list of content parts, in their order."""
    for part in content:
        if thinking := part.get("thinking"):
            thoughts = cast("list[object]", thinking) if isinstance(thinking, list) else [{"text": thinking}]
            yield from (ReasoningDelta(text) for text in map(_text_of_part, thoughts) if text)
        elif text := _text_of_part(part):
            yield TextDelta(text)


def _text_of_part(part: object) -> str:
    match part:
        case {"text": str(text)}:
            return text
        case _:
            return ""


DETAILS = "reasoning_details"
"""The field of a message on the wire, and of a call's `extra`."""

_PIECEWISE = ("text", "summary", "data")

Block = dict[str, Any]


class KeptDetails(msgspec.Struct, frozen=True):
    """The blocks of a message as its first call keeps them in `extra`, with the model that wrote them."""

    model: str
    blocks: list[Block]


class ReasoningDetails:
    """Assembles the reasoning blocks of one message from their fragments.

    OpenRouter sends reasoning as blocks, some of them signed or encrypted. They must go back with the calls, unchanged,
    in their order, and to the model that wrote them only. Without them Gemini refuses the results of its calls, and
    Claude refuses reasoning whose signature is missing
    (https://openrouter.ai/docs/guides/best-practices/reasoning-tokens, "Preserving reasoning").
    """

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        """The text that arrives in pieces is a StringIO in them: a reply may have any number of pieces."""
        self._first: dict[tuple[Any, Any], Block] = {}
        self._by_id: dict[tuple[Any, Any, Any], Block] = {}

    def add(self, fragments: Sequence[Block]) -> None:
        """Add the next fragments. Those of one type and index are one block, unless they have different ids."""
        for fragment in fragments:
            kind, index, block_id = (_plain(fragment.get(name)) for name in ("type", "index", "id"))
            block = self._continued(kind, index, block_id, fragment)
            if block is None:
                block = dict[str, Any].fromkeys(fragment)
                self._blocks.append(block)
                self._first.setdefault((kind, index), block)
            if block_id:
                self._by_id.setdefault((kind, index, block_id), block)
            for name, value in fragment.items():
                if name in _PIECEWISE and isinstance(value, str):
                    before = block.get(name)
                    before = before if isinstance(before, StringIO) else StringIO()
                    # Encrypted data that is sent again is a copy, not a second piece.
                    if name != "data" or before.tell() != len(value) or before.getvalue() != value:
                        before.write(value)
                    block[name] = before
                elif value is not None:
                    block[name] = value

    def _continued(self, kind: object, index: object, block_id: object, fragment: Block) -> Block | None:
        if index is None and "data" in fragment:
            return None  # encrypted blocks are whole, and have nothing else that distinguishes them
        first = self._first.get((kind, index))
        if first is None or not block_id or not first.get("id"):
            return first
        return self._by_id.get((kind, index, block_id))

    def kept(self, model: str) -> dict[str, Any]:
        """The entry for the `extra` of the message's first call; empty without blocks."""
        blocks = [
            {name: value.getvalue() if isinstance(value, StringIO) else value for name, value in block.items()}
            for block in self._blocks
        ]
        return {DETAILS: msgspec.to_builtins(KeptDetails(model, blocks))} if blocks else {}


def kept_of(extras: Sequence[Mapping[str, Any] | None]) -> KeptDetails | None:
    """The reasoning blocks that the calls of one message keep; None without any."""
    for extra in extras:
        if extra and DETAILS in extra:
            try:
                return msgspec.convert(extra[DETAILS], KeptDetails)
            except msgspec.ValidationError:
                return None
    return None


def _plain(value: object) -> object:
    """The value, which may be any JSON, as a key; None for lists and objects."""
    return None if isinstance(value, list | dict) else value
