"""Identifiers: UUIDv7, so that ids sort by their time of creation (RFC 9562, section 5.7)."""

import os
import time
import uuid


def new_id() -> str:
    """A new UUIDv7 as text: 48 bits of Unix milliseconds, then random bits."""
    stamp = time.time_ns() // 1_000_000
    tail = int.from_bytes(os.urandom(10))
    value = (stamp & (2**48 - 1)) << 80 | 0x7 << 76 | (tail >> 68 & 0xFFF) << 64 | 0b10 << 62 | tail & (2**62 - 1)
    return str(uuid.UUID(int=value))
