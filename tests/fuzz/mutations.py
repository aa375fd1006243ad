"""What the fuzzers do to bytes and JSON that are right, so that they are wrong somewhere."""

import itertools
import json
from collections.abc import Sequence
from random import Random
from typing import Any, cast


def _nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


_SIMPLE: tuple[object, ...] = (
    *(None, True, False, 0, -1, 1, 1 << 31, 1 << 63, 10**30, 1.5, -0.0, 1e308, float("nan"), float("inf")),
    *("", " ", "a", "\x00", "\x1b[2J", "\ud800", "\udc00x", "é🙂", "\u202e", "null", "{}", "[DONE]", "a" * 300_000),
)
_CONTAINERS: tuple[Any, ...] = ([], {}, [None], [[]], {"": None}, {"a": {"b": []}}, ["a", 1, {}], [*range(2_000)])
ODD: tuple[object, ...] = (*_SIMPLE, *_CONTAINERS, _nested(50), _nested(500))
"""Values of every type, and those that only one part of a program takes."""

PIECES = (b"", b"\x00", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\n", b"\r", b"\r\n", b"\n\n", b"{", b"}")


def changed_json(value: object, random: Random) -> object:
    """The value with an odd one in one place of it, or with a field that is left out or renamed."""
    if isinstance(value, dict) and value and random.random() < 0.85:
        fields = dict(cast("dict[str, Any]", value))
        name = random.choice([*fields])
        match random.randint(0, 9):
            case 0:
                del fields[name]
            case 1:
                fields[random.choice(["", name.upper(), "\ud800", "__class__", "type", "id"])] = fields.pop(name)
            case _:
                fields[name] = changed_json(fields[name], random)
        return fields
    if isinstance(value, list) and value and random.random() < 0.85:
        items = [*cast("list[Any]", value)]
        at = random.randrange(len(items))
        match random.randint(0, 9):
            case 0:
                del items[at]
            case 1:
                items.insert(at, random.choice(items))
            case _:
                items[at] = changed_json(items[at], random)
        return items
    return random.choice(ODD)


def written(value: object, random: Random) -> bytes:
    """The value as JSON, or as what Python's parser takes for JSON. Half a character may become wrong UTF-8."""
    text = json.dumps(value, ensure_ascii=random.random() < 0.5, indent=random.choice([None, None, None, 1]))
    return text.encode("utf-8", "surrogatepass")


def changed_bytes(data: bytes, random: Random, pieces: Sequence[bytes] = PIECES) -> bytes:
    """The bytes with a part left out, repeated, replaced or cut off."""
    at, to = sorted(random.randint(0, len(data)) for _ in range(2))
    match random.randint(0, 7):
        case 0:
            return data[:at] + data[to:]
        case 1:
            return data[:to] + data[at:]
        case 2:
            return data[:at]
        case 3:
            return data[:at] + random.randbytes(random.randint(1, 20)) + data[at:]
        case 4:
            return data.replace(b"\n", random.choice([b"\r", b"\r\n", b"\n\n", b""]))
        case _:
            return data[:at] + random.choice(pieces) + data[at:]


def in_reads(data: bytes, random: Random) -> list[bytes]:
    """The bytes in pieces, of which none is empty."""
    places = sorted(random.randint(0, len(data)) for _ in range(random.choice([0, 1, 3, 12])))
    return [data[a:b] for a, b in itertools.pairwise([0, *places, len(data)]) if a < b]
