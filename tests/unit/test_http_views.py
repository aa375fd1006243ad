"""Records as the protocol shows them."""

from dialog_engine.http.views import media
from plugins_contract.outcomes import MediaBlock

MEDIA_TYPES = {
    "image/png": True,
    "image/svg+xml": True,
    "audio/x-wav": True,
    "text/html": False,
    "image/png; charset=x": False,
    "image/png\r\nset-cookie: a=b": False,
    "image/\u00e9": False,
    "image/": False,
    "": False,
}


def test_only_images_and_sounds_are_inline_and_media_types_cannot_inject_headers() -> None:
    for media_type, inline in MEDIA_TYPES.items():
        answer = media(MediaBlock(media_type, "AAAA"))
        assert answer is not None
        assert answer.headers["content-type"] == (media_type if inline else "application/octet-stream")
        assert answer.headers["content-disposition"] == ("inline" if inline else "attachment")
