"""`dialog-engine move`: a PostgreSQL gets everything that the file of an engine has, and never may both be used."""

import asyncio
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from dialog_engine.config import load
from dialog_engine.config.store import StoreSettings
from dialog_engine.errors import ConfigurationError
from dialog_engine.identity.authenticator import NoCredentials
from dialog_engine.operators import audit, audit_chain, commands
from dialog_engine.storage.audit import read_digest_key
from dialog_engine.storage.audit_chain import AuditChain
from dialog_engine.storage.schemas.sealed_columns import TABLES
from dialog_engine.storage.sqlite_file import open_sqlite
from dialog_engine.wiring.engine import run_engine
from plugins_contract.encryption import CLEAR
from tests.integration.engines import Model, in_store, running_engine, settings
from tests.marks import promise
from tests.support.beginnings import begin
from tests.support.engine_stores import OUTCOME, EngineStore, tool_call
from tests.support.long_sessions import write_session
from tests.support.store import Store
from tests.support.waiting import wait_until

LETTER = "the-hidden-marzipan"


@pytest.fixture
def file(tmp_path: Path, empty_postgres: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """The file that is moved. The settings of the commands name it, and an empty PostgreSQL."""
    path = tmp_path / "engine.sqlite3"
    monkeypatch.setenv("OUTBOX_PATH", str(path))
    monkeypatch.setenv("DATABASE_URL", empty_postgres)
    store = Store(path)
    yield store
    store.close()


@pytest.fixture
def moved(empty_postgres: str) -> Iterator[Store]:
    store = Store(empty_postgres)
    yield store
    store.close()


async def move(*options: str) -> int:
    return await asyncio.to_thread(commands.run, ["move", *options])


async def fill(file: Store, turns: int = 30) -> None:
    """Ended and running turns, calls of every state, waiting messages, an erasure, facts, and a sealed audit."""
    async with open_sqlite(Path(str(file.where))) as database:
        store = EngineStore(database, await database.engine_id())
        await store.engines.register(10_000)
        await database.write(lambda tx: write_session(tx, "long", "ada", turns, image="aW1hZ2U="))
        running = await begin(store.turns, "ada", None, "Hi")
        answered, open_, asked = tool_call(), tool_call(), tool_call()
        await store.add_round(running, answered, open_, asked=[asked])
        await store.calls.add_result(running, answered, OUTCOME)
        gone = await begin(store.turns, "eve", None, "Bye")
        await store.end(gone)
        await store.erasures.delete("eve", gone.session_id)
        chain = AuditChain(database, await read_digest_key(database, CLEAR))
        await chain.seal()
        await chain.seal()


def refused(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.splitlines()[-1]


@promise("a SQLite file is moved into a PostgreSQL whole, also after a kill, and never are both in use")
async def test_every_row_is_moved_and_the_keys_go_on_behind_them(
    file: Store, moved: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    await fill(file)

    assert await move() == 0

    assert "The move is complete" in capsys.readouterr().out
    for table in ("turns", "messages", "tool_calls", "approvals", "outbox", "erasures", "audit", "engines"):
        assert moved.count(table) == file.count(table), table
    rows = "SELECT message_id, turn_id, role, content FROM messages ORDER BY message_id"
    assert moved.rows(rows) == file.rows(rows)
    for name, key in (("messages", "message_id"), ("outbox", "seq"), ("audit", "seq")):
        last = dict(file.rows("SELECT name, seq FROM sqlite_sequence"))[name]
        assert moved.rows(f"SELECT nextval(pg_get_serial_sequence('{name}', '{key}'))") == [(last + 1,)]
    with audit.opened(load(StoreSettings)) as query:
        verified = audit_chain.verify(query, CLEAR)
    assert verified.head.number
    assert not verified.problems


@promise("a SQLite file is moved into a PostgreSQL whole, also after a kill, and never are both in use")
async def test_an_engine_goes_on_in_the_postgresql_with_sealed_texts_and_none_starts_on_the_file(
    tmp_path: Path, file: Store, moved: Store, redis_url: str, model: Model, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    keys = tmp_path / "encryption.keys"
    keys.write_text("k" * 32)
    on_file = settings(tmp_path, redis_url, model.url, database_url=None, encryption_keys_file=keys)
    async with running_engine(on_file) as engine:
        assert await move() == 2
        assert "another engine is using it" in refused(capsys)
        model.will_say(f"It is {LETTER}.")
        session = (await engine.chat(f"What is {LETTER}?"))[0].data["sessionId"]

    assert await move() == 2
    assert "ENCRYPTION_KEYS_FILE" in refused(capsys)
    assert file.count("meta WHERE key = 'move'") == 0, "a missing key is found before anything is marked"
    monkeypatch.setenv("ENCRYPTION_KEYS_FILE", str(keys))
    assert await move() == 0

    for table in TABLES:
        for column in table.columns:
            assert LETTER not in str(moved.rows(f"SELECT {column} FROM {table.name}"))  # noqa: S608
    with pytest.raises(ConfigurationError, match="this file was moved to "):
        async with run_engine(on_file, asyncio.Event(), NoCredentials()):
            pass
    async with running_engine(in_store(on_file, database_url=load(StoreSettings).database_url)) as engine:
        messages = (await engine.client.get(f"/v1/sessions/{session}/messages")).json()["messages"]
        assert [message["content"] for message in messages] == [f"What is {LETTER}?", f"It is {LETTER}."]
        assert (await engine.chat("And now?", sessionId=session))[-1].data["reason"] == "stop"


@promise("a SQLite file is moved into a PostgreSQL whole, also after a kill, and never are both in use")
async def test_a_move_that_is_killed_goes_on_where_it_was_and_meanwhile_no_engine_starts(
    tmp_path: Path, file: Store, moved: Store, empty_postgres: str, redis_url: str, model: Model,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("LOOP_PROBE")  # the loop of a command serves nobody
    await fill(file, turns=500)
    async with await psycopg.AsyncConnection.connect(empty_postgres, autocommit=True) as other:
        program = "from dialog_engine.main import main; main()"
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, "move")

        async def begun() -> bool:
            return moved.rows("SELECT to_regclass('meta') IS NOT NULL") == [(True,)] and moved.count("turns") > 0

        await wait_until(begun, 20, what="the first pages")
        async with other.transaction():
            # The move waits for this lock with a page in hand, or has passed it: killed either way.
            await other.execute("LOCK TABLE audit_seals IN ACCESS EXCLUSIVE MODE")
            process.kill()
            await process.wait()
    unfinished = settings(tmp_path, redis_url, model.url, database_url=empty_postgres)
    for half in (unfinished, in_store(unfinished, database_url=None)):
        with pytest.raises(ConfigurationError, match="run it again"):
            async with run_engine(half, asyncio.Event(), NoCredentials()):
                pass

    assert await move() == 0

    assert moved.count("messages") == file.count("messages")
    assert await move() == 1, "it has ended"
    async with running_engine(unfinished) as engine:
        assert (await engine.chat())[-1].data["reason"] == "stop"


@promise("a SQLite file is moved into a PostgreSQL whole, also after a kill, and never are both in use")
async def test_a_row_that_was_changed_meanwhile_is_found_and_the_move_does_not_end(
    file: Store, moved: Store, empty_postgres: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(file)
    with psycopg.connect(empty_postgres, autocommit=True) as other:

        def change(*_: object) -> list[str]:
            if moved.rows("SELECT to_regclass('meta') IS NOT NULL") == [(True,)]:
                other.execute("UPDATE messages SET content = 'forged' WHERE role = 'user'")
            return []

        monkeypatch.setattr("dialog_engine.operators.move._check_text", change)  # is called before each page
        assert await move() == 1

    assert "messages: the file has" in capsys.readouterr().out
    assert await move("--cancel") == 0
    assert file.count("meta WHERE key = 'move'") == 0


async def test_what_cannot_be_moved_is_named_and_marks_nothing(
    tmp_path: Path,
    file: Store,
    empty_postgres: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert await move() == 2
    assert "there is no file" in refused(capsys)
    await fill(file)
    with monkeypatch.context() as without:
        without.delenv("DATABASE_URL")
        assert await move() == 2
        assert "DATABASE_URL: is not set" in refused(capsys)
    with closing(sqlite3.connect(str(file.where))) as nul, nul:
        nul.execute("UPDATE messages SET content = 'a' || char(0) WHERE role = 'user'")
    assert await move() == 2
    assert "messages.content of the row" in refused(capsys)
    with psycopg.connect(empty_postgres, autocommit=True) as other:
        other.execute("DELETE FROM meta WHERE key = 'move'")
    assert await move() == 2
    assert "is not empty: it has " in refused(capsys)
