"""What the requests of OpenAI's API have in common: how they are read, and how they are refused. Pure."""

from collections.abc import Container, Mapping
from typing import Any, TypeVar, cast

import msgspec

from callstream_runtime.long_texts import exceeds
from dialog_engine.facades.images import RefusedError
from dialog_engine.model import ANY_TOOL, storable_json
from dialog_engine.tool_calls.arguments import MAX_DEPTH, depth_is_fine

T = TypeVar("T")
MAX_VALUES = 500_000
"""Of a body, with the names of fields. So many objects take some 50 MB."""
MAX_JSON_BYTES = 200_000
"""Of a field of any JSON: it is stored, sent to the model in each round, and repeated in answers."""


def decoded(body: bytes, kind: type[T]) -> T:
    """The JSON of a request, in time proportional to its length. Raises RefusedError: it is not valid, or has too many
    values."""
    if exceeds(body, MAX_VALUES):
        raise RefusedError("body", f"the body has more than {MAX_VALUES} values")
    try:
        return msgspec.json.decode(body, type=kind, strict=True)
    except msgspec.ValidationError as error:
        raise RefusedError(*_wrong(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError("body", f"the body is not valid JSON: {error}") from None


_NO_NUL = "must not contain the character U+0000: remove it"


def storable(text: str | None, where: str) -> str:
    """The text of the field `where`, '' for null, if it can be stored. Raises RefusedError."""
    if text and "\0" in text:
        raise RefusedError(where, _NO_NUL)
    return text or ""


def check_json(value: object, where: str) -> None:
    """Raises RefusedError when the field `where`, which may have any JSON, cannot be stored and read again."""
    if isinstance(value, dict | list) and not depth_is_fine(cast("object", value)):
        raise RefusedError(where, f"has more than {MAX_DEPTH} objects and arrays inside each other")
    text = msgspec.json.encode(value).decode()
    if len(text) > MAX_JSON_BYTES:
        raise RefusedError(where, f"has more than {MAX_JSON_BYTES:,} characters as JSON")
    if storable_json(text) != text:
        raise RefusedError(where, _NO_NUL)


def check_parallel(parallel_tool_calls: bool | None) -> None:
    """Raises RefusedError when the model is to call one tool at a time."""
    if parallel_tool_calls is False:
        raise RefusedError("parallel_tool_calls", "the model decides how many tools it calls at once: leave it out")


def within(value: float | None, least: float, most: float, where: str) -> None:
    """Raises RefusedError when the value of the field `where` is given and out of its range."""
    if value is not None and not least <= value <= most:
        raise RefusedError(where, f"must be between {least} and {most}")


def must_call(choice: object, functions: Container[str]) -> str:
    """The tool that the model has to call first by `tool_choice`, as `Sampling.must_call`; `functions` are the names of
    the client's. Raises RefusedError."""
    if choice in (None, "auto", "none"):
        return ""
    if choice == "required":
        return ANY_TOOL
    named = cast("Mapping[str, Any]", choice) if isinstance(choice, dict) else dict[str, Any]()
    about = named.get("function", named)  # the one in Chat Completions, the other in Responses
    name = cast("Mapping[str, Any]", about).get("name") if isinstance(about, dict) else None
    if named.get("type") != "function" or not isinstance(name, str) or name not in functions:
        raise RefusedError("tool_choice", "must be auto, none, required, or one of the functions in `tools`")
    return name


_MISSING = "Object missing required field `"


def _wrong(error: str) -> tuple[str, str]:
    """The field and what is wrong with it, from msgspec's text such as "Expected `str`, got `int` - at `$.model`"."""
    message, at, field = error.partition(" - at `$")
    field = field.rstrip("`").removeprefix(".")
    if message.startswith(_MISSING):
        return f"{field}.{message.removeprefix(_MISSING).rstrip('`')}".removeprefix("."), "is required"
    return field if at else "body", message
