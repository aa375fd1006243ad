"""A file of an earlier release is taken over as it is, with everything in it."""

import sqlite3
from pathlib import Path

import pytest

from dialog_engine.model import AssistantMessage, ToolCall, UserMessage
from dialog_engine.storage.archive import SqliteArchive
from dialog_engine.storage.calls import SqliteCalls
from dialog_engine.storage.database import open_database
from dialog_engine.storage.journal import SqliteJournal
from dialog_engine.storage.turns import SqliteTurns

pytestmark = pytest.mark.anyio

FIRST = """
CREATE TABLE sessions (session_id TEXT PRIMARY KEY, subject TEXT NOT NULL, title TEXT NOT NULL DEFAULT '',
    created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL) STRICT;
CREATE TABLE turns (turn_id TEXT PRIMARY KEY, session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
    status TEXT NOT NULL, epoch INTEGER NOT NULL DEFAULT 1, rounds INTEGER NOT NULL DEFAULT 0, reason TEXT,
    input_tokens INTEGER NOT NULL DEFAULT 0, output_tokens INTEGER NOT NULL DEFAULT 0, ttft_ms INTEGER, error_code TEXT,
    error_message TEXT, traceparent TEXT, created_at INTEGER NOT NULL, finished_at INTEGER) STRICT;
CREATE TABLE messages (message_id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL REFERENCES sessions
    ON DELETE CASCADE, turn_id TEXT NOT NULL REFERENCES turns ON DELETE CASCADE, role TEXT NOT NULL,
    content TEXT NOT NULL, reasoning TEXT NOT NULL DEFAULT '',
    interrupted INTEGER NOT NULL DEFAULT 0, created_at INTEGER NOT NULL) STRICT;
CREATE TABLE tool_calls (correlation_id TEXT PRIMARY KEY, message_id INTEGER NOT NULL REFERENCES messages
    ON DELETE CASCADE, turn_id TEXT NOT NULL REFERENCES turns ON DELETE CASCADE, ordinal INTEGER NOT NULL,
    tool_call_id TEXT NOT NULL, name TEXT NOT NULL, server TEXT NOT NULL, arguments TEXT NOT NULL, extra BLOB,
    outcome BLOB, created_at INTEGER NOT NULL, answered_at INTEGER) STRICT;
CREATE INDEX messages_by_session ON messages (session_id, message_id);
INSERT INTO sessions VALUES ('s', 'ada', 'Hi', 1, 1);
INSERT INTO turns (turn_id, session_id, status, created_at) VALUES ('t', 's', 'running', 1);
INSERT INTO messages (message_id, session_id, turn_id, role, content, created_at) VALUES (7, 's', 't', 'user', 'Hi', 1);
INSERT INTO messages (message_id, session_id, turn_id, role, content, created_at)
    VALUES (8, 's', 't', 'assistant', '', 1);
INSERT INTO tool_calls (correlation_id, message_id, turn_id, ordinal, tool_call_id, name, server, arguments, created_at)
    VALUES ('c', 8, 't', 0, 'call_1', 'a__b', 'a', '{}', 1);
"""


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    path = tmp_path / "engine.sqlite3"
    with sqlite3.connect(path) as connection:
        connection.executescript(FIRST)
    connection.close()
    return path


async def test_what_was_said_keeps_its_numbers_and_new_messages_come_after_it(old_file: Path) -> None:
    for _ in range(2):  # the second start finds a file of this release
        async with open_database(old_file) as database:
            archive = SqliteArchive(database, SqliteCalls(database, lambda _: None))
            asked = AssistantMessage("", (ToolCall("call_1", "c", "a__b", "{}"),))
            assert [*await archive.messages("s")] == [UserMessage("Hi"), asked]
            _, messages = await archive.transcript("ada", "s")
            assert [message.message_id for message in messages] == [7, 8]
            [left] = await SqliteTurns(database, lambda _: None).unfinished()
            assert (left.turn_id, left.subject, left.epoch) == ("t", "ada", 1)


async def test_all_of_an_earlier_session_can_be_shared(old_file: Path) -> None:
    async with open_database(old_file) as database:
        change = await SqliteJournal(database).whole("s")
        assert change is not None
        assert sorted(change.rows) == ["message:t:7", "message:t:8", "turn:t"]
