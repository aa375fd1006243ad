"""JSON of providers, read as leniently as can be.

A field of a type that is not expected counts as absent: one provider's oddity must not break a stream that can be read
without it.
"""

import json
from functools import cache
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


class Wire(msgspec.Struct, gc=False):
    """What is read of a provider's JSON. Every field has a default."""


def decode(data: bytes, decoder: msgspec.json.Decoder[T], kind: type[T]) -> T:
    """Read one payload; `decoder` is that of `kind`.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return decoder.decode(data)
    except (ValueError, RecursionError):
        return _salvage(read_json(data), kind) or kind()


def read_json(data: bytes) -> object:
    """As lenient as can be: half a surrogate pair and NaN do occur. Raises ValueError."""
    try:
        value = json.loads(data.decode("utf-8", "replace"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    # Half a pair could be neither stored nor sent on.
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


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
