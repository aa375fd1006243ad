"""How many values and names of fields a JSON text has, found out without making an object of any of them."""

import re

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
