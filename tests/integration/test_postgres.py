"""PostgreSQL at its worst: what does not fit is named at the start, and no fault loses or repeats a commit."""

import asyncio
import tempfile
import threading
import time
import traceback
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager, asynccontextmanager, closing
from pathlib import Path

import psycopg
import pytest

from callstream_runtime.client_waits import ClientWait, client_wait
from deploy.local.ports import free_port
from dialog_engine.errors import ConfigurationError, EngineError, StorageUnavailableError
from dialog_engine.model import Turn
from dialog_engine.storage.database import Database, Transaction
from dialog_engine.storage.postgres import PostgresDatabase, open_postgres
from dialog_engine.storage.postgres_connection import PostgresTimes
from dialog_engine.storage.postgres_server import check_version
from tests.chaos.faults import BLACK_HOLE, Faults
from tests.chaos.proxy import Proxy
from tests.marks import exhaustive, promise
from tests.support.beginnings import begin
from tests.support.engine_stores import EngineStore, tool_call
from tests.support.postgres import PASSWORD, PostgresServer, database_of
from tests.support.postgres_databases import Databases
from tests.support.waiting import wait_until, wait_until_blocking

SECRET = "hunter2"
OTHER_FAULT = exhaustive("the same with another fault")


@pytest.fixture(scope="module")
def server() -> Generator[PostgresServer]:
    """The server of this file: each test leaves it running, with the settings that it had."""
    with tempfile.TemporaryDirectory(prefix="callstream-postgres-") as folder:
        server = PostgresServer(Path(folder))
        try:
            server.start()
            run(server.url, f"CREATE ROLE poor LOGIN PASSWORD '{PASSWORD}'")
            run(server.url, f"CREATE ROLE limited LOGIN PASSWORD '{PASSWORD}' CONNECTION LIMIT 1")
            run(server.url, "CREATE ROLE barred NOLOGIN")
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="module")
def databases(server: PostgresServer) -> Databases:
    return Databases(server)


@pytest.fixture
def url(databases: Databases) -> Generator[str]:
    with databases.without_tables() as url:
        yield url


@pytest.fixture
def proxy(server: PostgresServer) -> Generator[Proxy]:
    with Proxy(server.port, redis=False) as proxy:
        yield proxy


SOON = PostgresTimes(pool=0.5, answer=2.0, statement=1)
"""The driver gives up sooner than it does in production."""


@pytest.fixture
async def store(url: str) -> AsyncGenerator[EngineStore]:
    async with open_postgres(url, 4, times=SOON) as database:
        yield EngineStore(database)


def run(url: str, *statements: str) -> list[tuple[object, ...]]:
    """Run statements; the rows of the last one."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        cursor = [connection.execute(statement.encode()) for statement in statements][-1]
        return cursor.fetchall() if cursor.description else []


def as_role(url: str, role: str) -> str:
    return url.replace("callstream:", f"{role}:")


async def opened(url: str, times: PostgresTimes = PostgresTimes()) -> None:
    async with open_postgres(url, 2, times=times):
        pass


async def refused(url: str, error: type[EngineError], times: PostgresTimes = PostgresTimes()) -> str:
    """What the engine says of a database that it cannot use."""
    with pytest.raises(error, match=r"^DATABASE_URL: ") as caught:
        await opened(url, times)
    whole = "".join(traceback.format_exception(caught.value))
    assert not any(secret in whole for secret in (PASSWORD, SECRET, "hun", "ter2"))
    return str(caught.value)


# --- What is said at the start ---


@promise("a database that does not fit is refused at the start with the reason, and without the password")
@pytest.mark.parametrize(
    "url",
    [
        SECRET,
        f"postgres//user:{SECRET}@host/database",
        f"mysql://user:{SECRET}@host/database",
        f"postgresql://user:{SECRET}@[::1/database",
        f"postgresql://user@host:{SECRET}/database",
        "postgresql://user:hun%zzter2@host/database",
        "postgresql://user:hun@ter2@host/database",
        "postgresql://user:hun/ter2@host/database",
        "postgresql://user:12/ter2@host/database",
    ],
)
async def test_an_invalid_url_is_refused_without_its_password(url: str) -> None:
    assert "is not a URL such as postgresql://" in await refused(url, ConfigurationError)


async def test_a_server_that_is_not_there_is_named() -> None:
    port, times = free_port(), PostgresTimes(start_pauses=(0.1,))
    text = await refused(f"postgresql://callstream:{SECRET}@127.0.0.1:{port}/chat", StorageUnavailableError, times)
    assert f"127.0.0.1:{port}/chat cannot be used" in text


@pytest.mark.parametrize("silent", [False, pytest.param(True, marks=OTHER_FAULT)])
async def test_a_start_waits_for_a_server_that_cannot_be_used_yet(
    server: PostgresServer, url: str, proxy: Proxy, caplog: pytest.LogCaptureFixture, silent: bool
) -> None:
    proxy.set(BLACK_HOLE if silent else Faults(refuse=True))
    times = PostgresTimes(connect=2)  # the shortest that libpq knows
    starting = asyncio.create_task(opened(server.url_of(database_of(url), port=proxy.port), times))
    await wait_until(lambda: "the database is unavailable" in caplog.text or starting.done())
    proxy.clear()
    async with bounded(5):
        await starting
    assert caplog.text.count("cannot be used") == 1
    assert PASSWORD not in caplog.text


@promise("a database that does not fit is refused at the start with the reason, and without the password")
@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (PASSWORD, SECRET, 'password authentication failed for user "callstream"'),
        ("callstream:", "nobody:", 'password authentication failed for user "nobody"'),
        ("/test_", "/no_", 'database "no_'),
        ("callstream:", "barred:", "barred"),
    ],
)
async def test_a_refused_login_says_what_was_refused(url: str, old: str, new: str, says: str) -> None:
    text = await refused(url.replace(old, new), ConfigurationError)
    assert "refuses the login" in text
    assert says in text


@promise("a database that does not fit is refused at the start with the reason, and without the password")
@pytest.mark.parametrize("right", ["CREATE", "USAGE", "CONNECT"])
async def test_the_error_of_a_user_without_rights_names_the_grants(url: str, right: str) -> None:
    if right == "USAGE":
        run(url, "REVOKE USAGE ON SCHEMA public FROM PUBLIC")
    if right == "CONNECT":
        run(url, f"REVOKE CONNECT ON DATABASE {database_of(url)} FROM PUBLIC")

    text = await refused(as_role(url, "poor"), ConfigurationError)

    assert ("CONNECT" if right == "CONNECT" else "GRANT CREATE, USAGE ON SCHEMA public TO poor") in text or (
        "permission denied for database" in text
    )


@promise("a database that does not fit is refused at the start with the reason, and without the password")
@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("synchronous_commit", "off", "synchronous_commit is off"),
        ("default_transaction_read_only", "on", "target_session_attrs=read-write"),
        ("fsync", "off", "fsync is off"),
    ],
    ids=["may lose acknowledged commits", "a read-only standby", "does not sync"],
)
async def test_a_server_that_does_not_fit_is_refused(
    server: PostgresServer, url: str, setting: str, value: str, says: str
) -> None:
    if setting == "fsync":  # of the whole server
        server.set(setting, value)
    else:
        run(url, f"ALTER DATABASE {database_of(url)} SET {setting} = {value}")
    try:
        assert says in await refused(url, ConfigurationError)
    finally:
        server.set("fsync", "on")


@promise("a database that does not fit is refused at the start with the reason, and without the password")
def test_a_server_that_is_too_old_is_refused() -> None:
    check_version(150_000)
    with pytest.raises(ConfigurationError, match="the server is PostgreSQL 14: 15 or newer is needed"):
        check_version(140_019)


# --- Outages while it is open ---


@asynccontextmanager
async def bounded(seconds: float) -> AsyncGenerator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


async def heals(database: Database) -> None:
    async def writable() -> bool:
        try:
            await database.check()
            await database.write(lambda tx: tx.execute("SELECT 1"))
        except StorageUnavailableError:
            return False
        return True

    await wait_until(writable, what="a database that can be written")


async def said(store: EngineStore, turn: Turn) -> list[str]:
    return [message.content for message in await store.messages(turn.session_id)]


@promise("U+0000 is refused in requests, replaced in what models and tools write, and never an outage of the database")
async def test_a_text_that_it_cannot_store_is_a_defect_of_the_engine_and_no_outage(store: EngineStore) -> None:
    for attempt in (store.sessions.create("a\0b"), store.sessions.list("a\0b", limit=9, before=None)):
        with pytest.raises(psycopg.DataError):
            await attempt
    await store.database.check()


@promise("PostgreSQL away, silent, locked or full is an error in bounded time, and heals without a restart")
async def test_a_server_that_was_restarted_while_nothing_happened_costs_no_error(
    server: PostgresServer, store: EngineStore
) -> None:
    held = threading.Barrier(4)

    def together(tx: Transaction) -> None:
        held.wait(10)
        tx.execute("SELECT 1")

    await asyncio.gather(*(store.database.write(together) for _ in range(4)))  # four connections are open now
    server.restart()

    turns = await asyncio.gather(*(begin(store.turns, "ann", None, "Hi") for _ in range(20)))
    assert len({turn.turn_id for turn in turns}) == 20


class Held:
    """A unit of work that writes the keys a and b, and waits between them."""

    def __init__(self) -> None:
        self.halfway, self.go_on = threading.Event(), threading.Event()

    def __call__(self, tx: Transaction) -> None:
        tx.execute("INSERT INTO meta (key, value) VALUES ('a', '')")
        self.halfway.set()
        assert self.go_on.wait(20)
        tx.execute("INSERT INTO meta (key, value) VALUES ('b', '')")


@promise("PostgreSQL away, silent, locked or full is an error in bounded time, and heals without a restart")
@pytest.mark.parametrize("healed", [pytest.param(False, marks=OTHER_FAULT), True])
async def test_a_server_that_is_killed_in_the_middle_of_a_unit_leaves_nothing_of_it(
    server: PostgresServer, store: EngineStore, healed: bool
) -> None:
    unit = Held()

    writing = asyncio.create_task(store.database.write(unit))
    await wait_until(unit.halfway.is_set)
    server.kill()
    if healed:
        server.start()
    unit.go_on.set()
    if healed:
        await writing  # it was run again, as a whole
    else:
        async with bounded(8):
            with pytest.raises(StorageUnavailableError):
                await writing
        server.start()

    await heals(store.database)
    assert await store.database.read("SELECT key FROM meta WHERE key IN ('a', 'b') ORDER BY key") == (
        [("a",), ("b",)] if healed else []
    )


@promise("PostgreSQL away, silent, locked or full is an error in bounded time, and heals without a restart")
@pytest.mark.parametrize("silent", [pytest.param(False, marks=OTHER_FAULT), True])
async def test_all_callers_during_an_outage_fail_in_time_together(
    server: PostgresServer, url: str, proxy: Proxy, silent: bool
) -> None:
    async with open_postgres(server.url_of(database_of(url), port=proxy.port), 4, times=SOON) as database:
        store = EngineStore(database)
        turn = await begin(store.turns, "ann", None, "Hi")
        proxy.set(BLACK_HOLE if silent else Faults(refuse=True))
        if not silent:
            proxy.cut()
        async with bounded(8):  # one after the other on four connections: 200 / 4 * 0.5 s = 25 s
            answers = await asyncio.gather(
                *(begin(store.turns, "ann", None, "Hi") for _ in range(200)), return_exceptions=True
            )
        assert {type(answer) for answer in answers} == {StorageUnavailableError}

        proxy.clear()
        await heals(database)
        assert await said(store, turn) == ["Hi"]


@promise("while PostgreSQL is away every request has its 503 within a second, and what it refused is not written")
async def test_a_unit_that_its_client_gave_up_before_the_commit_is_never_committed(
    server: PostgresServer, url: str, proxy: Proxy
) -> None:
    unit = Held()

    async with open_postgres(server.url_of(database_of(url), port=proxy.port), 4) as database:
        client_wait.set(wait := ClientWait())
        writing = asyncio.create_task(database.write(unit))
        await wait_until(unit.halfway.is_set)
        proxy.set(BLACK_HOLE)
        async with bounded(1):
            with pytest.raises(StorageUnavailableError, match=r"for 0\.7 seconds: nothing was written"):
                await writing
        with pytest.raises(StorageUnavailableError, match="cannot be reached now"):
            await database.check()
        wait.over = True

        proxy.clear()
        unit.go_on.set()
        await heals(database)
    assert run(url, "SELECT key FROM meta WHERE key = 'a'") == []


@promise("while PostgreSQL is away every request has its 503 within a second, and what it refused is not written")
async def test_a_slow_statement_of_a_server_that_answers_others_is_not_given_up(store: EngineStore) -> None:
    client_wait.set(ClientWait())
    assert await store.database.read("SELECT 1 FROM pg_sleep(0.9)") == [(1,)]


async def test_many_large_rows_may_take_longer_than_a_server_may_be_silent(
    server: PostgresServer, url: str, proxy: Proxy
) -> None:
    rows = [(f"key {number}", "x" * 1_000_000) for number in range(40)]
    async with open_postgres(server.url_of(database_of(url), port=proxy.port), 1, times=SOON) as database:
        proxy.set(Faults(bytes_per_second=10_000_000))
        began = time.monotonic()
        await database.write(lambda tx: tx.execute_many("INSERT INTO meta (key, value) VALUES ($1, $2)", rows))
    assert time.monotonic() - began > SOON.answer


@promise("many rows are written in one round trip while the row of their turn is locked")
async def test_many_rows_of_one_statement_cost_one_round_trip(server: PostgresServer, url: str, proxy: Proxy) -> None:
    rows = [(f"row {n}", "") for n in range(50)]
    add = "INSERT INTO meta (key, value) VALUES ($1, $2)"
    async with open_postgres(server.url_of(database_of(url), port=proxy.port), 1, times=SOON) as database:
        await database.check()
        with proxy.broken(Faults(delay_replies=0.05)):
            async with bounded(25 * 0.05):  # BEGIN, the rows and COMMIT, and time to spare
                await database.write(lambda tx: tx.execute_many(add, rows))
        with pytest.raises(psycopg.IntegrityError):
            await database.write(lambda tx: tx.execute_many(add, [("another", ""), *rows]))
        assert await database.read("SELECT count(*) FROM meta WHERE value = ''") == [(50,)]


# --- A connection that is lost during COMMIT ---


class Cut:
    """A unit behind a proxy: its last act is to hold what passes from then on, so that its COMMIT is what is held."""

    def __init__(self, proxy: Proxy, faults: Faults) -> None:
        self._proxy = proxy
        self._faults = faults
        self.runs = 0
        self.over = threading.Event()

    def __call__(self, tx: Transaction) -> str:
        self.runs += 1
        tx.execute("INSERT INTO meta (key, value) VALUES ('cut', '')")
        if self.runs == 1:
            self._proxy.set(self._faults)
            self.over.set()
        return "the result"


@pytest.fixture(params=[1.5])
async def behind(
    server: PostgresServer, url: str, proxy: Proxy, request: pytest.FixtureRequest
) -> AsyncGenerator[PostgresDatabase]:
    """A database behind the proxy. The parameter is how long it is asked about a lost COMMIT."""
    times = PostgresTimes(pool=0.5, resolve=request.param)
    async with open_postgres(server.url_of(database_of(url), port=proxy.port), 2, times=times) as database:
        yield database


WITH_TIME = pytest.mark.parametrize("behind", [15.0], indirect=True)


def is_there(url: str) -> bool:
    return bool(run(url, "SELECT 1 FROM meta WHERE key = 'cut'"))


@promise("a COMMIT whose connection is lost is neither reported wrongly nor run twice")
@WITH_TIME
@pytest.mark.parametrize(
    "killed", [False, pytest.param(True, marks=OTHER_FAULT)], ids=["the server goes on", "the server is killed"]
)
async def test_a_commit_whose_answer_is_lost_is_found_to_be_committed(
    server: PostgresServer, behind: PostgresDatabase, proxy: Proxy, url: str, killed: bool
) -> None:
    unit = Cut(proxy, Faults(hold_replies=True))
    writing = asyncio.create_task(behind.write(unit))
    await wait_until(lambda: unit.over.is_set() and is_there(url), what="the commit in the server")
    if killed:
        server.kill()
    proxy.cut()
    proxy.clear()
    if killed:
        server.start()

    async with bounded(10):
        assert await writing == "the result"
    assert unit.runs == 1


@promise("a COMMIT whose connection is lost is neither reported wrongly nor run twice")
@promise("a commit that a killed PostgreSQL lost is not taken for one that it has")
@WITH_TIME
@pytest.mark.parametrize(
    "killed", [pytest.param(False, marks=OTHER_FAULT), True], ids=["the server goes on", "the server is killed"]
)
async def test_a_commit_that_never_arrived_is_found_not_to_be_committed(
    server: PostgresServer, behind: PostgresDatabase, proxy: Proxy, url: str, killed: bool
) -> None:
    unit = Cut(proxy, Faults(hold_requests=True, refuse=killed))
    writing = asyncio.create_task(behind.write(unit))
    await wait_until(unit.over.is_set)
    if killed:
        server.kill()
    proxy.cut()
    if killed:
        server.start()
        # A server that lost a transaction gives its id to another one.
        run(url, *["UPDATE meta SET value = value WHERE key = 'release'"] * 20)
    proxy.clear()

    async with bounded(10):
        with pytest.raises(StorageUnavailableError, match="lost: nothing was written"):
            await writing
    assert unit.runs == 1
    assert not is_there(url)
    await heals(behind)


@promise("a COMMIT whose connection is lost is neither reported wrongly nor run twice")
async def test_a_commit_that_cannot_be_resolved_is_reported_as_unknown(
    behind: PostgresDatabase, proxy: Proxy, url: str
) -> None:
    unit = Cut(proxy, Faults(hold_replies=True))
    writing = asyncio.create_task(behind.write(unit))
    await wait_until(lambda: unit.over.is_set() and is_there(url), what="the commit in the server")
    proxy.set(Faults(refuse=True, hold_replies=True))
    proxy.cut()

    async with bounded(8):
        with pytest.raises(StorageUnavailableError, match="whether it was written is not known"):
            await writing
    assert unit.runs == 1
    proxy.clear()
    await heals(behind)


# --- Limits, locks and roles ---


def locking(url: str, statement: str) -> AbstractContextManager[psycopg.Connection[tuple[object, ...]]]:
    """Another client, in a transaction that has run `statement` and is not ended."""
    connection = psycopg.connect(url)
    connection.execute(statement.encode())
    return closing(connection)


@promise("PostgreSQL away, silent, locked or full is an error in bounded time, and heals without a restart")
async def test_a_held_lock_is_an_error_in_time(store: EngineStore, url: str) -> None:
    session = await store.sessions.create("ann")
    with locking(url, "UPDATE sessions SET title = 'held'"):
        async with bounded(5):
            with pytest.raises(StorageUnavailableError, match="statement timeout"):
                await begin(store.turns, "ann", session, "Hi")

    turn = await begin(store.turns, "ann", session, "Hi")
    assert await said(store, turn) == ["Hi"]


@promise("PostgreSQL away, silent, locked or full is an error in bounded time, and heals without a restart")
async def test_a_server_without_a_free_connection_is_an_error_in_time_and_heals(
    server: PostgresServer, url: str
) -> None:
    run(server.url, f"ALTER DATABASE {database_of(url)} OWNER TO limited")
    limited = as_role(url, "limited")
    async with open_postgres(limited, 4, times=SOON) as database:
        await heals(database)
        with closing(await asyncio.to_thread(take_the_only_connection, url, limited)):
            async with bounded(5):
                with pytest.raises(StorageUnavailableError, match="cannot be used now"):
                    await database.write(lambda tx: tx.execute("SELECT 1"))
        await heals(database)


def take_the_only_connection(url: str, limited: str) -> psycopg.Connection[tuple[object, ...]]:
    """Be quicker than the engine, whose connection is ended."""

    def taken() -> psycopg.Connection[tuple[object, ...]] | None:
        run(url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'limited'")
        try:
            return psycopg.connect(limited)
        except psycopg.OperationalError:
            return None

    connection = wait_until_blocking(taken, what="a free connection")
    assert connection is not None
    return connection


@promise("units of one turn that come together are in an order, and one that meets a deadlock is run again")
@promise("PostgreSQL away, silent, locked or full is an error in bounded time, and heals without a restart")
async def test_a_deadlock_is_resolved_by_running_the_unit_again(url: str) -> None:
    run(url, f"ALTER DATABASE {database_of(url)} SET deadlock_timeout = '50ms'")
    met = threading.Barrier(2)
    runs: list[str] = []

    def both(first: str, second: str) -> Callable[[Transaction], None]:
        def unit(tx: Transaction) -> None:
            runs.append(first)
            for key in (first, second):
                tx.execute("UPDATE meta SET value = value || 'x' WHERE key = $1", key)
                if runs.count(first) == 1 and key == first:
                    met.wait(10)

        return unit

    async with open_postgres(url, 2) as database:
        await database.write(lambda tx: tx.execute("INSERT INTO meta (key, value) VALUES ('a', ''), ('b', '')"))
        await asyncio.gather(database.write(both("a", "b")), database.write(both("b", "a")))
        assert await database.read("SELECT value FROM meta WHERE key IN ('a', 'b')") == [("xx",), ("xx",)]
    assert len(runs) > 2  # a deadlock may occur more than once


@promise("PostgreSQL away, silent, locked or full is an error in bounded time, and heals without a restart")
async def test_a_connection_to_a_server_that_became_a_standby_is_given_up(url: str) -> None:
    async with open_postgres(url, 1) as database:
        await database.read("SELECT set_config('default_transaction_read_only', 'on', false)")
        with pytest.raises(StorageUnavailableError, match="read-only"):
            await database.check()
        with pytest.raises(StorageUnavailableError, match="read-only"):
            await database.write(lambda tx: tx.execute("INSERT INTO meta (key, value) VALUES ('a', '')"))

        await heals(database)
        await database.write(lambda tx: tx.execute("INSERT INTO meta (key, value) VALUES ('a', '')"))


@promise("units of one turn that come together are in an order, and one that meets a deadlock is run again")
async def test_units_of_one_turn_that_come_together_are_in_an_order_and_none_is_lost(store: EngineStore) -> None:
    turn = await begin(store.turns, "ann", None, "Hi")
    numbers = await asyncio.gather(*(store.add_round(turn, tool_call()) for _ in range(50)))

    assert sorted(numbers) == [*range(2, 52)]
    assert len((await store.archive.open_calls(turn)).requested) == 50
    assert len({row.seq for row in store.offered}) == 50


@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO outbox (owner, event_type, event_id, payload, created_at) VALUES ('', '', '', '', 0)",
        "UPDATE meta SET value = '0'",
        "ALTER TABLE sessions ADD COLUMN more text",
        "ALTER TABLE audit DISABLE TRIGGER ALL",
        "ALTER DATABASE {database} SET work_mem = '99MB'",
    ],
)
def test_what_a_test_changes_in_its_database_is_not_there_in_the_next_one(databases: Databases, change: str) -> None:
    seen: list[object] = []
    for statement in (change, "SELECT"):
        with databases.without_rows() as url:
            columns = run(url, "SELECT count(*) FROM information_schema.columns WHERE table_name = 'sessions'")
            triggers = run(url, "SELECT DISTINCT tgenabled FROM pg_trigger WHERE tgrelid = 'audit'::regclass")
            rows = [run(url, f"TABLE {table}") for table in ("meta", "outbox", "outbox_seq_seq")]
            seen.append((url, columns, triggers, rows, run(url, "SHOW work_mem")))
            run(url, statement.format(database=database_of(url)))
    assert seen[0] == seen[1]
