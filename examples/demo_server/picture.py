"""Draws small pictures as PNG, with the standard library only."""

import math
import struct
import zlib
from typing import Literal, get_args

Motif = Literal["sunset", "rings", "checkers"]
MOTIFS: tuple[Motif, ...] = get_args(Motif)

Colour = tuple[int, int, int]


def draw_png(motif: Motif, size: int) -> bytes:
    """A square RGB picture, `size` pixels wide, as the bytes of a PNG file."""
    rows = (b"".join(bytes(_colour(motif, x / size, y / size)) for x in range(size)) for y in range(size))
    pixels = b"".join(b"\0" + row for row in rows)  # each row begins with its filter type: none
    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", zlib.compress(pixels, level=6))
        + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _colour(motif: Motif, x: float, y: float) -> Colour:
    """The colour at a point of the unit square."""
    match motif:
        case "sunset":
            if math.hypot(x - 0.5, y - 0.62) < 0.18 and y < 0.7:
                return 255, 214, 102
            return _mix((38, 40, 98), (247, 118, 84), y / 0.7) if y < 0.7 else _mix((96, 56, 104), (22, 24, 58), y)
        case "rings":
            return _mix((18, 130, 162), (254, 252, 251), 0.5 + 0.5 * math.cos(48 * math.hypot(x - 0.5, y - 0.5)))
        case "checkers":
            return (38, 70, 83) if (int(x * 8) + int(y * 8)) % 2 else (233, 196, 106)


def _mix(one: Colour, other: Colour, share: float) -> Colour:
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(one, other, strict=True))
    return red, green, blue
