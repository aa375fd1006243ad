"""Logs that grow on other engines: each is read from Redis once, however many clients follow it here."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import islice

from redis.exceptions import RedisError

from dialog_engine.chat.events import DONE
from dialog_engine.chat.frames import START, Batch, Cursor, LogGoneError
from dialog_engine.streams.growing_log import GrowingLog, batches_of
from dialog_engine.streams.log_entries import Entry
from dialog_engine.streams.log_store import LogStore
from plugins_contract.connections import is_outage

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
"""How often the logs that are followed are looked at, all in one command: no connection is held for a reader."""
BEHIND_SECONDS = 2.0
"""How far what is stored of a log may be behind what its owner's clients have seen."""
OUTAGE_SECONDS = 1.0
LOGS_AT_ONCE = 200


class _Tail(GrowingLog):
    """What has been read of one log, from the place of its first reader on."""

    def __init__(self, start: Cursor) -> None:
        super().__init__()
        self.start = self.read_up_to = start
        self.readers = 0

    def grew(self, entries: list[Entry]) -> None:
        self.read_up_to = entries[-1].cursor
        self._add(entries)
        if entries[-1].name == DONE:
            self.let_go()


class LogTails:
    """The logs that are followed here and written elsewhere. `run` reads them."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._tails: dict[str, _Tail] = {}
        self._wanted = asyncio.Event()
        self._closed = False

    @property
    def followed(self) -> int:
        """How many logs."""
        return len(self._tails)

    def let_go(self) -> None:
        """Readers that follow, now or later, get what is known, and then their stream ends."""
        self._closed = True
        for tail in self._tails.values():
            tail.let_go()

    async def follow(self, turn_id: str, after: Cursor) -> AsyncGenerator[Batch]:
        """What comes after `after`, as it comes. While Redis is away, or has no such log, it is waited for.

        Raises:
            LogGoneError: something is missing between `after` and what is there.
        """
        if await self._ended_by(turn_id, after):
            return
        tail = self._tails.setdefault(turn_id, _Tail(after))
        tail.readers += 1
        self._wanted.set()
        if self._closed:
            tail.let_go()
        try:
            if after < tail.start:
                # Who comes later with an earlier place catches up alone.
                async with aclosing(self._up_to(turn_id, after, tail.start)) as batches:
                    async for batch in batches:
                        yield batch
                after = tail.start
            async with aclosing(tail.follow(after)) as batches:
                async for batch in batches:
                    yield batch
        finally:
            tail.readers -= 1
            if not tail.readers and self._tails.get(turn_id) is tail:
                del self._tails[turn_id]

    async def _ended_by(self, turn_id: str, place: Cursor) -> bool:
        """Whether the log has its end at `place`, or before it.

        It waits, bounded, until a log that goes on has come to `place`: its owner shows it before it is stored.

        Raises:
            LogGoneError: it has not come there, so it is not the log that the reader has seen.
        """
        try:
            async with asyncio.timeout(BEHIND_SECONDS):
                while place != START and not self._closed:
                    newest = await self._store.newest(turn_id)
                    if newest is None or newest.is_after(place):
                        return False
                    if newest.name == DONE:
                        return True
                    if newest.cursor == place:
                        return False
                    await asyncio.sleep(POLL_SECONDS)
                return False
        except TimeoutError:
            raise LogGoneError(f"the log of turn {turn_id} has not come to {place}") from None
        except (RedisError, OSError):
            return False  # it is waited for

    async def run(self) -> None:
        """Read what is followed, for ever."""
        while True:
            await self._wanted.wait()
            if not self._tails:
                self._wanted.clear()
                continue
            try:
                await self._read()
                await asyncio.sleep(POLL_SECONDS)
            except (RedisError, OSError) as error:
                if not is_outage(error):
                    log.exception("the logs of turns that run elsewhere cannot be read")
                await asyncio.sleep(OUTAGE_SECONDS)

    async def _read(self) -> None:
        tails = iter([*self._tails.items()])
        while some := dict(islice(tails, LOGS_AT_ONCE)):
            news = await self._store.read_many({turn_id: tail.read_up_to for turn_id, tail in some.items()})
            for turn_id, entries in news.items():
                some[turn_id].grew(entries)

    async def _up_to(self, turn_id: str, after: Cursor, end: Cursor) -> AsyncGenerator[Batch]:
        try:
            async with aclosing(self._store.read(turn_id, after)) as pages:
                async for page in pages:
                    missed = [entry for entry in page if not entry.is_after(end)]
                    for batch in batches_of(missed, after):
                        yield batch
                    after = missed[-1].cursor if missed else after
                    if len(missed) < len(page):
                        break
        except (RedisError, OSError) as error:
            raise LogGoneError(str(error)) from error
        if after < end:
            raise LogGoneError(f"what came between {after} and {end} is missing")
