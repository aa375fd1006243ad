"""Typed reading of decoded JSON, with errors that name the field and never show its value."""

from collections.abc import Collection, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeVar, cast

from plugins_contract.messages import MAX_TIMEOUT_MS

Word = TypeVar("Word", bound=StrEnum)


class FieldError(ValueError):
    """A field is missing, unknown or of the wrong kind."""


def an_object(value: Any, where: str) -> dict[str, Any]:
    """`value` as a JSON object."""
    if not isinstance(value, dict):
        raise FieldError(f"{where} must be an object")
    return cast("dict[str, Any]", value)


def a_string(value: Any, where: str) -> str:
    """`value` as a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise FieldError(f"{where} must be a text")
    return value


def a_bool(value: Any, where: str) -> bool:
    """`value` as true or false."""
    if not isinstance(value, bool):
        raise FieldError(f"{where} must be true or false")
    return value


def a_count(value: Any, where: str) -> int:
    """`value` as a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise FieldError(f"{where} must be a whole number of at least 1")
    return value


def milliseconds(value: Any, where: str) -> int:
    """`value` as a time in milliseconds, at least 1 and at most MAX_TIMEOUT_MS."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise FieldError(f"{where} must be a whole number of milliseconds, at least 1 (30000 is half a minute)")
    if value > MAX_TIMEOUT_MS:
        raise FieldError(f"{where} must be {MAX_TIMEOUT_MS} milliseconds, which are 30 days, at most")
    return value


def one_of(words: type[Word], value: Any, where: str) -> Word | None:
    """`value` as one of `words`; None stays None."""
    if value is None:
        return None
    if value not in tuple(words):
        raise FieldError(f"{where} must be one of {', '.join(words)}")
    return words(value)


def strings(value: Any, where: str) -> tuple[str, ...]:
    """`value` as a list of texts, which may be empty."""
    items = cast("list[Any]", value) if isinstance(value, list) else None
    if items is None or not all(isinstance(item, str) for item in items):
        raise FieldError(f"{where} must be a list of texts")
    return tuple(items)


def string_map(value: Any, where: str) -> Mapping[str, str]:
    """`value` as an object whose values are texts."""
    pairs = an_object(value, where)
    for key, item in pairs.items():
        if not isinstance(item, str):
            raise FieldError(f"{where}.{key} must be a text (put it in quotes)")
    return MappingProxyType(cast("dict[str, str]", pairs))


def only(pairs: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Refuse fields that are not `known`."""
    for key in pairs:
        if key not in known:
            raise FieldError(f"{where} has an unknown field {key!r}; known are {', '.join(sorted(known))}")
