"""Reads of what servers offer beside tools: resources, prompts, and completions of their arguments.

A read is a request like a call of a tool, with a `kind`. Its `tool` is `resource:<uri>` or `prompt:<name>`: rights and
choices have patterns of that. The outcome is one text, the JSON of what is below; data follow as blocks of media.
"""

import re
from enum import StrEnum
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import msgspec

RESOURCE, PROMPT = "resource:", "prompt:"
MAX_URI_CHARS = 2_048
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s\x00-\x1f\x7f\\]+")
_DOTS = re.compile(r"(^|[/:\\])\.{1,2}([/\\?#]|$)")
_FILE = re.compile(r"resource:file://[^/]+/")
_SLASHES = re.compile(r"/+")
_DECODED = 3
"""How often a URI may have been encoded: a server behind a gateway decodes it again."""


class ReadKind(StrEnum):
    """What is read."""

    RESOURCE = "resource"
    PROMPT = "prompt"
    COMPLETION = "completion"


def unusable_uri(uri: str) -> str | None:
    """Why a URI is not read; None when it may be. One that leads out of its folder would pass the rights of another."""
    if len(uri) > MAX_URI_CHARS:
        return f"the URI has more than {MAX_URI_CHARS} characters"
    if not _URI.fullmatch(uri):
        return "it is not a URI: that begins with a scheme, such as file:///a.txt, and has no spaces"
    decoded = _decoded(uri)
    if "\0" in decoded:
        return "the URI has a NUL"
    return "the URI has a segment that is . or .., which can lead anywhere" if _DOTS.search(decoded) else None


def spellings(name: str) -> tuple[str, ...]:
    """How a rule that denies knows a resource, in any spelling that servers take for the same: with `plain` patterns.

    Empty for what is no resource.
    """
    if not name.startswith(RESOURCE):
        return ()
    # Many servers look at the path only.
    local = _FILE.sub("resource:file:///", _decoded(name).lower(), count=1)
    return tuple({_plain(name), _plain(local)})


@lru_cache(maxsize=1024)
def plain(pattern: str) -> str:
    """A pattern of resources as `spellings` has to be compared with it."""
    return _plain(pattern)


def _plain(text: str) -> str:
    """In lower case, decoded, and with one slash for several."""
    return _SLASHES.sub("/", _decoded(text).lower())


def _decoded(text: str) -> str:
    for _ in range(_DECODED):
        text = unquote(text)
    return text


class _Wire(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    pass


class Part(_Wire, frozen=True, kw_only=True):
    """A part of a resource: a text, or data. `block` is the number of the data among the blocks after this JSON.

    `left_out` is how many bytes of the text are missing at its end, because the resource is too large.
    """

    uri: str
    mime_type: str | None = None
    text: str | None = None
    block: int | None = None
    left_out: int = 0


class ResourceRead(_Wire, frozen=True, kw_only=True):
    """The content of a resource. `ttl_ms` and `cache_scope` are the server's: how long it may be kept, and for whom."""

    contents: tuple[Part, ...]
    ttl_ms: int | None = None
    cache_scope: str | None = None


class PromptRead(_Wire, frozen=True, kw_only=True):
    """A prompt with its arguments filled in: messages of MCP."""

    description: str | None = None
    messages: tuple[dict[str, Any], ...] = ()


class Completed(_Wire, frozen=True, kw_only=True):
    """Values for an argument. `total` is how many the server has, where it says so."""

    values: tuple[str, ...] = ()
    total: int | None = None
    has_more: bool = False
