"""The logs of all turns: those that run here live in memory and are stored in Redis, all others are read from there."""

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from dialog_engine.chat.events import DONE
from dialog_engine.chat.frames import START, Cursor, Frame, LogGoneError, TurnFrames
from dialog_engine.chat.ports import TurnLogs
from dialog_engine.model import Turn
from dialog_engine.streams.log_entries import entry_from_fields
from dialog_engine.streams.turn_log import LiveLog
from plugins_contract.connections import is_outage
from plugins_contract.keys import Keys

log = logging.getLogger(__name__)

COALESCE_SECONDS = 0.05
"""Deltas of this long become one entry in Redis; attached clients get them at once."""
KEEP_SECONDS = 60.0
"""How long the log of an ended turn stays in memory, for clients that are just reconnecting."""
POLL_SECONDS = 0.2
"""How often the log of a turn that runs elsewhere is looked at: no connection is held for a reader."""
LIFETIME_SECONDS = 24 * 3600
KEEP_UNSTORED = 1000
"""How many logs of ended turns wait for Redis at most."""
READ_SECONDS = 3.0
"""How long Redis has to answer one who reads a log."""
FIRST_EPOCH = 1
NEVER = sys.maxsize
"""A number that no entry has."""
PAGE = 500


class RedisTurnLogs(TurnLogs, TurnFrames):
    """Opens, stores and follows the logs."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._live: dict[str, LiveLog] = {}
        self._grown: dict[str, LiveLog] = {}
        self._wake = asyncio.Event()

    @property
    def in_memory(self) -> int:
        """How many logs are kept for clients that are attached or just reconnecting."""
        return len(self._live)

    @property
    def unstored(self) -> int:
        """How many logs wait for Redis."""
        return len(self._grown)

    def open(self, turn: Turn) -> LiveLog:
        live = LiveLog(turn, self._note_growth)
        self._live[turn.turn_id] = live
        return live

    async def follow(self, turn_id: str, after: Cursor = START) -> AsyncGenerator[Frame]:
        live = self._live.get(turn_id)
        if live is None:
            async with aclosing(self._follow_stored(turn_id, after)) as frames:
                async for frame in frames:
                    yield frame
            return
        if after.epoch < live.turn.epoch:
            async with aclosing(self._earlier_lives(live, after)) as frames:
                async for frame in frames:
                    yield frame
            after = Cursor(live.turn.epoch, 0)
        # Nothing of this epoch comes after a place in a later one.
        seen = after.seq if after.epoch == live.turn.epoch else NEVER
        async with aclosing(live.follow(seen)) as frames:
            async for frame in frames:
                yield frame

    async def run(self) -> None:
        """Store what grows, for ever."""
        pause = COALESCE_SECONDS
        while True:
            await self._wake.wait()
            await asyncio.sleep(pause)
            self._wake.clear()
            grown, self._grown = self._grown, {}
            try:
                await self._store(list(grown.values()))
                pause = COALESCE_SECONDS
            except (RedisError, OSError) as error:
                if not is_outage(error):
                    log.exception("turn logs cannot be stored")
                self._put_back(grown)
                pause = min(pause * 2, 2.0)

    def _put_back(self, logs: dict[str, LiveLog]) -> None:
        """Store these later. What turns said is in the database: of a long outage only the newest logs are kept."""
        self._grown = logs | self._grown
        for turn_id in [turn_id for turn_id, live in self._grown.items() if live.ended][:-KEEP_UNSTORED]:
            del self._grown[turn_id]
        self._wake.set()

    def _note_growth(self, live: LiveLog) -> None:
        self._grown[live.turn.turn_id] = live
        self._wake.set()
        if live.ended:
            asyncio.get_running_loop().call_later(KEEP_SECONDS, self._drop, live)

    def _drop(self, live: LiveLog) -> None:
        if self._live.get(live.turn.turn_id) is live:
            del self._live[live.turn.turn_id]

    async def _store(self, logs: list[LiveLog]) -> None:
        batch = [(live, entry) for live in logs for entry in live.to_store()]
        pipeline = self._redis.pipeline(transaction=False)
        for live, entry in batch:
            fields: Any = entry.fields
            pipeline.xadd(self._keys.turn(live.turn.turn_id), fields, id=f"{live.turn.epoch}-{entry.last}")
        for live in logs:
            pipeline.expire(self._keys.turn(live.turn.turn_id), LIFETIME_SECONDS)
        answers = await pipeline.execute(raise_on_error=False)
        refused: dict[str, str] = {}
        for (live, entry), answer in zip(batch, answers, strict=False):
            if not isinstance(answer, Exception):
                live.stored(entry.last)
            elif isinstance(answer, ResponseError) and "equal or smaller" in str(answer):
                # Redis has this number: our own append whose reply was lost, or a newer owner's.
                live.stored(entry.last)
            elif is_outage(answer):
                raise answer
            else:
                # It is tried again when it grows; the others are not held up by it.
                refused[live.turn.turn_id] = str(answer)
        for turn_id, reason in refused.items():
            log.error("the log of turn %s cannot be stored: %s", turn_id, reason)

    async def _earlier_lives(self, live: LiveLog, after: Cursor) -> AsyncGenerator[Frame]:
        """What Redis has of the turn's earlier epochs. Without Redis the present life is what can be told."""
        if live.turn.epoch == FIRST_EPOCH:
            return
        with contextlib.suppress(LogGoneError):
            async with aclosing(self._stored(live.turn.turn_id, after, before_epoch=live.turn.epoch)) as frames:
                async for frame in frames:
                    yield frame

    async def _follow_stored(self, turn_id: str, after: Cursor) -> AsyncGenerator[Frame]:
        seen_any = after != START
        while True:
            ended = False
            async with aclosing(self._stored(turn_id, after)) as frames:
                async for frame in frames:
                    seen_any = True
                    after = Cursor.parse(frame.id)
                    ended = frame.name == DONE
                    yield frame
            if ended or not seen_any:
                if not seen_any:
                    raise LogGoneError(turn_id)
                return
            if await self._ended_before(turn_id, after):
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _ended_before(self, turn_id: str, after: Cursor) -> bool:
        """Whether the reader has seen the last entry of an ended turn, or the log has gone."""
        try:
            newest = await self._newest(turn_id)
        except (RedisError, OSError) as error:
            raise LogGoneError(turn_id) from error
        if not newest:
            raise LogGoneError(turn_id)
        [(entry_id, fields)] = newest
        return fields[b"event"].decode() == DONE and Cursor.parse(entry_id.decode()) <= after

    async def _newest(self, turn_id: str) -> Any:
        """The newest entry, in a list that is empty when there is none."""
        async with asyncio.timeout(READ_SECONDS):
            return await self._redis.xrevrange(self._keys.turn(turn_id), count=1)

    async def _stored(self, turn_id: str, after: Cursor, before_epoch: int | None = None) -> AsyncGenerator[Frame]:
        end = "+" if before_epoch is None else f"({before_epoch}-0"
        while True:
            try:
                async with asyncio.timeout(READ_SECONDS):
                    page: Any = await self._redis.xrange(self._keys.turn(turn_id), f"({after}", end, count=PAGE)
            except (RedisError, OSError) as error:
                raise LogGoneError(turn_id) from error
            for entry_id, fields in page:
                cursor = Cursor.parse(entry_id.decode())
                entry = entry_from_fields(cursor.seq, fields)
                seen = after.seq if after.epoch == cursor.epoch else 0
                yield entry.frame(cursor.epoch, seen)
                after = cursor
            if len(page) < PAGE:
                return
