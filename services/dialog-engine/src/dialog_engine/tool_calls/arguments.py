"""The arguments of a call: parsed from the text that a model wrote, and validated against the tool's schema. Pure.

Validation messages name every field that is wrong, so that a model can correct all of them at once.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, cast

import msgspec
from jsonschema.exceptions import ValidationError

from dialog_engine.tool_calls.bounded_validation import THREAD_SECONDS, UnusableSchemaError, read_errors
from plugins_contract.catalog import ToolEntry

log = logging.getLogger(__name__)

MAX_CHARACTERS = 256_000
"""The longest arguments that are accepted: they travel through the database, Redis and a worker."""
MAX_DEPTH = 64
"""The deepest nesting of objects and arrays that is accepted. Encoders and validators fail at several hundred."""


def read_arguments(text: str) -> dict[str, Any] | str:
    """The arguments in the model's text, or a message that says what is wrong. Empty text means no arguments."""
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
    return arguments if depth_is_fine(arguments) else _TOO_DEEP


_TOO_DEEP = f"the arguments have more than {MAX_DEPTH} objects and arrays inside each other. Send them flatter."


def depth_is_fine(value: object) -> bool:
    """Whether a JSON value has at most MAX_DEPTH objects and arrays inside each other."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _children(outer) if isinstance(inner, dict | list)]
        if not level:
            return True
    return False


def _children(value: object) -> Iterable[object]:
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


def without_nulls(tool: ToolEntry, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments without the fields that are null, where the tool's schema has another type and does not require
    them: models write null for what they leave out, as strict schemas of providers ask them to."""
    nulls = {name for name, value in arguments.items() if value is None}
    match tool.input_schema:
        case {"properties": {**fields}, **others} if nulls:
            listed = others.get("required")
            required = (
                {each for each in cast("list[Any]", listed) if isinstance(each, str)}
                if isinstance(listed, list)
                else ()
            )
            left_out = {name for name in nulls.difference(required) if _has_other_type(fields.get(name))}
            return {name: value for name, value in arguments.items() if name not in left_out}
        case _:
            return arguments


def _has_other_type(schema: object) -> bool:
    types: Any = cast("dict[str, Any]", schema).get("type") if isinstance(schema, dict) else None
    return types is not None and "null" not in (types if isinstance(types, list) else [types])


# --- Validation ---

MAX_MESSAGES = 3
"""The number of errors that are reported at once: with one at a time a model would need a round for each."""
MAX_VALUE = 80
"""Characters of a wrong value that are repeated in its message."""
MAX_MESSAGE = 500
"""Characters of one message."""


def validate(tool: ToolEntry, arguments: dict[str, Any], thread_seconds: float = THREAD_SECONDS) -> str | None:
    """A message that says how `arguments` break the schema of `tool`, field by field; None when they fit it.

    Nothing is corrected silently (but see `without_nulls`): a number that is written as text is reported to the model.

    A schema that is invalid, refers to something outside of it, or takes too long to apply, accepts nothing; outside of
    the event loop that is `thread_seconds` of processor time.
    """
    try:
        return read_errors(tool.input_schema, arguments, validation_messages, thread_seconds)
    except UnusableSchemaError as error:
        reason = str(error)[:MAX_MESSAGE]
        if len(_unusable) >= MAX_UNUSABLE:
            _unusable.clear()
        _unusable[tool.name] = tool, f"the input schema {reason}"
        log.warning("a call of %r at server %r cannot be checked: its input schema %s", tool.tool, tool.server, reason)
        return f"they cannot be checked, because the input schema of {tool.name} {reason}. Tell the user."


_unusable: dict[str, tuple[ToolEntry, str]] = {}
MAX_UNUSABLE = 1_000


def unusable_schema(tool: ToolEntry) -> str | None:
    """Why the tool's schema could not be applied to a call; None when it could, or the tool has changed since."""
    known, reason = _unusable.get(tool.name, (None, None))
    return reason if known == tool else None


def validation_messages(errors: Iterable[ValidationError]) -> str | None:
    """The first of `errors`, each with the name of its field; None when there are none."""
    found = list(islice(errors, MAX_MESSAGES + 1))
    if not found:
        return None
    messages = list(dict.fromkeys(_with_field(_closest(error)) for error in found[:MAX_MESSAGES]))
    return "; ".join([*messages, "and there is more"] if len(found) > MAX_MESSAGES else messages)


def _with_field(error: ValidationError) -> str:
    path = error.json_path.removeprefix("$").removeprefix(".") or "arguments"
    return f"{path[:MAX_MESSAGE]}: {_message(error)[:MAX_MESSAGE]}"


def _closest(error: ValidationError) -> ValidationError:
    """Where none of several alternatives fits, the error of the alternative that the value comes closest to."""
    if error.validator not in ("anyOf", "oneOf") or not error.context or _types(error):
        return error
    # The alternative with the right type, and of those the one whose error is deepest in the value.
    return _closest(max(error.context, key=lambda each: (each.validator != "type", len(each.absolute_path))))


def _types(error: ValidationError) -> list[str]:
    """The types of all alternatives, if the value has none of these types."""
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
