"""The logs of turns, in memory."""

from collections import defaultdict
from collections.abc import Mapping

from dialog_engine.chat.events import encode
from dialog_engine.chat.ports import TurnLog, TurnLogs
from dialog_engine.event_log.growing_log import entry_of
from dialog_engine.model import Done, Turn, TurnEvent, WaitingForUser


class MemoryLog(TurnLog):
    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.events: list[TurnEvent] = []
        self.closed = False

    def append(self, event: TurnEvent) -> None:
        self.events.append(event)

    async def settle(self) -> None:
        pass

    async def close(self) -> None:
        self.closed = True


class MemoryLogs(TurnLogs):
    """The logs of all turns, each life by itself; they outlive the engines of a test."""

    def __init__(self) -> None:
        self.lives: dict[str, list[MemoryLog]] = defaultdict(list)

    def moved(self, turn: Turn) -> None:
        self.lives[turn.turn_id][-1].closed = True

    async def waited_for(self, turn: Turn) -> Mapping[str, str] | None:
        *_, last, _ = [MemoryLog(turn), *self.lives[turn.turn_id]]
        [entry] = [entry_of(1, 1, *encode(event)) for event in last.events[-1:] or [WaitingForUser(0)]]
        return entry.waits_for

    async def has_ended(self, turn: Turn) -> bool:
        *_, last, _ = [MemoryLog(turn), *self.lives[turn.turn_id]]
        return isinstance((last.events or [None])[-1], Done)

    def open(self, turn: Turn) -> MemoryLog:
        log = MemoryLog(turn)
        self.lives[turn.turn_id].append(log)
        return log
