"""The log of a running turn: in memory for the clients that are attached, on its way to Redis for all others."""

import asyncio
from collections.abc import Callable
from typing import Any

from dialog_engine.chat import events
from dialog_engine.chat.events import Cursor
from dialog_engine.chat.ports import TurnLog
from dialog_engine.event_log.growing_log import Entry, GrowingLog, entry_of
from dialog_engine.model import ReasoningDelta, TextDelta, Turn, TurnEvent

COALESCE_SECONDS = 0.025
"""How long deltas of one kind are collected for one entry, counted from the entry before it."""
STORED_AT_ONCE = 500
"""How many entries are sent to Redis in one command: while it runs, Redis does nothing else."""
CLOSE_SECONDS = 2.0
"""How long the end of a turn waits for Redis; the log stays in memory for a while whatever happens."""


class LiveLog(GrowingLog, TurnLog):
    """Written by the turn's owner. It holds its whole epoch, so what Redis has lost can be stored again from here.

    Each entry gets its id when it is made, and neither the id nor the entry changes afterwards. A delta that follows
    an entry of its own kind within COALESCE_SECONDS waits for the rest of that time, so that the deltas of that time
    become one entry; any other event is an entry at once, after the deltas that wait.
    """

    def __init__(self, turn: Turn, on_growth: Callable[["LiveLog"], None]) -> None:
        super().__init__()
        self.turn = turn
        self.ended = False
        self.stored = 0
        """How many entries, from the first one on, Redis has."""
        self._on_growth = on_growth
        self._count = 0
        self._kind = ""
        """The kind of deltas that may have to wait, until `_free_at`."""
        self._free_at = 0.0
        self._waiting: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._all_stored: asyncio.Future[None] | None = None
        """There is one while the end of the turn waits for it."""

    @property
    def last(self) -> Entry | None:
        """The last entry."""
        return self._entries.last

    def since(self, place: Cursor) -> list[Entry]:
        """What a reader at `place` has not seen, or the first of it."""
        return self._entries.since(place)

    def to_store(self) -> list[Entry]:
        """What Redis does not have yet, or the first of it."""
        found: list[Entry] = []
        place = Cursor(self.turn.epoch, self.stored)
        while len(found) < STORED_AT_ONCE and (some := self._entries.since(place)):
            found += some
            place = some[-1].cursor
        return found

    def append(self, event: TurnEvent) -> None:
        """Add an event, unless the log has ended."""
        if self.ended:
            return
        match event:
            case TextDelta(text):
                self._append_delta(events.TEXT, text)
            case ReasoningDelta(text):
                self._append_delta(events.REASONING, text)
            case _:
                self._flush()
                self._kind = ""
                self._append_entry(*events.encode(event))

    async def close(self) -> None:
        self._flush()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                if self.stored < self._count:
                    self._all_stored = asyncio.get_running_loop().create_future()
                    await self._all_stored
        except TimeoutError:
            pass  # Redis is away: the entries stay here, and are stored when it is back
        if not self.ended:
            self._end()
            self._on_growth(self)

    def let_go(self) -> None:
        self._flush()
        super().let_go()

    def redis_has(self, count: int) -> None:
        """Redis has so many entries of this epoch, from the first one on, and no others of it."""
        self.stored = count
        if count >= self._count and self._all_stored and not self._all_stored.done():
            self._all_stored.set_result(None)

    def give_up(self) -> None:
        """Another engine has taken the turn over: nothing of this is stored any more, and its readers go there."""
        self._end()
        self.redis_has(self._count)

    def _append_delta(self, kind: str, text: str) -> None:
        loop = asyncio.get_running_loop()
        if kind == self._kind and loop.time() < self._free_at:
            if not self._waiting:
                self._timer = loop.call_at(self._free_at, self._flush)
            self._waiting.append(text)
            return
        self._flush()
        self._kind, self._free_at = kind, loop.time() + COALESCE_SECONDS
        self._append_entry(kind, {"delta": text})

    def _flush(self) -> None:
        """Make an entry of the deltas that wait."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        text = "".join(self._waiting)
        self._waiting.clear()
        self._free_at = asyncio.get_running_loop().time() + COALESCE_SECONDS
        self._append_entry(self._kind, {"delta": text})

    def _append_entry(self, name: str, data: dict[str, Any]) -> None:
        self._count += 1
        self._add([entry_of(self.turn.epoch, self._count, name, data)])
        if name == events.DONE:
            self._end()
        self._on_growth(self)

    def _end(self) -> None:
        self.let_go()
        self.ended = True
