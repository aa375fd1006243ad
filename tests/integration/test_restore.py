"""Backups of the SQLite file, and what becomes of the calls that a restored one has no answer to."""

import io
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from redis import Redis as SyncRedis

from dialog_engine.calls.mailbox import MailboxTimes
from dialog_engine.errors import ConfigurationError, StorageUnavailableError
from dialog_engine.operators.backup import back_up, restore, restored
from dialog_engine.settings import Settings
from dialog_engine.wiring.times import EngineTimes
from plugins_contract.catalog import ApprovalPolicy
from plugins_contract.ledger.replies import Loss
from plugins_contract.messages import ExecutionClass
from tests.integration.engines import Engine, Model, publish, running_engine, settings
from tests.integration.test_approvals import Waiting, requested, statuses
from tests.marks import promise
from tests.support.fakes.worker import tool
from tests.support.waiting import wait_until

QUICK = EngineTimes(mailbox=MailboxTimes(0.2, 0.1, 0.2, dict.fromkeys(Loss, 0.6)))
"""Losses are found in a tenth of the time."""


@pytest.fixture
def configured(tmp_path: Path, redis_url: str, model: Model) -> Settings:
    return settings(tmp_path, redis_url, model.url)


def backup_of(configured: Settings) -> bytes:
    output = io.BytesIO()
    back_up(configured.store, output)
    return output.getvalue()


def edited(backup: bytes, file: Path, statement: str) -> bytes:
    """The backup as it had been, had it been made a moment earlier or later."""
    file.write_bytes(backup)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(statement)
    return file.read_bytes()


@asynccontextmanager
async def engine_with(
    configured: Settings, execution_class: str, approval: ApprovalPolicy = ApprovalPolicy.NEVER
) -> AsyncGenerator[Engine]:
    """An engine on an empty Redis whose only tool is of this class. Nobody runs its calls."""
    with SyncRedis.from_url(configured.service.redis_url) as redis:
        redis.flushdb()
    delete = tool("files__delete", execution_class=ExecutionClass(execution_class), approval=approval)
    publish(configured.service.redis_url, delete)
    async with running_engine(configured, times=QUICK) as engine:
        yield engine


ROWS = {
    "it was held back": "UPDATE outbox SET published_at = NULL, offered_to = ''",
    "it was about to be offered": "UPDATE outbox SET published_at = NULL",
    "it was published": "UPDATE outbox SET published_at = 1",
    "it was to be tried again": "UPDATE outbox SET published_at = NULL, offered_to = '', attempts = 1, next_at = 1",
}


@promise("a restored backup has its sessions and messages, continues, and runs no once call twice")
@pytest.mark.parametrize(
    ("execution_class", "row"), [*(("once", row) for row in ROWS), ("repeatable", "it was published")]
)
async def test_a_once_call_of_a_backup_is_unknown_and_a_repeatable_one_runs_again(
    configured: Settings, model: Model, tmp_path: Path, redis_url: str, row: str, execution_class: str
) -> None:
    async with engine_with(configured, execution_class) as engine:
        model.will_call("files__delete")
        session = (await engine.client.post("/v1/sessions")).json()["sessionId"]
        begun = await engine.client.post(f"/v1/sessions/{session}/turns", json={"message": "Delete it"})
        await wait_until(lambda: requested(redis_url), what="the request")
        backup = backup_of(configured)
    backup = edited(backup, tmp_path / "backup", ROWS[row])
    assert await restore(configured.store, io.BytesIO(backup)) == 1

    async with engine_with(configured, execution_class) as engine:
        turn = f"/v1/turns/{begun.json()['turnId']}"
        if execution_class == "repeatable":
            await wait_until(lambda: requested(redis_url), what="the call, again")
            await engine.client.post(f"{turn}/cancel")
        else:
            events = await engine.events("GET", f"{turn}/events")
            assert statuses(events, "tool")[-1] == "unknown"
            assert requested(redis_url) == []


@promise("a restored backup has its sessions and messages, continues, and runs no once call twice")
@pytest.mark.parametrize("execution_class", ["once", "repeatable"])
async def test_a_call_that_may_have_been_approved_after_the_backup_is_not_run_as_if_it_were_new(
    configured: Settings, model: Model, redis_url: str, execution_class: str
) -> None:
    waiting = Waiting(model)

    async def approve(engine: Engine) -> None:
        asked = await waiting.asked(engine)
        status, _ = await waiting.decide(engine, asked["toolCallId"], decision="approve", hash=asked["hash"])
        assert status == 200

    async with engine_with(configured, execution_class, ApprovalPolicy.ALWAYS) as engine:
        await waiting.begin(engine)
        backup = backup_of(configured)
        await approve(engine)
        await wait_until(lambda: requested(redis_url), what="the request")
    await restore(configured.store, io.BytesIO(backup))

    async with engine_with(configured, execution_class, ApprovalPolicy.ALWAYS) as engine:
        await approve(engine)
        if execution_class == "repeatable":
            await wait_until(lambda: requested(redis_url), what="the call, again")
            await engine.client.post(f"/v1/turns/{waiting.turn_id}/cancel")
        else:
            assert statuses(await waiting.run_shielded(engine), "tool")[-1] == "unknown"
            assert requested(redis_url) == []
        # A call that was made after the restore is like any other.
        model.replies.clear()
        question = await waiting.begin(engine)
        await waiting.decide(engine, question["toolCallId"], decision="approve", hash=question["hash"])
        await wait_until(
            lambda: question["correlationId"] in [each["correlationId"] for each in requested(redis_url)],
            what="the new call",
        )
        await engine.client.post(f"/v1/turns/{waiting.turn_id}/cancel")


@promise("a backup that is none, or is that of a later release, changes nothing")
async def test_what_is_no_backup_is_refused_and_the_file_stays(configured: Settings, tmp_path: Path) -> None:
    async with engine_with(configured, "once"):
        for refused in (restore(configured.store, io.BytesIO(backup_of(configured))), restored(configured.store)):
            with pytest.raises(StorageUnavailableError, match="another engine is using it"):
                await refused
    before = backup_of(configured)

    for wrong in (b"", b"no backup", b"SQLite format 3\0 and no more"):
        with pytest.raises(StorageUnavailableError, match="cannot be restored"):
            await restore(configured.store, io.BytesIO(wrong))
    later = edited(before, tmp_path / "backup", "PRAGMA user_version = 9999")
    with pytest.raises(ConfigurationError, match="9999"):
        await restore(configured.store, io.BytesIO(later))

    assert backup_of(configured) == before
    assert {each.name for each in configured.store.outbox_path.parent.glob("engine.sqlite3*")} <= {
        "engine.sqlite3", "engine.sqlite3-wal", "engine.sqlite3-shm", "engine.sqlite3.lock",
    }  # fmt: skip


def test_a_postgresql_is_left_to_its_own_tools(tmp_path: Path, redis_url: str) -> None:
    configured = settings(tmp_path, redis_url, "http://model", database_url="postgresql://u:secret@db/x")

    with pytest.raises(ConfigurationError, match="pg_dump") as refused:
        back_up(configured.store, io.BytesIO())
    assert "secret" not in str(refused.value)
