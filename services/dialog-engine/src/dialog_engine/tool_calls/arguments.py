"""The arguments of a call, from the text that a model wrote. Pure."""

from collections.abc import Iterable
from typing import Any, cast

import msgspec

MAX_CHARACTERS = 256_000
"""Arguments longer than this are not taken: they would travel through the database, Redis and a worker."""
MAX_DEPTH = 64
"""Objects and arrays inside each other. Encoders and validators along the way give up far later, but less politely."""


def read_arguments(text: str) -> dict[str, Any] | str:
    """The arguments in the model's text, or what is wrong with it. No text at all means no arguments."""
    if not text.strip():
        return {}
    if len(text) > MAX_CHARACTERS:
        return f"the arguments have {len(text)} characters, {MAX_CHARACTERS} at most are taken. Send less at a time."
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        return f"the arguments are not valid JSON: {error}. Send one JSON object."
    except RecursionError:
        return _TOO_DEEP
    if not isinstance(value, dict):
        return f"the arguments must be one JSON object, not {_json_type(value)}."
    arguments = cast("dict[str, Any]", value)
    return arguments if _depth_is_fine(arguments) else _TOO_DEEP


_TOO_DEEP = f"the arguments have more than {MAX_DEPTH} objects and arrays inside each other. Send them flatter."


def _depth_is_fine(value: object) -> bool:
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer) if isinstance(inner, dict | list)]
        if not level:
            return True
    return False


def _inside(value: object) -> Iterable[object]:
    match value:
        case dict():
            return cast("dict[str, object]", value).values()
        case _:
            return cast("list[object]", value)


def _json_type(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case list():
            return "an array"
        case str():
            return "a string"
        case _:
            return "a number"
