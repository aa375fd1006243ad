"""Reads typed fields from decoded JSON, and replaces `${VAR}` in them. Pure.

Errors name the field and never show its value.
"""

import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeVar, cast

from plugins_contract.messages import MAX_TIMEOUT_MS

Word = TypeVar("Word", bound=StrEnum)


_REFERENCE = re.compile(
    r"\$\{(?P<input>input:[^}]*)\}|\$\{(?:env:)?(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\}", re.ASCII
)
_NOT_SECRET = frozenset({"HOME", "LANG", "LOGNAME", "PATH", "PWD", "SHELL", "TMPDIR", "USER"})
"""Variables without secrets: hiding a home directory would only make errors harder to read."""


_CREDENTIAL_NAME = re.compile(r"key|token|secret|passw|credential|auth|cookie", re.IGNORECASE)


def names_credential(name: str) -> bool:
    """Whether a variable, header or parameter of this name holds a credential."""
    return _CREDENTIAL_NAME.search(name) is not None


class FieldError(ValueError):
    """A field is missing, unknown or of the wrong kind."""


class UndefinedVariableError(ValueError):
    """A field needs a variable that has no value. The text names the field and the variable, never a value."""


def an_object(value: Any, where: str) -> dict[str, Any]:
    """`value` as a JSON object."""
    if not isinstance(value, dict):
        raise FieldError(f"{where} must be an object")
    return cast("dict[str, Any]", value)


def a_string(value: Any, where: str) -> str:
    """`value` as a string that is not empty."""
    if not isinstance(value, str) or not value:
        raise FieldError(f"{where} must be a string that is not empty")
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
        raise FieldError(f"{where} must be a whole number of milliseconds, at least 1 (30000 is 30 seconds)")
    if value > MAX_TIMEOUT_MS:
        raise FieldError(f"{where} must be at most {MAX_TIMEOUT_MS} milliseconds, which is 30 days")
    return value


def one_of(words: type[Word], value: Any, where: str) -> Word | None:
    """`value` as one of `words`; None stays None."""
    if value is None:
        return None
    if value not in tuple(words):
        raise FieldError(f"{where} must be one of {', '.join(words)}")
    return words(value)


def strings(value: Any, where: str) -> tuple[str, ...]:
    """`value` as a list of strings, which may be empty."""
    items = cast("list[Any]", value) if isinstance(value, list) else None
    if items is None or not all(isinstance(item, str) for item in items):
        raise FieldError(f"{where} must be a list of strings")
    return tuple(items)


def string_map(value: Any, where: str) -> Mapping[str, str]:
    """`value` as an object whose values are strings."""
    pairs = an_object(value, where)
    for key, item in pairs.items():
        if not isinstance(item, str):
            raise FieldError(f"{where}.{key} must be a string (put it in quotes)")
    return MappingProxyType(cast("dict[str, str]", pairs))


def only(pairs: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Refuse fields that are not `known`."""
    for key in pairs:
        if key not in known:
            raise FieldError(f"{where} has an unknown field {key!r}; known are {', '.join(sorted(known))}")


class Interpolator:
    """Replaces `${VAR}`, `${env:VAR}` and `${VAR:-default}`, and nothing else.

    `used` collects the values that came from the environment; they are treated as secrets. `credentials` are those of
    them whose variable is named like one.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.used: set[str] = set()
        self.credentials: set[str] = set()

    def __call__(self, text: str, where: str) -> str:
        """`text`, the value of the field `where`, with its variables replaced.

        Raises:
            UndefinedVariableError: a variable has neither a value nor a default, or would have to be entered by hand.
        """
        return _REFERENCE.sub(lambda reference: self._value(reference, where), text)

    def _value(self, reference: re.Match[str], where: str) -> str:
        if prompt := reference["input"]:
            raise UndefinedVariableError(
                f"{where}: ${{{prompt}}} asks for manual input, which a worker cannot do: use an environment variable"
            )
        name, default = reference["name"], reference["default"]
        if name in self._environment:
            if name not in _NOT_SECRET:
                self.used.add(self._environment[name])
            if names_credential(name):
                self.credentials.add(self._environment[name])
            return self._environment[name]
        if default is None:
            raise UndefinedVariableError(
                f"{where}: environment variable {name} is not set: set it, or write ${{{name}:-default}}"
            )
        return default
