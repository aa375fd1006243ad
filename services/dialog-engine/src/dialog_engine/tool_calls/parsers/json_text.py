"""The JSON object that a model meant to write."""

import html
import json
import re
from typing import NoReturn

import msgspec

from dialog_engine.tool_calls.parsers.source import CutError, Reading, Source
from dialog_engine.tool_calls.parsers.values import without_cdata

QUOTE_MISSING = (
    "a quote is missing in its arguments, or in those of a call before it, so that nobody can tell where they end."
    " Write these calls again."
)

_FENCED = re.compile(r"\s*```\w*\s*\n(.*)\n\s*```\s*", re.DOTALL)


def as_object(text: str) -> str | None:
    """The JSON object in `text`, None if there is none.

    Forgiven is what models do to sound JSON: a code fence or a CDATA section around it, line breaks inside its strings,
    and entities of XML in the place of its characters. Sound JSON is returned as it is written.
    """
    text = without_cdata(text).strip()
    if _is_object(text):
        return text
    fenced = _FENCED.fullmatch(text)
    return _rewritten(fenced[1] if fenced else text) or _rewritten(html.unescape(text))


def json_until(source: Source, *closers: str) -> Reading[tuple[str, str]]:
    """Read JSON up to its closing tag: the text, and the tag, "" if the reply ended before it.

    What stands in a string is no tag. Only if that makes no JSON a quote is taken to be missing: then the first tag
    counts, so that what follows is not swallowed, but no call from here on may run: it could be a part of a string.
    """
    try:
        text, closer = yield from source.until(*closers, strings=not source.doubt)
    except CutError as cut:
        text, closer = cut.text, ""
    inside = [(at, tag) for tag in closers if (at := text.find(tag)) >= 0]
    if not inside or _is_json(text) or as_object(text) is not None:
        return text, closer
    at, tag = min(inside)
    source.put_back(text[at + len(tag) :] + closer)
    source.doubt = QUOTE_MISSING
    return text[:at], tag


def _is_object(text: str) -> bool:
    if not text.startswith("{"):
        return False
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (ValueError, RecursionError):
        return False


def _is_json(text: str) -> bool:
    try:
        json.loads(text, strict=False)
    except ValueError:
        return False
    except RecursionError:
        return True
    return True


def _rewritten(text: str) -> str | None:
    try:
        value = json.loads(text, strict=False, parse_constant=_refuse)
        return json.dumps(value) if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
