"""Reads of what servers offer beside tools: resources, prompts, and completions of their arguments.

A read is a request like a call of a tool, with a `kind`. Its `tool` is `resource:<uri>` or `prompt:<name>`: rights and
choices have patterns of that. The outcome is one text, the JSON of what is below; data follow as blocks of media.
"""

import re
from enum import StrEnum
from typing import Any

import msgspec

RESOURCE, PROMPT = "resource:", "prompt:"
MAX_URI_CHARS = 2_048
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s\x00-\x1f\x7f\\]+")
_DOTS = re.compile(r"(^|[/:])(\.|%2e){1,2}([/?#]|$)", re.IGNORECASE)


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
    return "the URI has a segment that is . or .., which can lead anywhere" if _DOTS.search(uri) else None


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
