"""Turns that nobody reads any more: they are cancelled, where that was asked for with the turn.

The engine that runs a turn decides. It knows its own readers, and asks about those of others over `dialog.control`,
which it hears itself: a question that it has heard, and that nobody has answered until the next look, says that no
engine has a reader. While Redis is away it hears nothing, and cancels nothing.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from callstream_runtime.tracing import turn_ids
from dialog_engine.chat.events import Readers
from dialog_engine.chat.ports import Control
from dialog_engine.chat.running_turn import RunningTurn
from dialog_engine.chat.turns import RunningTurns
from dialog_engine.model import Leaving, Turn

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeavingTimes:
    """The times of turns that are left, in seconds."""

    grace: float = 5.0
    """How long a turn runs on after its last reader has left, where its request does not say."""
    adopted: float = 20.0
    """The same at least, after another engine has adopted it: its readers have to find it there."""
    look: float = 1.0
    """How often the readers of a turn are looked for, and how long an engine has to answer for its own."""


@dataclass(slots=True)
class Watch:
    """What is known of the readers of one turn. Pure: `now` is on a monotonic clock, in seconds."""

    epoch: int
    grace: float
    asleep: bool
    """It has waited for its user, and nobody has read it since: then it is not cancelled."""
    asked_at: float | None = None
    """When this engine has asked the others, and was not answered since."""
    heard: bool = False
    """Whether it has heard that question itself."""
    unread_since: float | None = None

    def read(self) -> None:
        """Somebody reads the turn."""
        self.forget()
        self.asleep = False

    def sleep(self) -> None:
        """The turn waits for its user."""
        self.forget()
        self.asleep = True

    def forget(self) -> None:
        """It is not known whether somebody reads the turn."""
        self.asked_at = self.unread_since = None

    def asks(self, now: float) -> None:
        """Nobody reads the turn here, and the others are asked."""
        if self.asked_at is None or not self.heard:
            self.unread_since = None
        elif self.unread_since is None:
            self.unread_since = self.asked_at
        self.asked_at, self.heard = now, False

    def is_left(self, now: float) -> bool:
        """Whether the last reader has left for good."""
        return not self.asleep and self.unread_since is not None and now - self.unread_since >= self.grace


class LeftTurns:
    """Cancels the turns of this engine that nobody reads any more, and answers for the readers that it has."""

    def __init__(
        self,
        turns: RunningTurns,
        readers: Readers,
        control: Control,
        times: LeavingTimes = LeavingTimes(),
        *,
        all_answer: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`all_answer`: whether no engine of an earlier release lives, which would not answer."""
        self._turns = turns
        self._readers = readers
        self._control = control
        self._times = times
        self._all_answer = all_answer
        self._clock = clock
        self._watched: dict[str, Watch] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(self._times.look)
            self.look()

    def look(self) -> None:
        """Cancel what has been left, and ask who reads what nobody reads here."""
        watched = [(each, self._watch(each.turn, each.turn.leaving)) for each in self._turns if each.turn.leaving]
        self._watched = {each.turn.turn_id: watch for each, watch in watched}
        for each, watch in watched:
            self._look_at(each, watch)

    def _watch(self, turn: Turn, leaving: Leaving) -> Watch:
        known = self._watched.get(turn.turn_id)
        if known and known.epoch == turn.epoch:
            return known
        grace = leaving.seconds if turn.epoch == 1 else max(leaving.seconds, self._times.adopted)
        return Watch(turn.epoch, grace, leaving.asleep)

    def _look_at(self, running: RunningTurn, watch: Watch) -> None:
        now, turn = self._clock(), running.turn
        if running.waits_for_user:
            watch.sleep()
        elif turn.turn_id in self._readers:
            watch.read()
        elif not self._all_answer():
            watch.forget()
        else:
            watch.asks(now)
            if watch.is_left(now):
                log.info("a turn is cancelled: nobody reads it any more", extra=turn_ids(turn))
                running.stop()
            else:
                self._control.who_reads(turn.turn_id)

    def asked(self, turn_id: str) -> None:
        """An engine asks who reads the turn: perhaps this one."""
        if turn_id in self._readers:
            self._control.reads(turn_id)
        if watch := self._watched.get(turn_id):
            watch.heard = True

    def answered(self, turn_id: str) -> None:
        """An engine has a reader of the turn."""
        if watch := self._watched.get(turn_id):
            watch.read()
