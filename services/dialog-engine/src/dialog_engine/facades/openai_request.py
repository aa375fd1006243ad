"""What the requests of OpenAI's API have in common: how they are read, and how they are refused. Pure."""

from typing import TypeVar

import msgspec

from dialog_engine.facades.images import RefusedError

T = TypeVar("T")


def decoded(body: bytes, kind: type[T]) -> T:
    """The JSON of a request, in time proportional to its length. Raises RefusedError: it is not valid."""
    try:
        return msgspec.json.decode(body, type=kind, strict=True)
    except msgspec.ValidationError as error:
        raise RefusedError(*_wrong(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError("body", f"the body is not valid JSON: {error}") from None


def storable(text: str, where: str) -> str:
    """The text of the field `where`, if it can be stored. Raises RefusedError."""
    if "\0" in text:
        raise RefusedError(where, "must not contain the character U+0000: remove it")
    return text


def within(value: float | None, least: float, most: float, where: str) -> None:
    """Raises RefusedError when the value of the field `where` is given and out of its range."""
    if value is not None and not least <= value <= most:
        raise RefusedError(where, f"must be between {least} and {most}")


_MISSING = "Object missing required field `"


def _wrong(error: str) -> tuple[str, str]:
    """The field and what is wrong with it, from msgspec's text such as "Expected `str`, got `int` - at `$.model`"."""
    message, at, field = error.partition(" - at `$")
    field = field.rstrip("`").removeprefix(".")
    if message.startswith(_MISSING):
        return f"{field}.{message.removeprefix(_MISSING).rstrip('`')}".removeprefix("."), "is required"
    return field if at else "body", message
