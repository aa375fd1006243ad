"""The log of a running turn: in memory for the clients of this engine, and stored in Redis for all others."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dialog_engine.chat import events
from dialog_engine.chat.events import Cursor
from dialog_engine.chat.ports import TurnLog
from dialog_engine.event_log.growing_log import Entry, GrowingLog, entry_of
from dialog_engine.model import ReasoningDelta, TextDelta, Turn, TurnEvent

COALESCE_SECONDS = 0.025
"""How long deltas of one kind are collected into one entry, from the previous entry on."""
STORED_AT_ONCE = 500
"""How many entries one command stores: Redis serves nothing else while it runs."""


@dataclass(frozen=True, slots=True)
class LogTimes:
    """The times of the logs of turns, in seconds."""

    look: float = 5.0
    """How often every log in memory is checked: that Redis still has it, and keeps it."""
    keep: float = 60.0
    """How long the log of an ended turn stays in memory for clients that reconnect."""
    close: float = 2.0
    """How long the end of a turn waits until its log is stored; the log stays in memory after that."""
    idle: float = events.IDLE_SECONDS
    """How long a reader waits for an event before it gets an empty batch."""


class LiveLog(GrowingLog, TurnLog):
    """Written by the turn's owner. It holds its whole epoch, so entries that Redis has lost can be stored again.

    An entry and its id never change. Deltas that follow an entry of their kind within COALESCE_SECONDS are collected
    until that time is over and become one entry; any other event is an entry at once, after the deltas that wait.
    """

    def __init__(self, turn: Turn, on_growth: Callable[["LiveLog"], None], times: LogTimes = LogTimes()) -> None:
        """`on_growth` is called after each entry and at the end; it must not block."""
        super().__init__(times.idle)
        self._close_seconds = times.close
        self.turn = turn
        self.ended = False
        self.stored = 0
        """How many entries of this epoch Redis has, from the first one on."""
        self.continues = False
        """Whether its first entry is the next one of the epoch before it."""
        self._on_growth = on_growth
        self._count = 0
        self._kind = ""
        """The kind of the last delta: deltas of this kind wait until `_free_at`."""
        self._free_at = 0.0
        self._waiting: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._all_stored: asyncio.Future[None] | None = None
        """Set while `settle` waits for it."""

    @property
    def last(self) -> Entry | None:
        """The last entry."""
        return self._entries.last

    def since(self, place: Cursor) -> list[Entry]:
        """Entries after `place`, up to a limit."""
        return self._entries.since(place)

    def to_store(self) -> list[Entry]:
        """Entries that Redis does not have, STORED_AT_ONCE or a few more at most."""
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

    async def settle(self) -> None:
        self._flush()
        try:
            async with asyncio.timeout(self._close_seconds):
                if self.stored < self._count:
                    self._all_stored = asyncio.get_running_loop().create_future()
                    await self._all_stored
        except TimeoutError:
            pass  # Redis is unavailable: the entries stay in memory and are stored when it is back

    async def close(self) -> None:
        await self.settle()
        if not self.ended:
            self._end()
            self._on_growth(self)

    def release_readers(self) -> None:
        self._flush()
        super().release_readers()

    def set_stored(self, count: int) -> None:
        """Redis has exactly the first `count` entries of this epoch."""
        self.stored = count
        if count >= self._count and self._all_stored and not self._all_stored.done():
            self._all_stored.set_result(None)

    def give_up(self) -> None:
        """Another engine has taken the turn over: nothing more is stored, and the readers move to its log."""
        self._end()
        self.set_stored(self._count)

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
        """Make one entry of the deltas that wait."""
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
        self.release_readers()
        self.ended = True
