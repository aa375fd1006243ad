"""Logs of turns in Redis, one stream each: appended to by the engine that runs the turn, followed by all others."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError, ResponseError

from dialog_engine.chat.events import DONE, Batch, Cursor, LogGoneError
from dialog_engine.event_log.growing_log import Entry, GrowingLog, batches_of, entry_from_fields
from dialog_engine.event_log.turn_log import LiveLog
from plugins_contract.connections import is_outage
from plugins_contract.keys import Keys
from plugins_contract.ledger.scripts import Script, script

log = logging.getLogger(__name__)

LIFETIME_SECONDS = 24 * 3600
PAGE = 100
"""How many entries are read at once."""


@cache
def _append_script() -> Script:
    return script("turn_log", files(__package__ or __name__).joinpath("turn_log.lua").read_text())


class LogStore:
    """Appends to streams and reads them. Errors are those of the Redis client."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    async def append(self, logs: Sequence[LiveLog]) -> list[Cursor | Exception]:
        """Store what each log has and Redis has not, all in one round trip.

        The answer for each is the id of its last entry in Redis, or why it could not be asked for. Nothing of a log is
        stored when Redis does not have what the log says that it has, or has a later epoch.
        """
        commands = [self._command(live) for live in logs]
        answers = await self._run(commands)
        while any(isinstance(answer, NoScriptError) for answer in answers):
            # Those that were run are refused now, and say what Redis has.
            await self._redis.execute_command("SCRIPT", "LOAD", _append_script().text)
            answers = await self._run(commands)
        return [answer if isinstance(answer, Exception) else Cursor.parse(answer.decode()) for answer in answers]

    def _command(self, live: LiveLog) -> list[str | int]:
        key, epoch = self._keys.turn(live.turn.turn_id), live.turn.epoch
        command: list[str | int] = ["EVALSHA", _append_script().sha, 1, key, epoch, live.stored, LIFETIME_SECONDS]
        for entry in live.to_store():
            command += (f"{epoch}-{entry.seq}", entry.name, entry.data)
        return command

    async def _run(self, commands: Sequence[list[str | int]]) -> list[Any]:
        if len(commands) == 1:
            # Most often; a pipeline of one takes twice the processor time.
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
        """What is there now after `after`, page by page; of earlier epochs only, when one is given."""
        end = "+" if before_epoch is None else f"({before_epoch}-0"
        while True:
            page: Any = await self._redis.xrange(self._keys.turn(turn_id), f"({after}", end, count=PAGE)
            if entries := _entries(page):
                yield entries
                after = entries[-1].cursor
            if len(page) < PAGE:
                return

    async def read_many(self, places: Mapping[str, Cursor]) -> dict[str, list[Entry]]:
        """What is there now after the place in each log, PAGE entries at most, in one command."""
        keys: Any = {self._keys.turn(turn_id): str(place) for turn_id, place in places.items()}
        turns = dict(zip(keys, places, strict=True))
        answer: Any = await self._redis.xread(keys, count=PAGE)
        return {turns[key.decode()]: _entries(page) for key, page in answer}

    async def newest(self, turn_id: str) -> Entry | None:
        """The last entry; None when there is no log."""
        entries = _entries(await self._redis.xrevrange(self._keys.turn(turn_id), count=1))
        return entries[0] if entries else None


def _entries(page: Any) -> list[Entry]:
    return [entry_from_fields(Cursor.parse(entry_id.decode()), fields) for entry_id, fields in page]


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
