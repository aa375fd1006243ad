"""The logs of turns, in memory."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable

import msgspec

from dialog_engine.chat import events
from dialog_engine.chat.events import START, Batch, Cursor, Frame, LogGoneError, TurnFrames
from dialog_engine.chat.ports import TurnLog, TurnLogs
from dialog_engine.model import (
    Turn,
    TurnEvent,
)


class MemoryLog(TurnLog):
    """The log of one life of a turn."""

    def __init__(self, turn: Turn, on_growth: Callable[[], None]) -> None:
        self.turn = turn
        self.events: list[TurnEvent] = []
        self.closed = False
        self._on_growth = on_growth

    def append(self, event: TurnEvent) -> None:
        self.events.append(event)
        self._on_growth()

    async def close(self) -> None:
        self.closed = True
        self._on_growth()


class MemoryLogs(TurnLogs, TurnFrames):
    """The logs of all turns; they outlive the engines of a test."""

    def __init__(self) -> None:
        self.lives: dict[str, list[MemoryLog]] = defaultdict(list)
        self._grown = asyncio.Event()

    def moved(self, turn: Turn) -> None:
        self.lives[turn.turn_id][-1].closed = True
        self._grew()

    def open(self, turn: Turn) -> MemoryLog:
        log = MemoryLog(turn, self._grew)
        self.lives[turn.turn_id].append(log)
        return log

    async def follow(self, turn_id: str, after: Cursor = START) -> AsyncGenerator[Batch]:
        if turn_id not in self.lives:
            raise LogGoneError(turn_id)
        while True:
            grown = self._grown
            if batch := self._frames(turn_id, after):
                yield batch
                after = Cursor.parse(batch[-1].id)
            elif self.lives[turn_id][-1].closed:
                return
            else:
                await grown.wait()

    async def kept(self, turn_id: str, after: Cursor = START) -> AsyncGenerator[Batch]:
        if turn_id not in self.lives:
            raise LogGoneError(turn_id)
        if batch := self._frames(turn_id, after):
            yield batch

    async def newest(self, turn_id: str) -> Frame | None:
        batch = self._frames(turn_id, START) if turn_id in self.lives else None
        return batch[-1] if batch else None

    def running(self, turn_id: str) -> Turn | None:
        life = self.lives[turn_id][-1] if turn_id in self.lives else None
        return None if life is None or life.closed else life.turn

    def _frames(self, turn_id: str, after: Cursor) -> list[Frame]:
        encoded = [(cursor, *events.encode(event)) for cursor, event in self._after(turn_id, after)]
        return [Frame(str(cursor), name, msgspec.json.encode(data).decode()) for cursor, name, data in encoded]

    def _after(self, turn_id: str, after: Cursor) -> list[tuple[Cursor, TurnEvent]]:
        story = [
            (Cursor(life.turn.epoch, number), event)
            for life in self.lives[turn_id]
            for number, event in enumerate(life.events, 1)
        ]
        return [(cursor, event) for cursor, event in story if cursor > after]

    def _grew(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()
