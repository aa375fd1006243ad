"""Texts of models and tools without U+0000, which PostgreSQL cannot store: U+FFFD stands in its place."""

import re

REPLACEMENT = "\ufffd"
_ESCAPED = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")


def storable(text: str) -> str:
    """The text without U+0000."""
    return text.replace("\0", REPLACEMENT) if "\0" in text else text


def storable_json(text: str) -> str:
    """The JSON text, in which no string has U+0000, as it is or escaped. The text need not be valid JSON."""
    text = storable(text)
    return _ESCAPED.sub(rf"\1{REPLACEMENT}", text) if r"\u0000" in text else text
