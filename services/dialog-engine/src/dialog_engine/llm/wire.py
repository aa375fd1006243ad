"""Chunks of a chat completion as OpenAI-compatible providers write them.

Only what is used is declared.
"""

from typing import Any, cast

import msgspec

from dialog_engine.llm.lenient import Wire, decode, read_json


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
    """A piece of a message, or a whole one. `content` may come in parts."""

    content: str | list[dict[str, Any]] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    refusal: str | None = None
    tool_calls: list[CallDelta] | None = None
    function_call: FunctionDelta | None = None


class TokenCount(Wire):
    """Tokens so far."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


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
    """Whatever the provider says went wrong; falsy when nothing did."""


_decoder = msgspec.json.Decoder(Chunk)


def decode_chunk(data: bytes) -> Chunk:
    """Read one payload.

    Raises:
        ValueError: it is not JSON.
    """
    chunk = decode(data, _decoder, Chunk)
    if not chunk.choices and not chunk.error and chunk.usage is None:
        chunk.error = _bare_error(read_json(data))
    return chunk


def _bare_error(value: object) -> object:
    """An error that is not wrapped in `error`, as FastAPI and older vLLM servers send it."""
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, Any]", value)
    bare = fields.get("object") == "error" or "detail" in fields or {"message", "code"} <= fields.keys()
    return fields if bare else None
