"""Sealed values: what opens them, what does not, and that nothing else is taken for one."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callstream_runtime.encryption_keys import cipher_of, key_id, read_encryption_keys
from plugins_contract.encryption import CLEAR, MARK, SEALED, Cipher, DecryptionError, key_of, open_request, seal_request
from plugins_contract.messages import (
    UnsupportedEventError,
    approve,
    arguments_hash,
    decode_request,
    decode_submitted,
    encode_request,
    is_approved,
)
from tests.marks import promise
from tests.support.handling import delivery

OLD, NEW = "o" * 32, "n" * 32
CIPHER = cipher_of([NEW, OLD])
REQUEST = msgspec.structs.replace(delivery().request, arguments={"a": "marker"})


@given(st.text(), st.text())
def test_a_text_comes_back_with_a_key_and_without(text: str, owner: str) -> None:
    for cipher in (CLEAR, CIPHER):
        stored = cipher.seal_text(text, owner)
        assert CIPHER.open_text(stored, owner) == text


@given(st.binary())
def test_data_comes_back(data: bytes) -> None:
    sealed = CIPHER.seal(data, "owner")
    assert sealed.startswith(SEALED)
    assert CIPHER.open(sealed, "owner") == data


@pytest.mark.parametrize("text", ["sealed1:00000000:AAAA", "sealed0:x", "sealed", MARK])
def test_a_text_that_looks_sealed_is_still_a_text(text: str) -> None:
    for cipher in (CLEAR, CIPHER):
        assert cipher.open_text(cipher.seal_text(text, "owner"), "owner") == text
    # It was stored without a key, and a key came later.
    assert CIPHER.open_text(CLEAR.seal_text(text, "owner"), "owner") == text


def test_the_first_key_seals_and_every_key_opens() -> None:
    by_old = cipher_of([OLD]).seal(b"{}", "owner")
    assert key_of(by_old) == key_id(OLD)
    assert CIPHER.open(by_old, "owner") == b"{}"
    assert key_of(CIPHER.seal_text("text", "owner")) == key_id(NEW) == CIPHER.first


@pytest.mark.parametrize("cipher", [CLEAR, cipher_of([OLD])])
def test_a_missing_key_is_named_with_its_setting(cipher: Cipher) -> None:
    message = f"with the key {key_id(NEW)}: add this key to ENCRYPTION_KEYS_FILE"
    for opened, sealed in (
        (cipher.open, CIPHER.seal(b"{}", "owner")),
        (cipher.open_text, CIPHER.seal_text("x", "owner")),
    ):
        with pytest.raises(DecryptionError, match=message):
            opened(sealed, "owner")  # pyright: ignore[reportArgumentType, reportCallIssue]


@promise("with encryption at rest no text is readable in the store or in Redis")
def test_a_value_cannot_be_moved_changed_or_cut() -> None:
    sealed = CIPHER.seal(b'{"text": "marker"}', "tool_calls.outcome 1")
    for moved in ("tool_calls.outcome 2", "tool_calls.extra 1"):
        with pytest.raises(DecryptionError, match="belongs elsewhere"):
            CIPHER.open(sealed, moved)
    for at in range(len(SEALED) + 9, len(sealed)):
        changed = sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]
        with pytest.raises(DecryptionError):
            CIPHER.open(changed, "tool_calls.outcome 1")
        with pytest.raises(DecryptionError):
            CIPHER.open(sealed[:at], "tool_calls.outcome 1")
    with pytest.raises(DecryptionError, match="not base64"):
        CIPHER.open_text(CIPHER.seal_text("text", "owner") + "!", "owner")


def test_nothing_is_sealed_twice_in_the_same_way() -> None:
    assert len({CIPHER.seal(b"{}", "owner") for _ in range(100)}) == 100


# --- Requests ---


def test_a_sealed_request_travels_without_its_arguments() -> None:
    sealed = seal_request(REQUEST, CIPHER)
    event = encode_request(sealed)
    assert b"marker" not in event
    received = decode_request(event)
    assert (received.event_version, received.arguments) == (2, {})
    opened = open_request(received, CIPHER)
    assert opened.arguments == REQUEST.arguments
    assert encode_request(opened) == event  # such as in a dead letter
    assert arguments_hash(opened) == arguments_hash(received) == arguments_hash(sealed) != arguments_hash(REQUEST)


def test_an_approval_belongs_to_the_sealed_arguments_and_names_no_hash_of_clear_ones() -> None:
    approved = approve(REQUEST, "ann")
    received = decode_request(encode_request(seal_request(approved, CIPHER)))
    assert is_approved(received)
    assert is_approved(open_request(received, CIPHER))
    assert not is_approved(msgspec.structs.replace(received, approved=approved.approved))
    assert seal_request(approve(REQUEST, ""), CIPHER).approved is None


@pytest.mark.parametrize("field", ["correlation_id", "server", "tool", "subject"])
def test_sealed_arguments_belong_to_their_call_tool_and_subject(field: str) -> None:
    moved = msgspec.structs.replace(seal_request(REQUEST, CIPHER), **{field: "other"})
    with pytest.raises(UnsupportedEventError, match="belongs elsewhere"):
        open_request(moved, CIPHER)


def test_a_request_without_its_key_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedEventError, match="ENCRYPTION_KEYS_FILE"):
        open_request(seal_request(REQUEST, CIPHER), CLEAR)
    with pytest.raises(UnsupportedEventError, match="eventVersion is 2"):
        decode_submitted(encode_request(seal_request(REQUEST, CIPHER)))


def test_without_keys_a_request_is_what_it_was() -> None:
    assert seal_request(REQUEST, CLEAR) is REQUEST
    assert open_request(REQUEST, CIPHER) is REQUEST
    assert b"sealed" not in encode_request(REQUEST)


# --- The file ---


def test_a_file_holds_a_key_in_each_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# rotated in May\n{NEW}\n\n{OLD}\n")
    assert (read_encryption_keys(path).first, read_encryption_keys(path).ids) == (key_id(NEW), CIPHER.ids)
    assert read_encryption_keys(None) is CLEAR
    path.write_text("short\n")
    with pytest.raises(ValueError, match="at least 32 characters"):
        read_encryption_keys(path)
