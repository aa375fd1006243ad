"""The logs of all turns: those of this engine in memory and stored in Redis, all others read from Redis."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from callstream_runtime.loops import kept_running
from callstream_runtime.redis_errors import RedisUnavailable
from callstream_runtime.tracing import turn_ids
from dialog_engine.chat import events
from dialog_engine.chat.events import START, Batch, Cursor, Frame, LogGoneError, TurnFrames
from dialog_engine.chat.ports import TurnLogs
from dialog_engine.event_log.growing_log import Entry, batches_of
from dialog_engine.event_log.stored_logs import LogStore, LogTails
from dialog_engine.event_log.turn_log import LiveLog, LogTimes
from dialog_engine.model import Turn

log = logging.getLogger(__name__)

STORE_SECONDS = 0.05
"""How long entries are collected before they are stored together; clients of this engine get them at once."""
KEEP_UNSTORED = 1000
"""How many logs of ended turns are kept to be stored later, at most."""
READ_SECONDS = 3.0
"""How long Redis has to answer a reader."""
FIRST_EPOCH = 1


class RedisTurnLogs(TurnLogs, TurnFrames):
    """Opens, stores and follows the logs. Without `run` nothing is stored, and only logs in memory can be followed."""

    def __init__(self, store: LogStore, times: LogTimes = LogTimes()) -> None:
        self._store = store
        self._times = times
        self._tails = LogTails(self._store, times.idle)
        self._live: dict[str, LiveLog] = {}
        self._grown: dict[LiveLog, None] = {}
        self._wake = asyncio.Event()
        self._closed = False

    def open(self, turn: Turn) -> LiveLog:
        live = LiveLog(turn, self._note_growth, self._times)
        if earlier := self._live.get(turn.turn_id):
            earlier.release_readers()
        if self._closed:
            live.release_readers()
        self._live[turn.turn_id] = live
        if turn.epoch > FIRST_EPOCH:
            self._tails.move_readers(turn.turn_id)
        return live

    async def waited_for(self, turn: Turn) -> Mapping[str, str] | None:
        last = await self._newest(turn.turn_id)
        if last is None or last.epoch != turn.epoch - 1 or (waited := last.waits_for) is None:
            return None
        if live := self._live.get(turn.turn_id):
            live.continues = True
        return waited

    async def has_ended(self, turn: Turn) -> bool:
        last = await self._newest(turn.turn_id)
        return last is not None and last.epoch < turn.epoch and last.name == events.DONE

    def moved(self, turn: Turn) -> None:
        live = self._live.get(turn.turn_id)
        if live is not None and live.turn.epoch == turn.epoch:
            live.give_up()
            self._drop(live)

    def release_readers(self) -> None:
        """The engine shuts down: readers get the entries that are there, then their streams end. Storing continues."""
        self._closed = True
        for live in self._live.values():
            live.release_readers()
        self._tails.release_readers()

    def running(self, turn_id: str) -> Turn | None:
        live = self._live.get(turn_id)
        return None if live is None or live.ended else live.turn

    def follow(self, turn_id: str, after: Cursor = START) -> AsyncGenerator[Batch]:
        live = self._live.get(turn_id)
        if live is None or after.epoch > live.turn.epoch:
            return self._tails.follow(turn_id, after)
        if after.epoch < live.turn.epoch and live.turn.epoch > FIRST_EPOCH:
            return self._whole(live, after)
        return live.follow(after)

    async def kept(self, turn_id: str, after: Cursor = START) -> AsyncGenerator[Batch]:
        live = self._live.get(turn_id)
        if live is None:
            async with aclosing(self._read(turn_id, after)) as batches:
                async for batch in batches:
                    yield batch
            return
        if after.epoch < live.turn.epoch:
            async with aclosing(self._earlier(live, after)) as batches:
                async for batch in batches:
                    yield batch
            after = Cursor(live.turn.epoch, 0)
        while entries := live.since(after):
            for batch in batches_of(entries, after):
                yield batch
            after = entries[-1].cursor

    async def newest(self, turn_id: str) -> Frame | None:
        live = self._live.get(turn_id)
        if live is not None and live.last is not None:
            return live.last.frame
        entry = await self._newest(turn_id)
        return entry.frame if entry else None

    async def run(self) -> None:
        """Store the logs of this engine and read those of others, until cancelled."""
        async with kept_running(self._keep_stored, self._tails.run):
            await asyncio.Future()

    async def _newest(self, turn_id: str) -> Entry | None:
        """The last entry that Redis has; None also when it does not answer."""
        try:
            async with asyncio.timeout(READ_SECONDS):
                return await self._store.newest(turn_id)
        except (RedisUnavailable, TimeoutError):
            return None

    async def _whole(self, live: LiveLog, after: Cursor) -> AsyncGenerator[Batch]:
        """The rest of the turn's earlier epochs, then the current one. Raises LogGoneError."""
        async with aclosing(self._earlier(live, after)) as batches:
            async for batch in batches:
                yield batch
        async with aclosing(live.follow(Cursor(live.turn.epoch, 0))) as batches:
            async for batch in batches:
                yield batch

    async def _earlier(self, live: LiveLog, after: Cursor) -> AsyncGenerator[Batch]:
        """What Redis has of the turn's earlier epochs. All of it may be missing, or not be readable now, if the current
        epoch begins with a reset. Raises LogGoneError: it does not, or a part was read."""
        if live.turn.epoch == FIRST_EPOCH:
            return
        is_read = False
        try:
            async with aclosing(self._read(live.turn.turn_id, after, before_epoch=live.turn.epoch)) as batches:
                async for batch in batches:
                    yield batch
                    is_read = True
        except LogGoneError:
            if is_read or live.continues:
                raise
        if live.continues and after == START and not is_read:
            raise LogGoneError(f"the earlier epochs of turn {live.turn.turn_id} are not kept any more")

    async def _read(self, turn_id: str, after: Cursor, before_epoch: int | None = None) -> AsyncGenerator[Batch]:
        nothing = before_epoch is None and after == START
        try:
            async with aclosing(self._store.read(turn_id, after, before_epoch=before_epoch)) as pages:
                while True:
                    async with asyncio.timeout(READ_SECONDS):
                        page = await anext(pages, None)
                    if page is None:
                        break
                    nothing = False
                    for batch in batches_of(page, after):
                        yield batch
                    after = page[-1].cursor
        except (RedisUnavailable, TimeoutError) as error:
            raise LogGoneError(str(error)) from error
        if nothing:
            raise LogGoneError(f"there is no log of turn {turn_id}")

    async def _keep_stored(self) -> None:
        pause = STORE_SECONDS
        look_at = time.monotonic() + self._times.look
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, look_at - time.monotonic())):
                    await self._wake.wait()
            await asyncio.sleep(pause)
            self._wake.clear()
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + self._times.look
                self._grown |= dict.fromkeys(self._live.values())
            grown, self._grown = self._grown, {}
            try:
                await self._append([*grown])
                pause = STORE_SECONDS
            except RedisUnavailable:
                self._put_back(grown)
                pause = min(pause * 2, 2.0)

    def _put_back(self, logs: dict[LiveLog, None]) -> None:
        """Store these later. In a long outage only the newest logs of ended turns are kept: the store has the turns."""
        self._grown = logs | self._grown
        for live in [live for live in self._grown if live.ended][:-KEEP_UNSTORED]:
            del self._grown[live]
        self._wake.set()

    def _note_growth(self, live: LiveLog) -> None:
        self._grown[live] = None
        self._wake.set()
        if live.ended:
            asyncio.get_running_loop().call_later(self._times.keep, self._drop, live)

    def _drop(self, live: LiveLog) -> None:
        if self._live.get(live.turn.turn_id) is live:
            del self._live[live.turn.turn_id]

    async def _append(self, logs: list[LiveLog]) -> None:
        """Store the entries that Redis does not have.

        Raises:
            RedisUnavailable: Redis cannot be written now.
        """
        for live, last in zip(logs, await self._store.append(logs), strict=True):
            match last:
                case Cursor(epoch) if epoch > live.turn.epoch:
                    log.warning(
                        "turn %s is owned by another engine in epoch %d",
                        live.turn.turn_id,
                        epoch,
                        extra=turn_ids(live.turn),
                    )
                    live.give_up()
                    self._drop(live)
                case Cursor(epoch, seq):
                    count = seq if epoch == live.turn.epoch else 0
                    if count < live.stored:
                        text = "Redis has lost log entries of turn %s: storing them again"
                        log.warning(text, live.turn.turn_id, extra=turn_ids(live.turn))
                    live.set_stored(count)
                    if live.to_store():
                        self._note_growth(live)
                case RedisUnavailable():
                    raise last
                case error:
                    # It is retried when it grows. The other logs are not held up.
                    log.error(
                        "the log of turn %s cannot be stored: %s", live.turn.turn_id, error, extra=turn_ids(live.turn)
                    )
