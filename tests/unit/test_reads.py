"""Requests that read: which addresses, which versions, and what a worker refuses."""

import msgspec
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from plugins_contract.choice import ToolChoice
from plugins_contract.encryption import Cipher, open_request, seal_request
from plugins_contract.errors import ErrorCode
from plugins_contract.messages import (
    READ_VERSION,
    UnsupportedEventError,
    decode_request,
    encode_request,
)
from plugins_contract.reads import MAX_URI_CHARS, ReadKind, unusable_uri
from plugins_contract.rights import Rights
from plugins_mcp.decisions import refusal
from tests.marks import promise
from tests.support.handling import DONE, Bench, delivery, gives


@pytest.mark.parametrize(
    ("uri", "usable"),
    [
        ("file:///a/b.txt", True),
        ("notes://a/one?x=1..2#..y", True),
        ("urn:isbn:1", True),
        ("file:///a/..hidden/...", True),
        ("", False),
        ("a/b", False),
        ("file:///a/../b", False),
        ("file:///a/..", False),
        ("file:///a/./b", False),
        ("file:///a/%2e%2e/b", False),
        ("file:///a/.%2E?x", False),
        ("file:..", False),
        ("file:///a\\..\\b", False),
        ("file:///a b", False),
        ("file:///a\nb", False),
        ("x:" + "y" * MAX_URI_CHARS, False),
    ],
)
def test_an_address_that_leads_out_of_its_folder_is_not_read(uri: str, usable: bool) -> None:
    assert (unusable_uri(uri) is None) is usable
    request = msgspec.structs.replace(delivery().request, kind=ReadKind.RESOURCE, tool=f"resource:{uri}")
    assert (refusal(request, None) is None) is usable


def test_a_read_has_a_version_that_older_workers_do_not_run_as_a_call() -> None:
    read = msgspec.structs.replace(delivery().request, kind=ReadKind.RESOURCE, event_version=READ_VERSION)
    assert decode_request(encode_request(read)) == read
    for wrong in (
        msgspec.structs.replace(read, event_version=1),
        msgspec.structs.replace(read, kind=msgspec.UNSET),
    ):
        with pytest.raises(UnsupportedEventError, match="kind"):
            decode_request(encode_request(wrong))
    cipher = Cipher({"k": AESGCM(b"x" * 32)})
    sealed = decode_request(encode_request(seal_request(read, cipher)))
    assert (sealed.event_version, sealed.arguments) == (READ_VERSION, {})
    assert open_request(sealed, cipher).arguments == read.arguments


@promise("a resource or prompt that a sender has no right to is neither listed nor found nor read")
async def test_a_worker_reads_nothing_that_rights_or_the_choice_exclude() -> None:
    rights = Rights(b'[[allow]]\ntools = ["demo/resource:file:///public/*"]').access("u", ())
    for uri, reads in (
        ("file:///public/a", True),
        ("file:///private/a", False),
        ("file:///public/../private/a", False),
    ):
        request = msgspec.structs.replace(delivery().request, kind=ReadKind.RESOURCE, tool=f"resource:{uri}")
        assert (refusal(request, rights) is None) is reads
    bench = Bench()
    choice = ToolChoice(deny=("demo/prompt:*",))
    await bench.handle(gives(DONE), kind=ReadKind.PROMPT, tool="prompt:x", choice=choice)
    assert bench.server.calls == []
    assert bench.outcome.error
    assert bench.outcome.error.code is ErrorCode.PERMISSION_DENIED
