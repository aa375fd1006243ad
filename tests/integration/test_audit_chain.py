"""The hash chain of the audit: what was sealed cannot be changed unnoticed, and only what is complete is sealed."""

import asyncio
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, closing
from pathlib import Path

import psycopg
import pytest

from callstream_runtime.encryption_keys import cipher_of
from dialog_engine.chat.audit import AuditAction, AuditEvent
from dialog_engine.config import load
from dialog_engine.config.store import StoreSettings
from dialog_engine.errors import ConfigurationError
from dialog_engine.operators import audit, audit_chain, commands
from dialog_engine.storage.audit import COLUMNS, read_digest_key
from dialog_engine.storage.audit_chain import AuditChain
from dialog_engine.storage.database import Database, Transaction
from plugins_contract.encryption import CLEAR, Cipher, DecryptionError
from tests.integration.engines import Model, running_engine, settings
from tests.integration.test_audit import INTEGRITY_ERRORS
from tests.marks import promise
from tests.support.beginnings import begin
from tests.support.engine_stores import DIALECTS, EngineStore, OpenDatabase, opener, store_of
from tests.support.waiting import wait_until

DAY_MS = 86_400_000
UNGUARDED = {
    "sqlite": [
        f"DROP TRIGGER {name}"
        for name in ("audit_is_never_changed", "audit_is_kept", "audit_seals_are_never_changed", "audit_seals_are_kept")
    ],
    "postgres": ["ALTER TABLE audit DISABLE TRIGGER ALL", "ALTER TABLE audit_seals DISABLE TRIGGER ALL"],
}
"""What the owner of a database can do first."""


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The database of the test, which the commands for operators use too."""
    monkeypatch.setenv("OUTBOX_PATH", str(tmp_path / "engine.sqlite3"))
    if request.param == "postgres":
        monkeypatch.setenv("DATABASE_URL", request.getfixturevalue("postgres_url"))
    return request.param


@pytest.fixture
def open_database(dialect: str, tmp_path: Path, request: pytest.FixtureRequest) -> OpenDatabase:
    return opener(dialect, tmp_path / "engine.sqlite3", request)


async def chain_of(database: Database, **at_once: int) -> AuditChain:
    """The chain as an engine has it."""
    return AuditChain(database, await read_digest_key(database, CLEAR), **at_once)


async def record(database: Database, *subjects: str) -> None:
    store = store_of(database)
    for subject in subjects:
        await store.record(AuditEvent(AuditAction.SIGNED_IN, subject))


async def seal(chain: AuditChain) -> str:
    """Seal what there is. Returns the head."""
    await chain.seal()
    return audit_chain.named(await chain.seal())


def verified(expected: str = "", cipher: Cipher = CLEAR) -> audit_chain.Verified:
    with audit.opened(load(StoreSettings)) as query:
        return audit_chain.verify(query, cipher, expected)


def run_all(*statements: str) -> Callable[[Transaction], None]:
    def unit(tx: Transaction) -> None:
        for statement in statements:
            tx.execute(statement)

    return unit


@pytest.fixture
async def chain(database: Database) -> AuditChain:
    """A chain of three seals with an event each."""
    chain = await chain_of(database)
    for subject in ("ada", "bob", "eve"):
        await record(database, subject)
        await seal(chain)
    return chain


@promise("a hash chain shows what was changed in the audit, and no commit waits for it")
async def test_a_chain_holds_and_says_what_is_not_sealed_yet(
    database: Database, chain: AuditChain, capsys: pytest.CaptureFixture[str]
) -> None:
    await chain.seal()
    await record(database, "late", "later")

    assert commands.run(["audit", "head"]) == 0
    head = capsys.readouterr().out.strip()
    assert commands.run(["audit", "verify", "--head", head]) == 0
    holds, named, waiting = capsys.readouterr().out.splitlines()
    assert (holds, named) == ("3 seals hold, over the events up to 3.", f"The head is {head}.")
    assert waiting.startswith("Not sealed yet: 2 events, from 4 to 5, since ")
    assert 0 < await chain.unsealed_ms() < 60_000

    await chain.seal()
    assert audit_chain.named(await chain.seal()) != head
    assert await chain.unsealed_ms() == 0
    assert next(verified(head).lines()) == "4 seals hold, over the events up to 5."


TAMPERED = {
    "an event is changed": (["UPDATE audit SET subject = 'eva' WHERE seq = 2"], "seal 2, events 2 to 2"),
    "an event is deleted": (["DELETE FROM audit WHERE seq = 2"], "seal 2, events 2 to 2"),
    "a time is changed": (["UPDATE audit_seals SET at = at + 1 WHERE number = 2"], "seal 2, events 2 to 2"),
    "two events change places": (
        ["UPDATE audit SET subject = 'eve' WHERE seq = 2", "UPDATE audit SET subject = 'bob' WHERE seq = 3"],
        "seal 2, events 2 to 2",
    ),
    "a seal covers more": (["UPDATE audit_seals SET last_seq = 2 WHERE number = 1"], "seal 1, events 1 to 2"),
    "a seal is deleted": (["DELETE FROM audit_seals WHERE number = 2"], "seal 3, events 2 to 3"),
    "the beginning is deleted": (
        ["DELETE FROM audit_seals WHERE number = 1", "DELETE FROM audit WHERE seq = 1"],
        "seal 2, events 1 to 2",
    ),
    "the mark of the retention hides an event": (
        ["INSERT INTO meta VALUES ('audit_pruned_to', '9')", "DELETE FROM audit WHERE seq = 2"],
        "events up to 1 are there",
    ),
    "a time is beyond the calendar": (
        ["UPDATE audit_seals SET at = 9223372036854775807 WHERE number = 2"],
        "seal 2, events 2 to 2, of 9223372036854775807 ms",
    ),
    "the mark of the retention is no number": (
        [
            "INSERT INTO meta VALUES ('audit_pruned_to', 'x')",
            "DELETE FROM audit_seals WHERE number = 1",
            "DELETE FROM audit WHERE seq = 1",
        ],
        "seal 2, events 1 to 2",
    ),
}


@promise("a hash chain shows what was changed in the audit, and no commit waits for it")
@pytest.mark.usefixtures("chain")
@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
@pytest.mark.parametrize("how", TAMPERED)
async def test_what_the_owner_of_the_database_changes_is_found(
    database: Database, dialect: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    statements, where = TAMPERED[how]
    await database.write(run_all(*UNGUARDED[dialect], *statements))

    assert commands.run(["audit", "verify"]) == commands.NOT_DONE
    assert capsys.readouterr().out.startswith(where)


@promise("a hash chain shows what was changed in the audit, and no commit waits for it")
async def test_a_chain_that_was_written_anew_does_not_have_the_head_that_was_exported(
    database: Database, dialect: str, chain: AuditChain
) -> None:
    head = await seal(chain)
    await database.write(
        run_all(*UNGUARDED[dialect], "DELETE FROM audit_seals", "UPDATE audit SET subject = 'ann' WHERE seq = 1")
    )
    await seal(chain)

    assert verified().problems == []
    [problem] = verified(head).problems
    assert problem.startswith(f"no seal is {head}")


@pytest.mark.usefixtures("chain")
async def test_a_forged_seal_over_all_events_is_found_in_bounded_memory(database: Database, dialect: str) -> None:
    """One over a million events took 1.2 GB, and one over five events of 50 MB took 1 GB."""
    events = [AuditEvent(AuditAction.SIGNED_IN, "s" * 200)] * 20_000
    await store_of(database).write(lambda tx: tx.audit(*events))
    long = "UPDATE audit SET outcome = $1 WHERE seq BETWEEN 10 AND 20"
    await database.write(run_all(*UNGUARDED[dialect], "UPDATE audit_seals SET last_seq = 30000 WHERE number = 3"))
    await database.write(lambda tx: tx.execute(long, "o" * 1_000_000))
    tracemalloc.start()
    try:
        assert len(verified().problems) == 1
        assert tracemalloc.get_traced_memory()[1] < 6_000_000
    finally:
        tracemalloc.stop()


async def test_a_key_that_is_none_is_named(database: Database, chain: AuditChain) -> None:
    await seal(chain)
    await database.write(run_all("UPDATE meta SET value = 'zz' WHERE key = 'audit_digest_key'"))
    with pytest.raises(ConfigurationError, match="the key of the audit was changed"):
        verified()


async def test_a_seal_cannot_be_made_or_verified_without_the_key_where_that_is_encrypted(database: Database) -> None:
    cipher = cipher_of(["00" * 32])
    await record(database, "ada")
    await seal(AuditChain(database, await read_digest_key(database, cipher)))

    assert verified(cipher=cipher).problems == []
    with pytest.raises(DecryptionError):
        verified()


@promise("a hash chain shows what was changed in the audit, and no commit waits for it")
async def test_engines_seal_what_all_of_them_write_in_one_chain(open_database: OpenDatabase, dialect: str) -> None:
    async def write(database: Database) -> None:
        for number in range(40):
            await record(database, str(number))

    async def seal_all(chain: AuditChain, until: Sequence[asyncio.Task[None]]) -> None:
        while not all(task.done() for task in until):
            await chain.seal()
        await seal(chain)
        await seal(chain)

    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        count = 2 if dialect == "postgres" else 1
        engines = [await stack.enter_async_context(open_database()) for _ in range(count)]
        chains = [await chain_of(database) for database in engines]
        writers = [tasks.create_task(write(database)) for database in engines for _ in range(2)]
        for chain in chains:
            tasks.create_task(seal_all(chain, writers))

    found = verified()
    assert (found.problems, found.unsealed, found.head.last_seq) == ([], 0, 80 * count)


@promise("a hash chain shows what was changed in the audit, and no commit waits for it")
@pytest.mark.parametrize("dialect", ["postgres"], indirect=True)  # with SQLite there is one writer
async def test_an_event_that_is_committed_after_one_with_a_higher_number_is_sealed_in_its_place(
    postgres_url: str, open_database: OpenDatabase
) -> None:
    async with open_database() as database:
        chain = await chain_of(database)
        add = f"INSERT INTO audit (at, {', '.join(COLUMNS)}) VALUES (1, 'sign_in'{', %s' * (len(COLUMNS) - 1)})"  # noqa: S608
        with closing(psycopg.connect(postgres_url)) as first, closing(psycopg.connect(postgres_url)) as second:
            # The transaction with the higher event is the older one: it had its number before the other began.
            second.execute("SELECT pg_current_xact_id()")
            first.execute("SELECT pg_current_xact_id()")
            first.execute(add.encode(), ["lower"] * (len(COLUMNS) - 1))
            second.execute(add.encode(), ["higher"] * (len(COLUMNS) - 1))
            second.commit()
            await seal(chain)
            await chain.seal()
            assert verified().unsealed == 1
            first.commit()
        await record(database, "later")
        await seal(chain)
        await chain.seal()

        found = verified()
        assert (found.problems, found.unsealed, found.head.last_seq) == ([], 0, 3)


async def test_a_running_engine_seals_what_it_records_and_measures_what_waits(
    tmp_path: Path, redis_url: str, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(tmp_path, redis_url, model.url)
    monkeypatch.setenv("OUTBOX_PATH", str(chosen.store.outbox_path))
    async with running_engine(chosen) as engine:
        await engine.chat()

        async def is_sealed() -> bool:
            return verified().head.last_seq > 0 and verified().unsealed == 0

        await wait_until(is_sealed, what="a seal")
        assert "dialog_audit_unsealed_seconds 0.0" in (await engine.client.get("/metrics")).text
    assert verified().problems == []


# --- Deletion ---


async def add_old(database: Database, *days: int) -> None:
    """Add events that are some days old, which nothing has sealed."""
    empty = ", ".join("''" for _ in COLUMNS[1:])
    for each in days:
        await database.write(
            lambda tx, each=each: tx.execute(
                f"INSERT INTO audit (at, {', '.join(COLUMNS)}) VALUES (now_ms() - $1, 'sign_in', {empty})",  # noqa: S608
                each * DAY_MS,
            )
        )


async def numbers(database: Database) -> list[int]:
    return [seq for (seq,) in await database.read("SELECT seq FROM audit ORDER BY seq")]


@promise("a hash chain shows what was changed in the audit, and no commit waits for it")
async def test_the_retention_deletes_whole_seals_and_leaves_the_last_as_an_anchor(database: Database) -> None:
    chain = await chain_of(database)
    for days in ((5, 4), (3, 0), (3,)):  # a clock that was set back
        await add_old(database, *days)
        await seal(chain)
    head = await seal(chain)
    await add_old(database, 3)

    assert not await chain.prune(6 * DAY_MS)
    assert await chain.prune(DAY_MS)
    assert not await chain.prune(DAY_MS)
    assert await numbers(database) == [3, 4, 5, 6]
    found = verified(head)
    assert (found.problems, found.pruned_to, found.unsealed) == ([], 2, 1)
    for table in ("audit", "audit_seals"):
        with pytest.raises(INTEGRITY_ERRORS, match="of the audit"):
            await database.write(run_all(f"DELETE FROM {table}"))  # noqa: S608


async def test_the_retention_deletes_a_bounded_number_of_events_at_once(database: Database) -> None:
    chain = await chain_of(database, pruned_at_once=2, sealed_at_once=1)
    await add_old(database, 3, 3, 3)
    await seal(chain)

    assert await chain.prune(DAY_MS)
    assert await numbers(database) == [3]
    assert await chain.prune(DAY_MS)
    assert await numbers(database) == []
    assert not await chain.prune(DAY_MS)
    await record(database, "ada")
    await seal(chain)
    found = verified()
    assert (found.problems, found.pruned_to, found.head.last_seq) == ([], 3, 4)


@pytest.mark.parametrize("dialect", ["postgres"], indirect=True)  # engines of two releases do not share a file
async def test_the_retention_of_an_engine_of_the_last_release_deletes_nothing(database: Database) -> None:
    await add_old(database, 3)
    await database.write(run_all("INSERT INTO meta VALUES ('audit_kept_since', now_ms()::text)", "DELETE FROM audit"))
    assert await numbers(database) == [1]


@promise("a hash chain shows what was changed in the audit, and no commit waits for it")
async def test_an_erasure_changes_nothing_that_was_sealed(database: Database) -> None:
    store, chain = EngineStore(database), await chain_of(database)
    turn = await begin(store.turns, "ada", None, "Hi")
    await store.end(turn)
    head = await seal(chain)
    await store.erasures.delete("ada", turn.session_id, key_id="phone")
    await seal(chain)

    assert verified(head).problems == []
    assert len(await numbers(database)) == 2
