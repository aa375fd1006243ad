"""Where texts are read that a model, a tool, a server or a user has written: the event loop belongs to none of them.

Whatever reads such a text takes time proportional to its length (`tests/unit/test_text_readers.py` holds that of every
such function). A short text is read where it is; a long one in a thread, so that the loop serves all others meanwhile.
"""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LOOP_CHARACTERS = 16_000
"""The longest text that is read in the event loop, in characters or bytes. The slowest readers take 40 ms for it at 2.5
microseconds per character, and nearly all of them less than 1 ms."""


async def reading(size: int, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `read` returns for a text of `size` characters or bytes. It must not use what the loop changes meanwhile."""
    if size <= LOOP_CHARACTERS:
        return read(*args, **kwargs)
    return await asyncio.to_thread(read, *args, **kwargs)
