"""The store: durable, and honest when it cannot write. What holds for any database runs on both."""

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import psycopg
import pytest

from dialog_engine.errors import StorageUnavailableError, TurnRunningError
from dialog_engine.model import Turn
from dialog_engine.storage.database import Database, Transaction
from dialog_engine.storage.sqlite import CALLS_PER_MS, MAX_GROUP
from dialog_engine.storage.sqlite_file import open_sqlite
from dialog_engine.storage.turns import TITLE_LENGTH
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState
from tests.marks import promise
from tests.support.beginnings import begin
from tests.support.engine_stores import EngineStore, OpenDatabase, tool_call
from tests.support.waiting import wait_until

INTEGRITY_ERRORS = (sqlite3.IntegrityError, psycopg.IntegrityError)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "engine.sqlite3"


@pytest.fixture
async def storage(open_database: OpenDatabase) -> AsyncGenerator[EngineStore]:
    async with open_database() as database:
        yield EngineStore(database)


@pytest.fixture
async def sqlite(path: Path) -> AsyncGenerator[EngineStore]:
    async with open_sqlite(path) as database:
        yield EngineStore(database)


def insert(value: str) -> Callable[[Transaction], None]:
    def unit(tx: Transaction) -> None:
        tx.execute("INSERT INTO meta (key, value) VALUES ($1, 'of a test')", value)

    return unit


async def keys(database: Database) -> list[str]:
    return [row[0] for row in await database.read("SELECT key FROM meta WHERE value = 'of a test' ORDER BY key")]


@asynccontextmanager
async def locked(database: Database, path: Path) -> AsyncGenerator[None]:
    """Somebody else holds the file, and the engine does not wait for long."""

    def impatient(tx: Transaction) -> None:
        tx.execute("PRAGMA busy_timeout=200")

    await database.write(impatient)
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        yield
    finally:
        other.close()


# --- Commits ---


@promise("commits on SQLite are durable and grouped under load")
async def test_a_commit_that_was_answered_survives_a_power_cut_by_its_settings(sqlite: EngineStore) -> None:
    def settings(tx: Transaction) -> list[object]:
        names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        return [tx.execute(f"PRAGMA {name}")[0][0] for name in names]

    assert await sqlite.database.write(settings) == ["wal", 2, 1, 1000]


@promise("commits on SQLite are durable and grouped under load")
async def test_writers_that_come_together_share_commits_in_their_order(sqlite: EngineStore) -> None:
    before, names = sqlite.database.commits, [f"{n:03}" for n in range(1000)]
    await asyncio.gather(*(sqlite.database.write(insert(name)) for name in names))

    assert 1000 / MAX_GROUP <= sqlite.database.commits - before <= 1000 / MAX_GROUP + 2
    rows = await sqlite.database.read("SELECT key FROM meta WHERE value = 'of a test' ORDER BY rowid")
    assert [row[0] for row in rows] == names


@promise("commits on SQLite are durable and grouped under load")
async def test_with_many_calls_in_flight_a_commit_waits_for_the_units_that_come_soon(path: Path) -> None:
    in_flight = 500 * CALLS_PER_MS

    async with open_sqlite(path, lambda: in_flight, max_pause_ms=60_000) as database:
        await database.write(insert("first"))
        before, writes = database.commits, list[asyncio.Task[None]]()
        for n in range(10):
            writes.append(asyncio.create_task(database.write(insert(str(n)))))
            await database.read("SELECT 1")
        await asyncio.gather(*writes)
        assert database.commits - before == 1

        in_flight = CALLS_PER_MS - 1
        await database.write(insert("another"))
        async with asyncio.timeout(10):
            await database.write(insert("the next at once"))


async def test_what_a_unit_returns_cannot_use_its_transaction_any_more(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "engine.sqlite3") as database:
        kept = await database.write(lambda tx: tx)
        with pytest.raises(StorageUnavailableError, match="closed cursor"):
            await database.write(lambda _: kept.execute("SELECT 1"))


async def test_a_failed_unit_writes_nothing_and_affects_no_other(storage: EngineStore) -> None:
    def bug(tx: Transaction) -> None:
        insert("never")(tx)
        raise LookupError("a bug")

    def no_such_table(tx: Transaction) -> None:
        insert("never")(tx)
        tx.execute("INSERT INTO nowhere VALUES (1)")

    def twice(tx: Transaction) -> None:
        insert("never")(tx)
        insert("never")(tx)

    units = [*([bug, no_such_table, twice] * 20), *(insert(str(n)) for n in range(9))]
    answers = await asyncio.gather(*(storage.database.write(unit) for unit in units), return_exceptions=True)

    assert {type(answer) for answer in answers[:-9:3]} == {LookupError}
    assert {type(answer) for answer in answers[1:-9:3]} == {StorageUnavailableError}
    assert all(isinstance(answer, INTEGRITY_ERRORS) for answer in answers[2:-9:3])
    assert await keys(storage.database) == [str(n) for n in range(9)]


async def test_a_cancelled_caller_withdraws_its_unit_only(open_database: OpenDatabase) -> None:
    held = threading.Event()
    begun = threading.Event()

    def slow(tx: Transaction) -> None:
        begun.set()
        assert held.wait(10)
        insert("slow")(tx)

    async with open_database(pool_size=1) as database:
        writers = [asyncio.create_task(database.write(slow))]
        await wait_until(begun.is_set)
        writers += [asyncio.create_task(database.write(insert(name))) for name in ("one", "two", "three")]
        await asyncio.sleep(0)
        writers[0].cancel()
        writers[2].cancel()
        held.set()
        await asyncio.gather(*writers, return_exceptions=True)

        # What had begun is committed, what had not is not, and the database goes on.
        await database.write(insert("four"))
        assert await keys(database) == ["four", "one", "slow", "three"]


async def test_a_file_that_cannot_be_locked_fails_all_waiting_units_at_once_and_is_asked_again_before_it_counts_as_well(
    sqlite: EngineStore, path: Path
) -> None:
    database, before = sqlite.database, sqlite.database.commits
    for _ in range(2):
        await database.check()
    assert database.commits - before <= 1
    async with locked(database, path), asyncio.timeout(3):
        with pytest.raises(StorageUnavailableError, match="locked"):
            await asyncio.gather(*(database.write(insert(str(n))) for n in range(50)))
        with pytest.raises(StorageUnavailableError, match="cannot be written"):
            await database.check()
    await database.check()
    await database.write(insert("after"))
    assert await keys(database) == ["after"]


async def test_a_close_answers_accepted_units_and_accepts_no_more(open_database: OpenDatabase) -> None:
    async with open_database() as database:
        writes = [asyncio.create_task(database.write(insert(str(n)))) for n in range(600)]
        await asyncio.sleep(0)
    await asyncio.gather(*writes)
    with pytest.raises(StorageUnavailableError, match="shutting down"):
        await database.write(insert("late"))

    async with open_database() as database:
        assert len(await keys(database)) == 600


# --- A file that does not serve ---


@promise("a full disk under SQLite refuses before anything is accepted, and heals")
async def test_a_full_disk_refuses_and_heals(sqlite: EngineStore) -> None:
    turn = await begin(sqlite.turns, "ann", None, "Hi")
    await sqlite.end(turn)

    def limit(tx: Transaction) -> None:
        [(pages,)] = tx.execute("PRAGMA page_count")
        tx.execute(f"PRAGMA max_page_count={pages}")

    def unlimited(tx: Transaction) -> None:
        tx.execute("PRAGMA max_page_count=1000000")

    await sqlite.database.write(limit)
    with pytest.raises(StorageUnavailableError, match="full"):
        await begin(sqlite.turns, "ann", turn.session_id, "x" * 100_000)
    assert [message.content for message in await sqlite.messages(turn.session_id)] == ["Hi", "Bye"]
    assert (await sqlite.sessions.list("ann", limit=9, before=None))[0].running_turn_id is None

    await sqlite.database.write(unlimited)
    await begin(sqlite.turns, "ann", turn.session_id, "x" * 100_000)


@pytest.mark.parametrize("found_by", ["a read", "a write"])
async def test_a_damaged_page_makes_the_file_unready_although_others_can_be_used(
    sqlite: EngineStore, path: Path, found_by: str
) -> None:
    """Conversations were answered with 503, and readiness with 200: other pages could be read and written."""

    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE damaged AS SELECT hex(zeroblob(100000)) AS value")
        other.commit()
        [(page,)] = other.execute("SELECT rootpage FROM sqlite_master WHERE name = 'damaged'").fetchall()
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)
    statement, database = "SELECT sum(length(value)) FROM damaged", sqlite.database
    use = database.read(statement) if found_by == "a read" else database.write(lambda tx: tx.execute(statement))
    with pytest.raises(StorageUnavailableError, match="malformed"):
        await use
    await sqlite.database.write(lambda tx: tx.execute("INSERT INTO meta VALUES ('a', 'b')"))
    with pytest.raises(StorageUnavailableError, match="the database file is damaged, restore a backup"):
        await sqlite.database.check()


AS_ROOT = pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")


@pytest.mark.parametrize(
    "kind", ["garbage", "folder", "in a file", "nowhere", "foreign", pytest.param("read-only", marks=AS_ROOT)]
)
async def test_a_path_that_cannot_be_used_is_named_with_its_setting(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "engine.sqlite3"
    match kind:
        case "garbage":
            path.write_bytes(b"this is not a database" * 100)
        case "folder":
            path.mkdir()
        case "in a file":
            (tmp_path / "file").write_text("")
            path = tmp_path / "file" / "engine.sqlite3"
        case "nowhere":
            path = Path("/proc/engine.sqlite3")
        case "read-only":
            path.touch(mode=0o400)
        case _:
            with sqlite3.connect(path) as foreign:
                foreign.execute("CREATE TABLE sessions (name TEXT)")
            foreign.close()

    with pytest.raises(StorageUnavailableError, match="OUTBOX_PATH") as caught:
        async with open_sqlite(path):
            pass
    assert str(path) in str(caught.value)
    if kind == "folder":  # the one that SQLite itself cannot open
        assert not [thread for thread in threading.enumerate() if "connection_worker" in thread.name]


async def test_what_fails_while_the_file_is_open_is_not_blamed_on_the_file(path: Path) -> None:
    with pytest.raises(ConnectionResetError):
        async with open_sqlite(path):
            raise ConnectionResetError


@promise("a SQLite file is used by one engine at a time")
async def test_a_second_engine_does_not_get_the_file_of_the_first(path: Path) -> None:
    async with open_sqlite(path):
        with pytest.raises(StorageUnavailableError, match=r"OUTBOX_PATH .* another engine"):
            async with open_sqlite(path):
                pass
    async with open_sqlite(path):
        pass


# --- Sessions and turns ---


@promise("one turn at a time per session, at whichever engine it is asked for")
async def test_one_turn_runs_at_a_time_in_a_session_however_many_are_asked_for(storage: EngineStore) -> None:
    session = await storage.sessions.create("ann")
    begun = await asyncio.gather(
        *(begin(storage.turns, "ann", session, f"Hi {n}") for n in range(50)), return_exceptions=True
    )

    [turn] = [each for each in begun if isinstance(each, Turn)]
    refused = [each for each in begun if isinstance(each, TurnRunningError)]
    assert len(refused) == 49
    assert {error.turn_id for error in refused} == {turn.turn_id}
    [message] = await storage.messages(session)
    assert message.content.startswith("Hi")


async def test_a_session_is_titled_after_its_first_message(sqlite: EngineStore) -> None:
    for text, title in (
        ("  two \n words\t", "two words"),
        ("x" * TITLE_LENGTH, "x" * TITLE_LENGTH),
        ("x" * (TITLE_LENGTH + 1), "x" * (TITLE_LENGTH - 1) + "…"),
    ):
        made = await sqlite.sessions.create("ann")
        await sqlite.end(await begin(sqlite.turns, "ann", made, text))
        await begin(sqlite.turns, "ann", made, "Another")
        assert (await sqlite.sessions.list("ann", limit=1, before=None))[0].title == title


# --- Calls and the outbox ---


@promise("message, calls and outbox rows are committed in one transaction")
async def test_a_round_is_committed_with_its_outbox_rows_or_not_at_all(storage: EngineStore) -> None:
    turn = await begin(storage.turns, "ann", None, "Hi")
    call = tool_call()
    with pytest.raises(INTEGRITY_ERRORS):
        await storage.add_round(turn, call, call)
    assert await storage.outbox.waiting(9) == []
    assert storage.offered == []
    assert [message.content for message in await storage.messages(turn.session_id)] == ["Hi"]

    await storage.add_round(turn, call)
    assert [row.event_id for row in storage.offered] == [call.correlation_id]
    assert [row.event_id for row in await storage.outbox.waiting(9)] == [call.correlation_id]


@promise("a request that this release cannot read is answered so, and holds up no turn")
async def test_a_request_that_this_release_cannot_read_is_answered_so_and_holds_up_no_turn(
    storage: EngineStore,
) -> None:
    turn = await begin(storage.turns, "ann", None, "Hi")
    good, bad = tool_call(), tool_call()
    await storage.add_round(turn, good, bad)

    def spoil(tx: Transaction) -> None:
        tx.execute("UPDATE outbox SET payload = $1 WHERE event_id = $2", b"{}", bad.correlation_id)

    await storage.database.write(spoil)

    assert [each.call.correlation_id for each in (await storage.archive.open_calls(turn)).requested] == [
        good.correlation_id
    ]
    outcome = await storage.archive.outcome("ann", turn.turn_id, bad.correlation_id)
    assert outcome is not None
    assert outcome.error is not None
    assert (outcome.state, outcome.error.code) == (CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN)
