"""Sealed values: what opens them, what does not, and that no statement stores in clear what must be sealed."""

import ast
import re
from collections.abc import Generator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dialog_engine
from callstream_runtime.encryption_keys import cipher_of, key_id, read_encryption_keys
from dialog_engine.storage.database import row_type
from dialog_engine.storage.schemas.sealed_columns import TABLES
from dialog_engine.storage.statements import opening_type, statement
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


# --- Statements: no text is stored in clear because somebody forgot to encrypt it ---


SEALED_COLUMNS = {table.name: table.columns for table in TABLES if not table.only}
WRITE = re.compile(rf"(?:INSERT INTO|UPDATE) (?:{'|'.join(SEALED_COLUMNS)}) ?[(SV]")


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO messages (turn_id, role, content) VALUES ($turn_id, $role, $1)",
        "INSERT INTO whole_results VALUES ($1, $2)",
        "INSERT INTO whole_results SELECT correlation_id, outcome FROM tool_calls",
        "UPDATE tool_calls SET outcome = $1 WHERE correlation_id = $2",
        "UPDATE sessions SET title = upper($text) WHERE session_id = $session_id",
        "UPDATE turns SET reason = $reason, error_message = reason WHERE turn_id = $turn_id",
        "INSERT INTO approvals (correlation_id) VALUES ($correlation_id)"
        " ON CONFLICT (correlation_id) DO UPDATE SET question = $1",
    ],
)
def test_a_statement_that_would_write_a_sealed_column_in_clear_is_refused(sql: str) -> None:
    with pytest.raises(ValueError, match="is sealed: it is written by the parameter"):
        statement(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE sessions SET title = CASE title WHEN '' THEN $title ELSE title END WHERE session_id = $session_id",
        "INSERT INTO approvals (correlation_id, question) VALUES ($correlation_id, $question)"
        " ON CONFLICT (correlation_id) DO UPDATE SET question = excluded.question",
        "UPDATE turns SET stop_requested = 1 WHERE turn_id = $1",
        "INSERT INTO audit (action, outcome) VALUES ($1, $2)",
    ],
)
def test_other_statements_are_not(sql: str) -> None:
    statement(sql)


def test_named_parameters_come_after_numbered_ones_and_sealed_ones_are_encrypted_for_their_row() -> None:
    found = statement("UPDATE turns SET error_message = $error_message WHERE turn_id = $turn_id AND epoch = $1")
    assert found.sql == "UPDATE turns SET error_message = $2 WHERE turn_id = $3 AND epoch = $1"
    sealed, turn_id = found.parameters({"turn_id": "t", "error_message": "a text"}, CIPHER)
    assert turn_id == "t"
    assert CIPHER.open_text(sealed, "turns.error_message t") == "a text"
    assert found.parameters({"turn_id": "t", "error_message": None}, CIPHER) == [None, "t"]


def test_a_sealed_column_of_a_row_is_decrypted_by_its_name_and_needs_what_it_is_bound_to() -> None:
    row = opening_type(row_type(("turn_id", "role", "content")), CIPHER)
    sealed = CIPHER.seal_text("a text", "messages.content t user")
    assert row(("t", "user", sealed)).content == "a text"
    assert row(("t", "user", "in clear")).content == "in clear"
    with pytest.raises(DecryptionError):
        _ = row(("t", "assistant", sealed)).content
    with pytest.raises(ValueError, match="read together with role"):
        opening_type(row_type(("turn_id", "content")), CLEAR)


@promise("with encryption at rest no text is readable in the store or in Redis")
def test_no_statement_of_the_engine_writes_a_sealed_column_otherwise() -> None:
    found = [sql for file in Path(dialog_engine.__path__[0]).rglob("*.py") for sql in _texts(file) if WRITE.search(sql)]
    for sql in found:
        statement(sql)
    written = {name.partition(".")[2] for sql in found for _, name, _ in statement(sql).sealed}
    assert written == {column for columns in SEALED_COLUMNS.values() for column in columns}


def _texts(file: Path) -> Generator[str]:
    """The texts in a module: those that it puts together have {} for what is not in the text itself."""
    text = file.read_text()
    for node in ast.walk(ast.parse(text if "INSERT INTO" in text or "UPDATE" in text else "")):
        match node:
            case ast.JoinedStr(values=parts):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
            case ast.Constant(value=str(text)):
                yield text
            case _:
                pass
