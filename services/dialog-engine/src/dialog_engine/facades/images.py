"""Images that users send as `data:` URLs. Pure."""

from base64 import b64decode
from binascii import Error

from plugins_contract.outcomes import MediaBlock

IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"RIFF": "image/webp",
}
"""The images that models accept, by their first bytes."""


class RefusedError(Exception):
    """The request cannot be honoured; `param` is the field."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


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
