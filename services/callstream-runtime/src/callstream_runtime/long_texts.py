"""Where texts are read that a model, a tool, a server or a user has written: the event loop belongs to none of them.

Whatever reads such a text takes time proportional to its length (`tests/unit/test_text_readers.py` holds that of every
such function). A short text is read where it is; a long one in a thread, so that the loop serves all others meanwhile.
How many objects a JSON text would become is found out without making one of them.
"""

import asyncio
import re
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


_WINDOW = 1 << 20
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_WHOLE_STRINGS = re.compile(rb'(?:[^"]*+%s)*+[^"]*+' % _STRING.pattern, re.DOTALL)
_BEGINNINGS = (b",", b"[", b"{", b":")
"""Each value or name but the first comes after one of these."""


def exceeds(text: bytes, most: int) -> bool:
    """Whether JSON has more than `most` values and names of fields, with those in its lists and objects.

    What is in strings is not counted. The text need not be valid.
    """
    return len(text) > most and sum(map(text.count, _BEGINNINGS)) > most and _exceeds(text, most)


def _exceeds(text: bytes, most: int) -> bool:
    at = count = 0
    while at < len(text):
        whole = _WHOLE_STRINGS.match(text, at, at + _WINDOW)
        end = whole.end() if whole else at
        values = _STRING.sub(b"", text[at:end])
        count += sum(map(values.count, _BEGINNINGS))
        if count > most:
            return True
        at = end
        if text[at : at + 1] == b'"':  # a string that is not whole in this window
            string = _STRING.match(text, at)
            at = string.end() if string else len(text)
    return False
