"""Logs of turns in Redis, one stream each: appended to by the engine that runs the turn, followed by all others."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from importlib.resources import files
from itertools import islice
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, ResponseError

from callstream_runtime.outage_log import OutageLog
from callstream_runtime.redis_errors import RedisUnavailable
from dialog_engine.chat.events import DONE, Batch, Cursor, LogGoneError
from dialog_engine.event_log.growing_log import Entry, GrowingLog, batches_of, entry_from_fields
from dialog_engine.event_log.turn_log import LiveLog
from plugins_contract.encryption import SEALED, Cipher, DecryptionError, entry_owner
from plugins_contract.keys import Keys

log = logging.getLogger(__name__)

_Part = str | bytes | int

LIFETIME_SECONDS = 24 * 3600
PAGE = 100
"""How many entries are read at a time."""


class LogStore:
    """Appends to streams and reads them. Raises `RedisUnavailable`."""

    def __init__(self, redis: Redis, keys: Keys, cipher: Cipher) -> None:
        self._redis = redis
        self._cipher = cipher
        self._outages = OutageLog(log, "a part of a turn log")
        untyped: Any = redis
        self._append = untyped.register_script(files(__package__ or __name__).joinpath("turn_log.lua").read_text())
        self._keys = keys

    async def append(self, logs: Sequence[LiveLog]) -> list[Cursor | Exception]:
        """Store what Redis does not have of each log, in one round trip.

        Returns for each log the id of its last entry in Redis, or the error. Nothing of a log is stored when Redis has
        other entries of its epoch than `LiveLog.stored` says, or a later epoch.
        """
        commands = [self._command(live) for live in logs]
        answers = await self._run(commands)
        while any(isinstance(answer, NoScriptError) for answer in answers):
            # Commands that succeeded before store nothing now, and return what Redis has.
            await self._redis.execute_command("SCRIPT", "LOAD", self._append.script)
            answers = await self._run(commands)
        return [answer if isinstance(answer, Exception) else Cursor.parse(answer.decode()) for answer in answers]

    def _command(self, live: LiveLog) -> list[_Part]:
        key, epoch = self._keys.turn(live.turn.turn_id), live.turn.epoch
        command: list[_Part] = ["EVALSHA", self._append.sha, 1, key, epoch, live.stored, LIFETIME_SECONDS]
        for entry in live.to_store():
            entry_id, data = f"{epoch}-{entry.seq}", entry.data
            if self._cipher.active:
                data = self._cipher.seal(data.encode(), entry_owner(live.turn.turn_id, entry_id))
            command += (entry_id, entry.name, data)
        return command

    async def _run(self, commands: Sequence[list[_Part]]) -> list[Any]:
        if len(commands) == 1:
            # The common case. A pipeline of one command takes twice the processor time.
            try:
                return [await self._redis.execute_command(*commands[0])]
            except ResponseError as error:
                return [error]
        pipeline = self._redis.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        return await pipeline.execute(raise_on_error=False)

    async def read(
        self, turn_id: str, after: Cursor, *, before_epoch: int | None = None
    ) -> AsyncGenerator[list[Entry]]:
        """The entries after `after` that are there now, in pages; with `before_epoch` only those of earlier epochs."""
        end = "+" if before_epoch is None else f"({before_epoch}-0"
        while True:
            page: Any = await self._redis.xrange(self._keys.turn(turn_id), f"({after}", end, count=PAGE)
            if entries := self._entries(turn_id, page):
                yield entries
                after = entries[-1].cursor
            if len(page) < PAGE:
                return

    async def read_many(self, places: Mapping[str, Cursor]) -> dict[str, list[Entry]]:
        """The entries after the place in each log that are there now, PAGE at most of each, in one command."""
        keys: Any = {self._keys.turn(turn_id): str(place) for turn_id, place in places.items()}
        turns = dict(zip(keys, places, strict=True))
        answer: Any = await self._redis.xread(keys, count=PAGE)
        names = ((turns[key.decode()], page) for key, page in answer)
        return {turn_id: self._entries(turn_id, page) for turn_id, page in names}

    async def newest(self, turn_id: str) -> Entry | None:
        """The last entry; None when there is no log."""
        entries = self._entries(turn_id, await self._redis.xrevrange(self._keys.turn(turn_id), count=1))
        return entries[0] if entries else None

    def _entries(self, turn_id: str, page: Any) -> list[Entry]:
        """The entries of a page. One that cannot be decrypted is left out: readers see the gap, and get a reset."""
        entries: list[Entry] = []
        for raw_id, fields in page:
            entry_id = raw_id.decode()
            if self._cipher.strict or fields[b"data"].startswith(SEALED):
                try:
                    fields[b"data"] = self._cipher.open(fields[b"data"], entry_owner(turn_id, entry_id))
                except DecryptionError as error:
                    self._outages.failed(error)
                    continue
            entries.append(entry_from_fields(Cursor.parse(entry_id), fields))
        return entries


POLL_SECONDS = 0.05
"""How often followed logs are polled, all in one command: a reader holds no connection."""
OUTAGE_SECONDS = 1.0
LOGS_AT_ONCE = 200


class _Tail(GrowingLog):
    """The entries that were read of one log, from the place of its first reader on."""

    def __init__(self, start: Cursor, idle_seconds: float) -> None:
        super().__init__(idle_seconds)
        self.start = self.read_up_to = start
        self.readers = 0

    def add(self, entries: list[Entry]) -> None:
        self.read_up_to = entries[-1].cursor
        self._add(entries)
        if entries[-1].name == DONE:
            self.release_readers()


class LogTails:
    """Logs that other engines write and clients of this engine follow. `run` reads each of them once."""

    def __init__(self, store: LogStore, idle_seconds: float) -> None:
        self._store = store
        self._idle_seconds = idle_seconds
        self._tails: dict[str, _Tail] = {}
        self._wanted = asyncio.Event()
        self._closed = False

    def release_readers(self) -> None:
        """Readers, now and later, get the entries that were read, and then their streams end."""
        self._closed = True
        for tail in self._tails.values():
            tail.release_readers()

    def move_readers(self, turn_id: str) -> None:
        """This engine writes the log from now on: its readers get what was read, and ask again."""
        if tail := self._tails.pop(turn_id, None):
            tail.release_readers()

    async def follow(self, turn_id: str, after: Cursor) -> AsyncGenerator[Batch]:
        """The entries after `after` as they are stored. Waits while Redis is unavailable or has none.

        When it ends before the turn's last event, the reader must ask again.

        Raises:
            LogGoneError: an entry between `after`, or the last one that was read, and the next one is missing.
        """
        newest = await self._newest(turn_id)
        if newest is not None and newest.name == DONE and not newest.is_after(after):
            return
        # The owner shows an entry before it is stored, so a reader may be ahead of Redis, and waits.
        start = min(after, newest.cursor) if newest else after
        tail = self._tails.setdefault(turn_id, _Tail(start, self._idle_seconds))
        tail.readers += 1
        self._wanted.set()
        if self._closed:
            tail.release_readers()
        try:
            if after < tail.start:
                # A reader with an earlier place than the first one catches up by itself.
                async with aclosing(self._store.read(turn_id, after)) as pages:
                    async for page in pages:
                        for batch in batches_of(page, after):
                            yield batch
                        after = page[-1].cursor
                        if after >= tail.start:
                            break
            lost = after < tail.start
            try:
                async with aclosing(tail.follow(after)) as batches:
                    async for batch in batches:
                        yield batch
            except LogGoneError:
                if not lost:
                    raise
                # Redis had lost the entries after `after`, and the owner has stored them again by now.
        except RedisUnavailable:
            return  # the reader must ask again
        finally:
            tail.readers -= 1
            if not tail.readers and self._tails.get(turn_id) is tail:
                del self._tails[turn_id]

    async def _newest(self, turn_id: str) -> Entry | None:
        """The last entry; None when there is none, or Redis is unavailable."""
        try:
            return await self._store.newest(turn_id)
        except RedisUnavailable:
            return None

    async def run(self) -> None:
        """Read the followed logs until cancelled."""
        while True:
            await self._wanted.wait()
            if not self._tails:
                self._wanted.clear()
                continue
            try:
                await self._read()
                await asyncio.sleep(POLL_SECONDS)
            except RedisUnavailable:
                await asyncio.sleep(OUTAGE_SECONDS)

    async def _read(self) -> None:
        tails = iter([*self._tails.items()])
        while some := dict(islice(tails, LOGS_AT_ONCE)):
            news = await self._store.read_many({turn_id: tail.read_up_to for turn_id, tail in some.items()})
            for turn_id, entries in news.items():
                if entries:
                    some[turn_id].add(entries)
