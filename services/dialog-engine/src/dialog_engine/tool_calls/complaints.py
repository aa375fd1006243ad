"""What is wrong with the arguments of a call, in words by which a model can mend them in one go. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import cast

from jsonschema.exceptions import ValidationError

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
