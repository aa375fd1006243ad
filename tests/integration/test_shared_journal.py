"""Sharing what is committed: what this engine's file says it has, while changes keep coming."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from redis.asyncio import Redis

from dialog_engine.chat.journal import JournalEntry, SharedVersions
from dialog_engine.model import Done, DoneReason, Usage
from dialog_engine.storage.copies import SqliteCopies
from dialog_engine.storage.database import open_database
from dialog_engine.storage.journal import SqliteJournal
from dialog_engine.storage.turns import SqliteTurns
from dialog_engine.streams import journal as journal_module
from dialog_engine.streams.journal import SharedJournal
from dialog_engine.streams.runs import RedisRuns
from plugins_contract.keys import Keys
from tests.integration.engines import at_work
from tests.support.beginnings import begin
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


class SlowTable(SqliteJournal):
    """Its answers, that something is marked, come when `answers` is set."""

    written = 0
    answers: asyncio.Event

    async def shared(self, entries: Sequence[JournalEntry], versions: Sequence[SharedVersions]) -> None:
        await super().shared(entries, versions)
        self.written += 1
        await self.answers.wait()


async def test_what_is_shared_while_what_came_before_it_is_marked_need_not_be_fetched_back(
    tmp_path: Path, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "MARK_SECONDS", 0.01)
    async with open_database(tmp_path / "here.db") as database:
        table = SlowTable(database)
        table.answers = asyncio.Event()
        runs = RedisRuns(redis, Keys(), "here", ttl_seconds=100)
        journal = SharedJournal(table, redis, runs)
        turns, copies = SqliteTurns(database, lambda _: None, journal.offer), SqliteCopies(database, "mailbox")
        async with at_work(journal.run):
            turn = await begin(turns, "ada", None, "Hi")
            await wait_until(lambda: table.written == 1, what="the mark of the first change")
            await turns.finish(turn, None, Done(turn.turn_id, DoneReason.STOP, Usage(), None), None)
            assert await journal.settled()
            head = await runs.head(turn.session_id)
            assert isinstance(head, tuple)
            table.answers.set()

            async def version() -> bool:
                return await copies.version(turn.session_id) == head[1]

            await wait_until(version, 5, what="the version of what is shared, in the file")
