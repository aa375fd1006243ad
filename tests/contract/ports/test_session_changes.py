"""SessionChangeStore: one suite for SQLite and for PostgreSQL."""

import asyncio
import threading

import pytest

from dialog_engine.chat.session_changes import Changed, Changes
from dialog_engine.model import ApprovalStatus, Turn
from dialog_engine.storage.audit import AuditTrail
from dialog_engine.storage.session_changes import KEPT_MS, REVISIONS_FROM, SqlSessionChanges, go_on_with_revisions
from dialog_engine.storage.store import StoreTransaction
from dialog_engine.tool_calls.values import Decision
from tests.marks import promise
from tests.support.beginnings import begin
from tests.support.engine_stores import EngineStore, tool_call


@pytest.fixture
def changes(storage: EngineStore) -> SqlSessionChanges:
    return SqlSessionChanges(storage.store, AuditTrail(b"key", stream=False))


async def session(storage: EngineStore, subject: str = "ada") -> Turn:
    return await begin(storage.turns, subject, None, "Hello!", "00-trace")


def is_postgres(storage: EngineStore) -> bool:
    return "Postgres" in type(storage.database).__name__


def states(found: Changes) -> list[tuple[str, str]]:
    assert found.changes is not None
    named = [(change.session_id, change.record) for change in found.changes]
    return [
        (each, "deleted")
        if record is None
        else (each, "asks" if record.awaits_approval else "runs" if record.running_turn_id else "idle")
        for each, record in named
    ]


@promise("every change of a session reaches each browser of its subject, in the order in which it was committed")
async def test_each_change_of_a_session_has_a_later_revision_than_all_before(
    storage: EngineStore, changes: SqlSessionChanges
) -> None:
    place = await changes.settled()
    seen: list[tuple[str, str]] = []

    async def follow() -> None:
        nonlocal place
        found = await changes.of("ada", place, 10)
        place = found.revision
        seen.extend(states(found))

    turn = await session(storage)
    await session(storage, "bob")
    await follow()
    asked = tool_call()
    await storage.add_round(turn, asked=[asked])
    await follow()
    [waiting] = (await storage.archive.open_calls(turn)).asked
    assert await storage.approvals.decide(
        turn.turn_id, waiting, Decision(status=ApprovalStatus.REFUSED, at=1), None, None
    )
    await follow()
    await storage.end(turn)
    await follow()
    await storage.erasures.delete("ada", turn.session_id)
    await follow()
    await follow()

    assert seen == [(turn.session_id, state) for state in ("runs", "asks", "runs", "idle", "deleted")]


async def test_whose_sessions_changed_is_found_without_asking_for_each_subject(
    storage: EngineStore, changes: SqlSessionChanges
) -> None:
    place = await changes.settled()
    turn = await session(storage)
    await storage.end(turn)
    first = await changes.changed(place)
    await storage.erasures.delete("ada", turn.session_id)
    second = await changes.changed(first.settled)

    assert (first.owners, second.owners) == ({"ada"}, {changes.digest("ada")})
    assert await changes.changed(second.settled) == Changed(second.settled, frozenset(), False)


@promise("every change of a session reaches each browser of its subject, in the order in which it was committed")
async def test_a_change_that_is_committed_before_an_earlier_one_is_seen_after_it(
    storage: EngineStore, changes: SqlSessionChanges
) -> None:
    if not is_postgres(storage):
        pytest.skip("SQLite has one writer")
    early, late = await session(storage), await session(storage)
    place = await changes.settled()
    has_number, may_commit = threading.Event(), threading.Event()

    def unit(tx: StoreTransaction) -> None:
        tx.change_session(early.session_id)
        has_number.set()
        assert may_commit.wait(10)

    slow = asyncio.create_task(storage.store.write(unit))
    await asyncio.to_thread(has_number.wait)
    await storage.store.write(lambda tx: tx.change_session(late.session_id))

    found, whose = await changes.of("ada", place, 10), await changes.changed(place)
    assert (states(found), whose.owners, whose.unsettled) == ([], frozenset(), True)
    may_commit.set()
    await slow
    found = await changes.of("ada", found.revision, 10)
    assert [each for each, _ in states(found)] == [early.session_id, late.session_id]


async def test_a_reader_is_sent_to_the_list_when_it_cannot_go_on_from_its_place(
    storage: EngineStore, changes: SqlSessionChanges
) -> None:
    before = await changes.settled()
    turns = [await session(storage) for _ in range(3)]
    now = await changes.settled()

    assert (await changes.of("ada", before, 2)).changes is None
    assert (await changes.of("ada", now + 1_000_000, 10)).changes is None
    for turn in turns:
        await storage.end(turn)
    await storage.erasures.delete("ada", turns[0].session_id)
    await storage.store.write(
        lambda tx: tx.change("UPDATE deleted_sessions SET deleted_at = deleted_at - $1", KEPT_MS + 1)
    )
    await storage.erasures.delete("ada", turns[1].session_id)  # forgets the first deletion

    assert (await changes.of("ada", now, 10)).changes is None
    assert states(await changes.of("ada", await changes.settled(), 10)) == []


async def test_revisions_go_on_after_those_of_another_server(storage: EngineStore, changes: SqlSessionChanges) -> None:
    turn = await session(storage)
    high = 10**15
    await storage.store.write(lambda tx: tx.change("UPDATE sessions SET revision = $1", high))
    await go_on_with_revisions(storage.store)
    await go_on_with_revisions(storage.store)
    place = await changes.settled()
    await storage.end(turn)

    assert high <= place < high + 10
    assert states(await changes.of("ada", place, 10)) == [(turn.session_id, "idle")]
    added = await storage.store.read("SELECT 1 FROM meta WHERE key = $1", REVISIONS_FROM)
    assert len(added) == int(is_postgres(storage))
