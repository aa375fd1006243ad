"""Images that users send as `data:` URLs. Pure."""

from base64 import b64decode
from binascii import Error
from collections.abc import Sized

from plugins_contract.outcomes import MediaBlock

IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"RIFF": "image/webp",
}
"""The images that models accept, by their first bytes."""
MAX_IMAGES = 500
"""Of a request. Each is a row of its own."""


class RefusedError(Exception):
    """The request cannot be honoured; `param` is the field."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


def check_number(images: Sized, where: str) -> None:
    """Raises RefusedError when the field `where` has too many images."""
    if len(images) > MAX_IMAGES:
        raise RefusedError(where, f"has {len(images)} images; {MAX_IMAGES} are allowed")


def image_of(url: str, where: str) -> MediaBlock:
    """The image of a URL, in time proportional to its length.

    Raises:
        RefusedError: it is none that can be sent to models; `where` is its field.
    """
    head, comma, data = url.partition(",")
    if not head.startswith("data:") or not head.endswith(";base64") or not comma:
        raise RefusedError(where, "must be a data: URL in base64: images at other addresses are not fetched")
    try:
        begins = b64decode(data, validate=True)[:16]
    except (Error, ValueError):
        raise RefusedError(where, "is not valid base64") from None
    kind = next((kind for start, kind in IMAGES.items() if begins.startswith(start)), None)
    if kind is None:
        raise RefusedError(where, "is not an image that models accept: PNG, JPEG, GIF and WebP are")
    return MediaBlock(kind, data)
