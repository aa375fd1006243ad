"""Logs that grow on other engines: each is read from Redis once, however many clients follow it here."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import islice

from redis.exceptions import RedisError

from dialog_engine.chat.events import DONE
from dialog_engine.chat.frames import Batch, Cursor, LogGoneError
from dialog_engine.streams.growing_log import Entry, GrowingLog, batches_of
from dialog_engine.streams.log_store import LogStore
from plugins_contract.connections import is_outage

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
"""How often the logs that are followed are looked at, all in one command: no connection is held for a reader."""
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
        """What comes after `after`, as it comes. While Redis is away, or has nothing after `after`, it is waited for.

        It ends before the turn does when the reader shall ask again.

        Raises:
            LogGoneError: something is missing between `after`, or what was read last, and what is there.
        """
        newest = await self._newest(turn_id)
        if newest is not None and newest.name == DONE and not newest.is_after(after):
            return
        # Its owner shows an entry before it is stored: a reader may be ahead of Redis, and waits.
        tail = self._tails.setdefault(turn_id, _Tail(min(after, newest.cursor) if newest else after))
        tail.readers += 1
        self._wanted.set()
        if self._closed:
            tail.let_go()
        try:
            if after < tail.start:
                # Who comes later with an earlier place catches up alone.
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
                # Redis had lost what comes after `after`, and by now its owner has stored it again.
        except (RedisError, OSError):
            return  # the reader asks again
        finally:
            tail.readers -= 1
            if not tail.readers and self._tails.get(turn_id) is tail:
                del self._tails[turn_id]

    async def _newest(self, turn_id: str) -> Entry | None:
        """The last entry; None when there is none, or Redis is away."""
        try:
            return await self._store.newest(turn_id)
        except (RedisError, OSError):
            return None

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
