"""Models are sent what really is an image, with the type that it really has."""

from base64 import b64encode

import pytest

from dialog_engine.llm.images import images_of
from dialog_engine.model import ToolMessage
from plugins_contract.outcomes import MediaBlock
from tests.marks import promise

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"


@promise("an image that a provider does not take fails no request, and no conversation")
@pytest.mark.parametrize(
    ("said", "data", "sent"),
    [
        ("image/png", PNG, "image/png"),
        ("image/jpeg", PNG, "image/png"),
        ("image/x-icon", PNG, "image/png"),
        ("image/jpg", b"\xff\xd8\xff\xe0\x00\x10JFIF", "image/jpeg"),
        ("image/gif", b"GIF89a\x01\x00\x01\x00", "image/gif"),
        ("image/webp", b"RIFF\x24\x00\x00\x00WEBPVP8 ", "image/webp"),
        ("image/webp", b"RIFF\x24\x00\x00\x00WAVEfmt ", None),
        ("image/png", b"ABC", None),
        ("image/png", b"", None),
        ("image/svg+xml", b"<svg/>", None),
        ("application/octet-stream", PNG, None),
    ],
)
def test_the_first_bytes_say_what_an_image_is(said: str, data: bytes, sent: str | None) -> None:
    text = b64encode(data).decode()
    shown = [*images_of(ToolMessage("a", "camera", "", (MediaBlock(said, text),)))]
    assert shown == ([MediaBlock(sent, text)] if sent else [])


def test_what_is_no_base64_is_no_image() -> None:
    assert not [*images_of(ToolMessage("a", "camera", "", (MediaBlock("image/png", "not base64!"),)))]
