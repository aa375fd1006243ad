"""JSON Schema validation in bounded time. Schemas come from MCP servers, and a short one can take years to apply.

Two things in a schema can cost far more than its length: patterns that backtrack, and subschemas that are applied over
and over, by references to references. Patterns therefore run on RE2, whose time is linear in the text. What RE2 does
not support (look-around, back-references, very large patterns) is left to the server. All other keywords check a limit
of processor time before they run. `validating` starts in the event loop with a limit that no other request notices, and
repeats what exceeds it in a thread, with a larger limit.
"""

import asyncio
import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar, cast

import msgspec
import re2
from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import UnknownType, ValidationError
from jsonschema.protocols import Validator
from referencing import Registry
from referencing.exceptions import Unresolvable

LOOP_SECONDS = 0.005
"""Processor time of one decision in the event loop. Ordinary arguments take 10 microseconds."""
THREAD_SECONDS = 2.0
"""Processor time of one decision in a thread. The longest arguments that are accepted take 0.2 seconds."""
LOOP_TEXT = 1_000
"""The longest text that is matched against a pattern in the event loop, at up to 8 microseconds per character."""
PATTERN_BYTES = 1 << 18
"""Memory for a compiled pattern."""

TOO_SLOW = "takes too long to apply"

P = ParamSpec("P")
T = TypeVar("T")
_Keyword = Callable[[Validator, Any, Any, Any], Iterator[ValidationError] | None]


class _LimitExceeded(Exception):  # noqa: N818 -- not an error: the decision is repeated in a thread
    """The validation exceeded the limit of the event loop."""


class UnusableSchemaError(Exception):
    """The schema cannot be applied. The text says why, after "the input schema"."""


@dataclass(frozen=True, slots=True)
class _Limit:
    """`ends_at` is a time of `time.thread_time`, which does not count while other threads run."""

    ends_at: float
    in_loop: bool = False

    def check(self, text: str = "") -> None:
        if time.thread_time() > self.ends_at or (self.in_loop and len(text) > LOOP_TEXT):
            raise _LimitExceeded


_BROKEN = (
    ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, UnknownType, Unresolvable, ValueError,
    re.error,
)  # fmt: skip
"""What jsonschema and referencing raise for a schema that is broken."""
_limit: ContextVar[_Limit] = ContextVar("_limit")


@contextmanager
def _limited(limit: _Limit) -> Generator[None]:
    token = _limit.set(limit)
    try:
        yield
    finally:
        _limit.reset(token)


def check_limit() -> None:
    """For a part of a decision that takes long without validating: ends it in the event loop. See `validating`."""
    if limit := _limit.get(None):
        limit.check()


async def validating(decide: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of `decide`, a pure function that validates. It is called again, in a thread, if it takes long."""
    try:
        with _limited(_Limit(time.thread_time() + LOOP_SECONDS, in_loop=True)):
            return decide(*args, **kwargs)
    except _LimitExceeded:
        # The context of the thread has no limit: each validation gets that of a thread.
        return await asyncio.to_thread(decide, *args, **kwargs)


def read_errors(
    schema: Mapping[str, Any], value: object, read: Callable[[Iterator[ValidationError]], T], thread_seconds: float
) -> T:
    """What `read` returns for the errors of `value` under `schema`. Outside of `validating` a thread's limit applies.

    Raises:
        UnusableSchemaError: it is invalid, refers to something outside of it, or takes too long, now or earlier.
    """
    known = _known(msgspec.json.encode(schema))
    if known.too_slow:
        raise UnusableSchemaError(TOO_SLOW)
    limit = _limit.get(None) or _Limit(time.thread_time() + thread_seconds)
    try:
        with _limited(limit):
            return read(known.validator.iter_errors(value))
    except _LimitExceeded:
        if limit.in_loop:
            raise
        known.too_slow = True
        raise UnusableSchemaError(TOO_SLOW) from None
    except _BROKEN as error:
        raise UnusableSchemaError(f"is broken: {error}") from error


@dataclass(slots=True)
class _Known:
    validator: Any
    too_slow: bool = False


@lru_cache(maxsize=1024)
def _known(schema: bytes) -> _Known:
    dialect = _WITH_PATTERNS if b'"patternProperties"' in schema else _DIALECT
    # An empty registry: a schema must never make the engine fetch something.
    return _Known(dialect(_without_dialects(msgspec.json.decode(schema)), registry=Registry[Any]()))


def _without_dialects(node: Any) -> Any:
    """The schema without `$schema`, by which jsonschema would choose another validator, one without limits."""
    match node:
        case dict():
            fields = cast("dict[str, Any]", node)
            return {key: _without_dialects(value) for key, value in fields.items() if key != "$schema"}
        case list():
            return [_without_dialects(each) for each in cast("list[Any]", node)]
        case _:
            return node


# --- The keywords ---


def _bounded(keyword: _Keyword) -> _Keyword:
    def check(validator: Validator, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError] | None:
        _limit.get().check()
        return keyword(validator, value, instance, schema)

    return check


def _pattern(validator: Validator, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and _matches(pattern, instance) is False:
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: dict[str, Any], instance: Any, schema: Any) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, subschema in patterns.items():
        for name, value in instance.items():
            if _matches(pattern, name):
                yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    known, patterns = schema.get("properties", ()), schema.get("patternProperties", ())
    others = {
        name: value
        for name, value in instance.items()
        if name not in known and not any(_matches(pattern, name) is not False for pattern in patterns)
    }
    yield from _STANDARD["additionalProperties"](validator, allowed, others, {})


def _unique_items(validator: Validator, wanted: bool, instance: Any, schema: Any) -> Iterator[ValidationError]:
    # The standard one compares each item with each other when they are objects.
    if wanted and validator.is_type(instance, "array"):
        distinct = {msgspec.json.encode(item, order="deterministic") for item in instance}
        if len(distinct) < len(instance):
            yield ValidationError(f"{instance!r} has non-unique elements")


def _ignored(validator: Validator, value: Any, instance: Any, schema: Any) -> None:
    pass


def _matches(pattern: str, text: str) -> bool | None:
    """Whether the pattern is found in the text; None for a pattern that is not supported."""
    _limit.get().check(text)
    compiled = _compiled(pattern)
    return None if compiled is None else compiled.search(text) is not None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.max_mem, options.log_errors = PATTERN_BYTES, False
    try:
        return re2.compile(_UNICODE_ESCAPE.sub(_as_re2, pattern), options)
    except re2.error:
        re.compile(pattern)  # raises if it is no pattern at all
        return None


_UNICODE_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)


def _as_re2(escape: re.Match[str]) -> str:
    return rf"\x{{{escape[1]}}}" if escape[1] else escape[0]


_STANDARD: dict[str, Any] = dict(Draft202012Validator.VALIDATORS)
_OURS = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
}
_KEYWORDS: Mapping[str, Any] = {name: _bounded(check) for name, check in (_STANDARD | _OURS).items()}
_DIALECT: Any = cast("Any", validators).extend(Draft202012Validator, _KEYWORDS)
_WITH_PATTERNS: Any = cast("Any", validators).extend(_DIALECT, {"unevaluatedProperties": _ignored})
"""For schemas with patterns for names of properties: of unevaluated properties jsonschema matches these itself, with
Python's regular expressions. They are left to the server."""
