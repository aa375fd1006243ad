"""A database of an earlier release is taken over whole or not at all, and one of a later release is left alone."""

import asyncio
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psycopg
import pytest

from dialog_engine.errors import ConfigurationError, StorageUnavailableError
from dialog_engine.model import ApprovalStatus, AssistantMessage, ToolCall, Turn
from dialog_engine.storage import schemas
from dialog_engine.storage.postgres import open_postgres
from dialog_engine.storage.sqlite_file import open_sqlite
from dialog_engine.tool_calls.values import Decision
from plugins_contract.messages import EVENT_TYPE, encode_request
from plugins_contract.outcomes import ToolOutcome
from tests.marks import promise
from tests.support.beginnings import begin
from tests.support.engine_stores import OUTCOME, EngineStore, mailbox_of, question, requested
from tests.support.processes import ROOT

T = TypeVar("T")
OLD_ENGINE = "the-engine"
FIRST_SCHEMA = (
    "987949f6091a4904987d787d643a6e48f5a4541c:"
    "services/dialog-engine/src/dialog_engine/storage/schemas/sqlite/schema.sql"
)
WHOLE = b'{"for_model": "all of it"}'
PUBLISHED, WAITING, ASKED, ANSWERED = (
    ToolCall("call_1", f"{name}-00000000", "demo__add", "{}") for name in ("published", "waiting", "asked", "answered")
)
RUNNING = Turn("running", "mine", "ada")


def insert(file: sqlite3.Connection, table: str, **columns: object) -> None:
    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
    file.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(columns.values()))  # noqa: S608


def add_call(file: sqlite3.Connection, call: ToolCall, ordinal: int, outcome: ToolOutcome | None = None) -> None:
    insert(
        file, "tool_calls", correlation_id=call.correlation_id, message_id=90, turn_id="running", ordinal=ordinal,
        tool_call_id=call.tool_call_id, name=call.name, server="demo", arguments=call.arguments, created_at=1,
        outcome=msgspec.json.encode(outcome) if outcome else None,
    )  # fmt: skip


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    """A file as an engine of the first release left it when it was killed."""
    schema = subprocess.run(["git", "show", FIRST_SCHEMA], cwd=ROOT, capture_output=True, text=True, check=False)
    if schema.returncode:
        pytest.skip("the history of this clone does not have the first release")
    path = tmp_path / "engine.sqlite3"
    with closing(sqlite3.connect(path)) as file, file:
        file.executescript(schema.stdout)
        file.execute("PRAGMA user_version = 7")
        insert(file, "meta", key="engine_id", value=OLD_ENGINE)
        insert(file, "sessions", session_id="mine", subject="ada", title="Hi", created_at=1, updated_at=1)
        insert(
            file, "turns", turn_id="running", session_id="mine", status="running", owner=OLD_ENGINE, created_at=1,
            epoch=3,
        )  # fmt: skip
        insert(
            file, "messages", session_id="mine", turn_id="running", number=1, role="user", content="Hi", created_at=1
        )  # fmt: skip
        insert(
            file, "messages", message_id=90, session_id="mine", turn_id="running", number=2, role="assistant",
            content="Let me see", created_at=1,
        )  # fmt: skip
        for ordinal, call in enumerate((PUBLISHED, WAITING, ASKED, ANSWERED)):
            outcome = msgspec.structs.replace(OUTCOME, truncated=True) if call is ANSWERED else None
            add_call(file, call, ordinal, outcome)
        insert(file, "whole_results", correlation_id=ANSWERED.correlation_id, whole=WHOLE)
        insert(file, "approvals", correlation_id=ASKED.correlation_id, question=msgspec.json.encode(question()))
        for call, published_at in ((PUBLISHED, 5), (WAITING, None)):
            payload = encode_request(requested(RUNNING, call, mailbox_of(OLD_ENGINE)))
            insert(
                file, "outbox", owner=OLD_ENGINE, turn_id="running", event_type=EVENT_TYPE,
                event_id=call.correlation_id, payload=payload, created_at=1, published_at=published_at,
            )  # fmt: skip
    return path


def everything(path: Path) -> list[str]:
    """All that is in a file, as text."""
    with closing(sqlite3.connect(path)) as file:
        version = file.execute("PRAGMA user_version").fetchone()
        return [*map(str, version), *file.iterdump()]


Shape = dict[str, object]


def shape(path: Path) -> Shape:
    """The tables and indexes of a file, without the order of columns."""
    with closing(sqlite3.connect(path)) as file:

        def rows(query: str, *values: str) -> list[tuple[Any, ...]]:
            return file.execute(query, values).fetchall()

        found: Shape = {}
        for (table,) in rows("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"):
            found[table] = (
                sorted(
                    map(repr, rows('SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info(?)', table))
                ),
                sorted(map(repr, rows('SELECT "table", "from", on_delete FROM pragma_foreign_key_list(?)', table))),
                rows("SELECT strict FROM pragma_table_list WHERE name = ?", table),
                rows("SELECT sql LIKE '%AUTOINCREMENT%' FROM sqlite_master WHERE name = ?", table),
            )
            for name, *how in rows('SELECT name, "unique", partial, origin FROM pragma_index_list(?)', table):
                columns = rows("SELECT name FROM pragma_index_info(?)", str(name))
                where = str(rows("SELECT sql FROM sqlite_master WHERE name = ?", str(name))[0][0]).partition("WHERE")[2]
                found[f"index of {table}: {name}"] = (how, columns, where)
        return found


# --- SQLite ---


@promise("a file of the last release is taken over whole or not at all, and one of a later release is refused")
async def test_what_a_file_of_the_first_release_holds_is_there_and_its_turn_goes_on(old_file: Path) -> None:
    async with open_sqlite(old_file) as database:
        store = EngineStore(database, await database.engine_id())
        assert store.engine_id == OLD_ENGINE
        asked, *answered = (await store.messages("mine"))[1:]
        assert isinstance(asked, AssistantMessage)
        assert [each.correlation_id for each in asked.tool_calls] == [
            call.correlation_id for call in (PUBLISHED, WAITING, ASKED, ANSWERED)
        ]
        assert len(answered) == 1
        whole = await store.archive.whole("ada", "running", ANSWERED.correlation_id)
        assert whole is not None
        assert whole.for_model == "all of it"

        [adopted] = await store.engines.adopt_own(None)
        turn = adopted.turn
        assert (turn.turn_id, turn.subject, turn.epoch) == ("running", "ada", 4)
        assert {each.request.correlation_id for each in (await store.archive.open_calls(turn)).requested} == {
            PUBLISHED.correlation_id, WAITING.correlation_id,
        }  # fmt: skip
        assert [row.event_id for row in await store.outbox.waiting(9)] == [WAITING.correlation_id]
        assert [row.event_id for row in await store.outbox.unanswered()] == [PUBLISHED.correlation_id]
        assert await store.calls.add_result(turn, PUBLISHED, OUTCOME)
        [question] = (await store.archive.open_calls(turn)).asked
        decision = Decision(status=ApprovalStatus.REFUSED, at=1)
        assert await store.approvals.decide(turn.turn_id, question, decision, None, OUTCOME)
        assert await store.end(turn)
        assert await begin(store.turns, "ada", "mine", "And then?")


@promise("a file of the last release is taken over whole or not at all, and one of a later release is refused")
async def test_a_file_that_was_migrated_has_the_shape_of_a_new_one(old_file: Path, tmp_path: Path) -> None:
    new_file = tmp_path / "new.sqlite3"
    for path in (old_file, new_file):
        async with open_sqlite(path):
            pass

    assert shape(old_file) == shape(new_file)


def constant(value: T) -> Callable[[str], T]:
    return lambda _: value


def failing_at(script: str, position: int) -> str:
    statements = script.split(";\n")
    return ";\n".join([*statements[:position], "SELECT cut_off()", *statements[position:]])


@promise("a file of the last release is taken over whole or not at all, and one of a later release is refused")
@pytest.mark.parametrize("new", [False, True], ids=["an old file", "a new file"])
async def test_a_migration_that_is_cut_off_leaves_the_file_as_it_was_and_the_next_start_does_it(
    old_file: Path, monkeypatch: pytest.MonkeyPatch, new: bool
) -> None:
    path = old_file.with_name("new.sqlite3") if new else old_file
    before = everything(path)
    number, script = 0, schemas.schema("sqlite")
    if not new:
        number, script = next(iter(schemas.migrations("sqlite").items()))
    for position in range(script.count(";\n") + 1):
        with monkeypatch.context() as patched:
            broken = failing_at(script, position)
            name, value = ("schema", broken) if new else ("migrations", {number: broken})
            patched.setattr(schemas, name, constant(value))
            with pytest.raises(StorageUnavailableError, match="cut_off"):
                async with open_sqlite(path):
                    pass
        assert everything(path) == before

    async with open_sqlite(path) as database:
        assert len(await EngineStore(database, OLD_ENGINE).engines.adopt_own(None)) == (0 if new else 1)


@promise("a file of the last release is taken over whole or not at all, and one of a later release is refused")
async def test_a_file_of_a_later_release_is_refused_with_both_releases_and_left_as_it_is(old_file: Path) -> None:
    async with open_sqlite(old_file):
        pass
    newest = schemas.newest("sqlite")
    with closing(sqlite3.connect(old_file)) as file, file:
        file.execute(f"PRAGMA user_version = {newest + 1}")
        file.execute("UPDATE meta SET value = '9.8.7' WHERE key = 'release'")
    before = everything(old_file)

    refusal = rf"version {newest + 1}.* 9\.8\.7; .*dialog-engine {schemas.RELEASE}.* to {newest}"
    with pytest.raises(ConfigurationError, match=refusal):
        async with open_sqlite(old_file):
            pass
    assert everything(old_file) == before


@pytest.mark.parametrize("version", [0, 6])
async def test_a_file_that_is_too_old_is_refused_and_left_as_it_is(tmp_path: Path, version: int) -> None:
    path = tmp_path / "engine.sqlite3"
    with closing(sqlite3.connect(path)) as file, file:
        # The first release had no table `meta`.
        file.execute("CREATE TABLE messages (message_id INTEGER PRIMARY KEY AUTOINCREMENT, content TEXT)")
        file.execute(f"PRAGMA user_version = {version}")
    before = everything(path)

    with pytest.raises(ConfigurationError, match=rf"schema version {version}, .* migrates 7 and newer"):
        async with open_sqlite(path):
            pass
    assert everything(path) == before


# --- PostgreSQL ---


def tables(url: str) -> set[str]:
    with closing(psycopg.connect(url)) as connection:
        rows = connection.execute("SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace")
        functions = connection.execute("SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace")
        return {name for (name,) in [*rows, *functions]}


async def open_and_begin(url: str) -> Turn:
    async with open_postgres(url, 2) as database:
        return await begin(EngineStore(database, await database.engine_id()).turns, "ada", None, "Hi")


@promise("engines that open an empty database at the same time make its tables once")
async def test_engines_that_open_an_empty_database_at_the_same_time_make_its_tables_once(empty_postgres: str) -> None:
    turns = await asyncio.gather(*(open_and_begin(empty_postgres) for _ in range(6)))

    assert len({turn.turn_id for turn in turns}) == 6
    async with open_postgres(empty_postgres, 2) as database:
        assert await database.read("SELECT count(*) FROM turns") == [(6,)]
        found = dict(await database.read("SELECT key, value FROM meta"))
        now = schemas.newest("postgres")
        assert found == {
            "schema_version": str(schemas.needed("postgres", now)), "tables_version": str(now),
            "release": schemas.RELEASE,
        }  # fmt: skip


@promise("engines that open an empty database at the same time make its tables once")
async def test_a_cut_off_creation_of_the_tables_leaves_nothing_and_the_next_start_does_it(
    empty_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = schemas.schema("postgres")
    for position in range(0, script.count(";\n") + 1, 5):
        with monkeypatch.context() as patched:
            patched.setattr(schemas, "schema", constant(failing_at(script, position)))
            with pytest.raises(StorageUnavailableError, match="cut_off"):
                await open_and_begin(empty_postgres)
        assert tables(empty_postgres) == set()

    await open_and_begin(empty_postgres)


def change(url: str, *statements: str) -> None:
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@promise("a file of the last release is taken over whole or not at all, and one of a later release is refused")
async def test_a_database_of_a_later_or_too_old_a_release_is_refused(empty_postgres: str) -> None:
    await open_and_begin(empty_postgres)
    change(
        empty_postgres,
        "UPDATE meta SET value = '99' WHERE key = 'schema_version'",
        "UPDATE meta SET value = '9.8.7' WHERE key = 'release'",
    )
    with pytest.raises(ConfigurationError, match=rf"version 99.* 9\.8\.7; .*dialog-engine {schemas.RELEASE}"):
        await open_and_begin(empty_postgres)
    change(empty_postgres, "UPDATE meta SET value = '2' WHERE key = 'schema_version'")
    with pytest.raises(ConfigurationError, match=r"version 2, .* migrates 3 and newer"):
        await open_and_begin(empty_postgres)


async def test_a_migration_of_postgresql_is_done_once_whole_or_not_at_all(
    empty_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await open_and_begin(empty_postgres)
    before = tables(empty_postgres)
    now = schemas.newest("postgres")

    def migrating(*scripts: str) -> Callable[[str], dict[int, str]]:
        return constant(dict(enumerate(scripts, now + 1)))

    monkeypatch.setattr(schemas, "migrations", migrating("CREATE TABLE second (a text)", "SELECT cut_off()"))
    with pytest.raises(StorageUnavailableError, match="cut_off"):
        await open_and_begin(empty_postgres)
    assert tables(empty_postgres) == before

    monkeypatch.setattr(schemas, "migrations", migrating("CREATE TABLE second (a text)", "CREATE TABLE third ()"))
    await asyncio.gather(*(open_and_begin(empty_postgres) for _ in range(4)))
    assert tables(empty_postgres) == before | {"second", "third"}
    async with open_postgres(empty_postgres, 1) as database:
        assert await database.read("SELECT value FROM meta WHERE key = 'tables_version'") == [(str(now + 2),)]


async def test_the_previous_release_starts_on_tables_that_were_only_added_to_and_leaves_them_as_they_are(
    empty_postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for dialect, opened in (
        ("postgres", lambda: open_postgres(empty_postgres, 1)),
        ("sqlite", lambda: open_sqlite(tmp_path / "engine.sqlite3")),
    ):
        adding = schemas.migrations(dialect) | {99: "CREATE TABLE later (a text)"}
        for known in (adding, schemas.migrations(dialect), adding):
            with monkeypatch.context() as patched:
                patched.setattr(schemas, "migrations", constant(known))
                async with opened() as database:
                    made_by = dict(await database.read("SELECT key, value FROM meta"))
                    assert made_by["tables_version"] == "99"
