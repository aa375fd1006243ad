"""Statements of the store: no text is stored in clear because somebody forgot to encrypt it."""

import ast
import re
from collections.abc import Generator
from pathlib import Path

import pytest

import dialog_engine
from callstream_runtime.encryption_keys import cipher_of
from dialog_engine.storage.database import row_type
from dialog_engine.storage.schemas.sealed_columns import TABLES
from dialog_engine.storage.statements import opening_type, statement
from plugins_contract.encryption import CLEAR, DecryptionError
from tests.marks import promise

CIPHER = cipher_of(["k" * 32])
SEALED = {table.name: table.columns for table in TABLES if not table.only}
WRITE = re.compile(rf"(?:INSERT INTO|UPDATE) (?:{'|'.join(SEALED)}) ?[(SV]")


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
    assert written == {column for columns in SEALED.values() for column in columns}


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
