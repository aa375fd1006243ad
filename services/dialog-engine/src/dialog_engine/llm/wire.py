"""Chunks of a chat completion as OpenAI-compatible providers write them.

Only what is used is declared. A field of a type that is not expected counts as absent: one provider's oddity must not
break a stream that can be read without it.
"""

import json
from functools import cache
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

T = TypeVar("T")


class _Wire(msgspec.Struct, gc=False):
    pass


class FunctionDelta(_Wire):
    """A piece of a function call. A few providers send the arguments as an object instead of text."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class CallDelta(_Wire):
    """A piece of a tool call."""

    index: int | None = None
    id: str | None = None
    function: FunctionDelta | None = None
    extra_content: dict[str, Any] | None = None


class Delta(_Wire):
    """A piece of a message, or a whole one. `content` may come in parts."""

    content: str | list[dict[str, Any]] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[CallDelta] | None = None
    function_call: FunctionDelta | None = None


class TokenCount(_Wire):
    """Tokens so far."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Choice(_Wire):
    """One answer; `message` is a whole one."""

    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    usage: TokenCount | None = None


class Chunk(_Wire):
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
    try:
        chunk = _decoder.decode(data)
    except (ValueError, RecursionError):
        chunk = _salvage(_json(data), Chunk) or Chunk()
    if not chunk.choices and not chunk.error and chunk.usage is None:
        chunk.error = _bare_error(_json(data))
    return chunk


def _json(data: bytes) -> object:
    """As lenient as can be: half a surrogate pair and NaN do occur. Raises ValueError."""
    try:
        value = json.loads(data.decode("utf-8", "replace"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    # Half a pair could be neither stored nor sent on.
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _bare_error(value: object) -> object:
    """An error that is not wrapped in `error`, as FastAPI and older vLLM servers send it."""
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, Any]", value)
    bare = fields.get("object") == "error" or "detail" in fields or {"message", "code"} <= fields.keys()
    return fields if bare else None


def _salvage(value: object, kind: Any) -> Any:
    """`value` as `kind`, without the parts that do not fit; None if nothing does."""
    options = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    for option in options:
        if isinstance(option, type) and issubclass(option, msgspec.Struct) and isinstance(value, dict):
            entries = cast("dict[str, Any]", value)
            fields = {name: _salvage(entries.get(name), hint) for name, hint in _hints(option).items()}
            return option(**fields)
        if get_origin(option) is list and isinstance(value, list):
            item = get_args(option)[0]
            salvaged = (_salvage(entry, item) for entry in cast("list[Any]", value))
            return [entry for entry in salvaged if entry is not None]
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None


@cache
def _hints(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(struct)
