"""Shares the journal: what was committed here goes, in order, where every engine finds it.

Entries come in hand with their commit; the table is the back-up, for what an earlier life left and for the time of an
outage. A tool call's request is published only after the round it belongs to is shared: so another engine that takes
the turn over either knows the call, or the call was never made.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from redis.asyncio import Redis

from dialog_engine.chat.journal import (
    Change,
    Journal,
    JournalEntry,
    JournalTable,
    NotSharedError,
    SharedVersions,
    Step,
)
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.model import Turn
from dialog_engine.streams import scripts
from dialog_engine.streams.patience import Patience
from dialog_engine.streams.runs import ANSWER_SECONDS, RedisRuns
from plugins_contract.connections import is_outage

log = logging.getLogger(__name__)

BATCH = 64
POLL_SECONDS = 1.0
MARK_SECONDS = 0.2
"""How long entries that are shared stay in the table: a mark that is lost costs one idempotent repetition."""
RETRY_SECONDS = 0.1
MAX_PAUSE_SECONDS = 2.0
SETTLE_SECONDS = 2.0
"""How long anybody waits for an entry to be shared; so long a silence is an outage."""


class SharedJournal(Journal):
    """Shares the entries of one engine, in their order."""

    def __init__(self, table: JournalTable, redis: Redis, runs: RedisRuns, patience: Patience | None = None) -> None:
        self._table = table
        self._redis = redis
        self._runs = runs
        self._patience = patience or Patience()
        self.on_moved: Callable[[str, int], bool] = lambda _turn_id, _epoch: True
        """Told of a turn that another engine runs since that epoch was ours. Says whether it is not ours again."""
        self.on_forgotten: Callable[[str], None] = lambda _: None
        """Told of a session that was deleted."""
        self._offered: list[JournalEntry] = []
        self._behind = True
        self._shared_to = 0
        self._newest = 0
        self._moved: set[str] = set()
        self._versions: dict[str, SharedVersions] = {}
        self._to_mark: list[JournalEntry] = []
        self._wake = asyncio.Event()
        self._mark = asyncio.Event()
        self._progress = asyncio.Event()
        self._away = False

    def offer(self, entries: Sequence[JournalEntry]) -> None:
        """Take entries that were just committed."""
        for entry in entries:
            if not self._behind and entry.seq == self._newest + 1:
                self._offered.append(entry)
            elif not self._behind and entry.seq > self._shared_to:
                self._fall_behind()  # one was committed whose writer did not stay to offer it: it is in the table
            self._newest = max(self._newest, entry.seq)
        self._wake.set()

    def version(self, session_id: str, known: int) -> int:
        chain = self._versions.get(session_id)
        return chain.last if chain and chain.before == known else known

    def taken_over(self, turn_id: str) -> None:
        self._moved.discard(turn_id)

    async def settled(self, turn_id: str = "") -> bool:
        upto = self._newest
        try:
            async with self._patience.within(SETTLE_SECONDS):
                while self._behind or self._shared_to < upto:
                    if self._away:
                        raise NotSharedError("Redis is away")
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            raise NotSharedError("Redis does not answer") from None
        return turn_id not in self._moved

    async def share_whole(self, turn: Turn) -> bool:
        try:
            return await self._share_whole(turn)
        except Exception as error:
            if _is_away(error):
                raise NotSharedError(str(error)) from error
            raise

    async def _share_whole(self, turn: Turn) -> bool:
        change = await self._table.whole(turn.session_id)
        if change is None:
            return False
        entry = JournalEntry(0, turn.session_id, turn.turn_id, turn.epoch, Step.BEGINS, b"")
        [answer] = await self._send([(entry, change)])
        return self._note(entry, answer)

    async def run(self) -> None:
        """Share, for ever."""
        self._fall_behind()
        self._mark.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._share_all(), name="journal")
            tasks.create_task(self._mark_shared(), name="journal marks")

    async def _share_all(self) -> None:
        pause = 0.0
        while True:
            if pause:
                await asyncio.sleep(pause)
            entries = await self._next()
            if not entries:
                await self._rest()
                continue
            try:
                await self._share(entries)
                pause, self._away = 0.0, False
            except Exception as error:
                if not _is_away(error):
                    log.exception("the journal cannot be shared")
                pause = min(max(pause * 2, RETRY_SECONDS), MAX_PAUSE_SECONDS)
                self._away = True
                self._fall_behind()
            self._progress.set()

    async def _rest(self) -> None:
        self._wake.clear()
        if self._offered or self._behind:
            return
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await self._wake.wait()
        except TimeoutError:
            self._fall_behind()  # time to look into the table

    async def _next(self) -> list[JournalEntry]:
        if not self._behind:
            entries, self._offered = self._offered[:BATCH], self._offered[BATCH:]
            return entries
        try:
            newest = self._newest
            entries = list(await self._table.waiting(self._shared_to, BATCH))
        except StorageUnavailableError as error:
            log.warning("the journal cannot be read: %s", error)
            await asyncio.sleep(MAX_PAUSE_SECONDS)
            return []
        if not entries and newest == self._newest:
            self._behind = False
            self._shared_to = self._newest = max(self._newest, self._shared_to)
            self._progress.set()
        return entries

    def _fall_behind(self) -> None:
        self._behind = True
        self._offered.clear()

    async def _share(self, entries: Sequence[JournalEntry]) -> None:
        changes = [(entry, msgspec.json.decode(entry.payload, type=Change)) for entry in entries]
        answers = await self._send(changes)
        for (entry, change), answer in zip(changes, answers, strict=True):
            if answer == [b"GONE"]:
                # What comes behind it in this batch was refused likewise; the whole session has it all.
                turn = Turn(entry.turn_id, entry.session_id, change.subject, entry.epoch)
                await self._share_whole(turn)
                if entry.step is Step.ENDS:
                    [answer] = await self._send([(entry, change)])  # noqa: PLW2901 -- the answer, at last
                    self._note(entry, answer)
            else:
                self._note(entry, answer)
            self._shared_to = max(self._shared_to, entry.seq)
            self._to_mark.append(entry)
        self._mark.set()

    async def _send(self, changes: Sequence[tuple[JournalEntry, Change]]) -> list[Any]:
        commands = [self._runs.share_command(entry, change) for entry, change in changes]
        async with asyncio.timeout(ANSWER_SECONDS):
            answers = await scripts.run_each(self._redis, scripts.load("share"), commands)
        for answer in answers:
            if isinstance(answer, Exception) and is_outage(answer):
                raise answer
        return answers

    def _note(self, entry: JournalEntry, answer: Any) -> bool:
        """Take account of what became of an entry. Whether it is shared."""
        match answer:
            case [b"OK", version, before]:
                self._note_version(entry.session_id, before, version)
                return True
            case [b"MOVED"]:
                if entry.turn_id not in self._moved and self.on_moved(entry.turn_id, entry.epoch):
                    self._moved.add(entry.turn_id)
            case [b"FORGOTTEN"]:
                self.on_forgotten(entry.session_id)
            case _:
                log.error("a change of session %s cannot be shared: %s", entry.session_id, answer)
        return False

    def _note_version(self, session_id: str, before: int, version: int) -> None:
        known = self._versions.get(session_id)
        first = known.before if known and known.last == before else before
        self._versions[session_id] = SharedVersions(session_id, first, version)

    async def _mark_shared(self) -> None:
        while True:
            await self._mark.wait()
            await asyncio.sleep(MARK_SECONDS)
            self._mark.clear()
            entries, versions = self._to_mark.copy(), list(self._versions.values())
            try:
                if entries:
                    await self._table.shared(entries, versions)
            except StorageUnavailableError as error:
                log.warning("shared entries cannot be marked: %s", error)
                await asyncio.sleep(MAX_PAUSE_SECONDS)
                self._mark.set()
                continue
            del self._to_mark[: len(entries)]
            for each in versions:
                self._note_marked(each)

    def _note_marked(self, marked: SharedVersions) -> None:
        """The file says so now. What was shared meanwhile goes on from there."""
        now = self._versions.pop(marked.session_id)
        if now.before == marked.before and now.last != marked.last:
            self._versions[marked.session_id] = SharedVersions(marked.session_id, marked.last, now.last)
        elif now != marked:
            self._versions[marked.session_id] = now


def _is_away(error: Exception) -> bool:
    return isinstance(error, TimeoutError) or is_outage(error)
