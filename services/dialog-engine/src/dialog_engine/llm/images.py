"""The images of users and of tool results that providers accept. Pure.

An image whose content does not match its type makes the provider refuse this request and all later ones of the session.
"""

from base64 import b64decode
from binascii import Error
from collections.abc import Iterator

from msgspec.structs import replace

from dialog_engine.model import ToolMessage, UserMessage
from plugins_contract.outcomes import MediaBlock

_BEGINNING = 16
"""Characters of base64 that hold the first bytes of a file."""


NOT_SHOWN = "(The user has sent an image that you cannot see.)"


def images_of(message: ToolMessage | UserMessage) -> Iterator[MediaBlock]:
    """The images of a message in formats that models accept, each with its actual type."""
    for block in message.media:
        kind = _type_of(block.data)
        if kind and block.mime_type.startswith("image/"):
            yield block if block.mime_type == kind else replace(block, mime_type=kind)


def _type_of(base64: str) -> str | None:
    """The type of an image by its first bytes; None for anything else."""
    try:
        begin = b64decode(base64[:_BEGINNING], validate=True)
    except (Error, ValueError):
        return None
    if begin.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if begin.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if begin.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if begin.startswith(b"RIFF") and begin.endswith(b"WEBP"):
        return "image/webp"
    return None
