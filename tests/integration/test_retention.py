"""Sessions are erased when they are older than the setting for their subject says, and by nothing else."""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest
from redis.asyncio import Redis

from dialog_engine.chat.audit import AuditAction
from dialog_engine.config.store import StoreSettings
from dialog_engine.operators import commands
from dialog_engine.personal_data.retention import DAY_MS, Idle, Retention, one_pass
from dialog_engine.personal_data.service import ErasureTimes
from dialog_engine.storage import erasures
from dialog_engine.storage.database import Database
from dialog_engine.wiring.times import EngineTimes
from tests.integration.engines import Model, in_store, running_engine, settings
from tests.marks import promise
from tests.support.beginnings import begin
from tests.support.engine_stores import DIALECTS, EngineStore, opener
from tests.support.waiting import wait_until

RULES = Retention.of([("guest-*", 7), ("legal-*", 0), ("*", 90)])


@pytest.fixture(params=DIALECTS)
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[EngineStore]:
    monkeypatch.setenv("OUTBOX_PATH", str(tmp_path / "engine.sqlite3"))
    if request.param == "postgres":
        monkeypatch.setenv("DATABASE_URL", request.getfixturevalue("postgres_url"))
    async with opener(request.param, tmp_path / "engine.sqlite3", request)() as database:
        yield EngineStore(database)


async def idle(database: Database, session_id: str, days: float) -> None:
    """Nothing was said in the session for so long."""
    ms = round(days * DAY_MS)
    await database.write(
        lambda tx: tx.execute("UPDATE sessions SET updated_at = now_ms() - $1 WHERE session_id = $2", ms, session_id)
    )


async def session_of(store: EngineStore, subject: str, days: float, *, running: bool = False) -> str:
    turn = await begin(store.turns, subject, None, "Hi")
    if not running:
        await store.end(turn)
    await idle(store.database, turn.session_id, days)
    return turn.session_id


async def left(store: EngineStore) -> set[str]:
    return {each.session_id for each in await store.erasures.page("", 1_000)}


async def deleted(store: EngineStore) -> list[tuple[str, str]]:
    query = "SELECT subject, outcome FROM audit WHERE action = $1 ORDER BY seq"
    rows = await store.database.read(query, AuditAction.SESSION_DELETED)
    return [(row.subject, row.outcome) for row in rows]


@promise("sessions beyond the retention of their subject's class are erased whole, once, and not while they are used")
async def test_each_class_of_subjects_has_its_days_and_the_command_shows_them_first(
    store: EngineStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {
        await session_of(store, subject, days) for subject, days in (("guest-1", 6.9), ("legal-1", 999), ("ada", 89))
    }
    runs = await session_of(store, "ada", 91, running=True)
    for subject, days in (("guest-1", 7.1), ("guest-2", 400), ("ada", 90.1)):
        await session_of(store, subject, days)
    monkeypatch.setenv("RETENTION_DAYS", "90")
    monkeypatch.setenv("RETENTION_BY_SUBJECT", "guest-*:7, legal-*:0")

    assert await asyncio.to_thread(commands.run, ["retention"]) == 0

    shown = [re.findall(r"\d+", line.partition(":")[2]) for line in capsys.readouterr().out.splitlines()]
    assert shown == [["2", "3", "0", "400"], ["0", "1", "0", "999"], ["1", "3", "1", "91"]]
    assert len(await left(store)) == 7, "the command changes nothing"

    assert await one_pass(RULES, store.erasures) == (3, 1)
    assert await left(store) == kept | {runs}
    assert sorted(await deleted(store)) == [("ada", "retention"), ("guest-1", "retention"), ("guest-2", "retention")]


@promise("sessions beyond the retention of their subject's class are erased whole, once, and not while they are used")
async def test_of_two_engines_that_pass_at_once_each_session_is_erased_by_one(store: EngineStore) -> None:
    for number in range(erasures.DELETED_AT_ONCE + 5):
        await session_of(store, f"user-{number}", 91)
    other = EngineStore(store.database, "other")

    counts = await asyncio.gather(*(one_pass(RULES, each.erasures) for each in (store, other)))

    assert sum(erased for erased, _ in counts) == erasures.DELETED_AT_ONCE + 5
    assert len(await deleted(store)) == erasures.DELETED_AT_ONCE + 5
    assert await left(store) == set()


@promise("sessions beyond the retention of their subject's class are erased whole, once, and not while they are used")
async def test_a_message_that_comes_while_a_pass_decides_keeps_its_session(store: EngineStore) -> None:
    session = await session_of(store, "ada", 91)

    class Late(erasures.SqlErasures):
        async def expire(self, session_ids: Sequence[str], idle_ms: int) -> int:
            await store.end(await begin(store.turns, "ada", session, "One more"))
            return await store.erasures.expire(session_ids, idle_ms)

        async def page(self, after: str, limit: int) -> Sequence[Idle]:
            return await store.erasures.page(after, limit)

    assert await one_pass(RULES, Late(store.store)) == (0, 1)
    assert await left(store) == {session}


@promise("sessions beyond the retention of their subject's class are erased whole, once, and not while they are used")
async def test_an_engine_erases_what_redis_has_of_an_old_session_too_and_counts_it(
    tmp_path: Path, redis_url: str, redis: Redis, model: Model
) -> None:
    times = EngineTimes(erasures=ErasureTimes(settle=0))
    configured = settings(tmp_path, redis_url, model.url)
    async with running_engine(configured) as engine:
        begun = (await engine.chat("the-hidden-marzipan"))[0].data
    async with opener("sqlite", configured.store.outbox_path, None)() as database:  # pyright: ignore[reportArgumentType]
        await idle(database, begun["sessionId"], 31)
    assert await redis.exists(f"dialog.turns:{begun['turnId']}")

    async with running_engine(in_store(configured, retention_days=30), times=times) as engine:

        async def gone() -> bool:
            return not await redis.exists(f"dialog.turns:{begun['turnId']}")

        await wait_until(gone, 20, what="the erasure")
        assert "dialog_retention_erased_total 1.0" in (await engine.client.get("/metrics")).text
        assert (await engine.client.get("/v1/sessions")).json()["sessions"] == []


@pytest.mark.parametrize("wrong", ["guest-*", ":7", "guest-*:7d", "a:40000", "a:-1"])
def test_a_rule_that_is_none_stops_the_start_and_is_named(wrong: str) -> None:
    with pytest.raises(ValueError, match="is not pattern:days"):
        StoreSettings.model_validate({"retention_by_subject": f"b:1,{wrong}"})


def test_the_first_rule_that_matches_decides_and_a_subject_may_have_colons() -> None:
    classes = {"retention_by_subject": "https://id.example/*:3, *@example.com:5", "retention_days": 9}
    retention = Retention.of(StoreSettings.model_validate(classes).retention_rules)

    assert [retention.rule_of(each).days for each in ("https://id.example/7", "eve@example.com", "ada")] == [3, 5, 9]
