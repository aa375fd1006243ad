"""The arguments of a call: read from the text that a model wrote, and what is wrong with them. Pure.

Complaints are in words by which a model can mend all of them in one go.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, cast

import msgspec
from jsonschema.exceptions import ValidationError

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


MOST = 3
"""So many complaints at once: a model that is told of one at a time needs a round for each."""
MAX_VALUE = 80
"""Characters of a wrong value that are repeated: what was expected instead must not be crowded out."""
MAX_COMPLAINT = 500


def complaints(errors: Iterable[ValidationError]) -> str | None:
    """The first of `errors`, each with the field it is about; None when there are none."""
    found = list(islice(errors, MOST + 1))
    if not found:
        return None
    said = list(dict.fromkeys(_said(_meant(error)) for error in found[:MOST]))
    return "; ".join([*said, "and there is more"] if len(found) > MOST else said)


def _said(error: ValidationError) -> str:
    path = error.json_path.removeprefix("$").removeprefix(".") or "arguments"
    return f"{path[:MAX_COMPLAINT]}: {_message(error)[:MAX_COMPLAINT]}"


def _meant(error: ValidationError) -> ValidationError:
    """Where nothing of several possibilities fits, what is wrong with the one that comes closest."""
    if error.validator not in ("anyOf", "oneOf") or not error.context or _types(error):
        return error
    # A value of the right type at least, and the deeper the better, is what the model had in mind.
    return _meant(max(error.context, key=lambda each: (each.validator != "type", len(each.absolute_path))))


def _types(error: ValidationError) -> list[str]:
    """The types that are possible, if the value is of none of them."""
    context = error.context or ()
    if any(each.validator != "type" or each.relative_path for each in context):
        return []
    return [name for each in context for name in _names(each.validator_value)]


def _names(types: object) -> Sequence[str]:
    return [types] if isinstance(types, str) else cast("list[str]", types)


def _message(error: ValidationError) -> str:
    value = _short(repr(error.instance))
    if types := _types(error) if error.validator in ("anyOf", "oneOf") else []:
        return f"{value} is not of type {', '.join(map(repr, dict.fromkeys(types)))}"
    message = error.message.replace(repr(error.instance), value)
    if error.validator == "additionalProperties" and isinstance(error.schema, Mapping):
        known = list(error.schema.get("properties") or ())
        return f"{message}. Known are: {', '.join(known)}" if known else message
    return message


def _short(text: str) -> str:
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 1]}…"
