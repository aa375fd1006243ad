"""Turns that nobody reads any more: they are cancelled, where that was asked for with the turn. A message that still
waits for the turns before its own is withdrawn.

The engine that runs a turn decides, and of a message each engine that had a reader of it. An engine knows its own
readers, and asks about those of others over `dialog.control`, which it hears itself: a question that it has heard, and
that nobody has answered until the next look, says that no engine has a reader. While Redis is away it hears nothing,
and cancels nothing.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from callstream_runtime.outage_log import OutageLog
from callstream_runtime.tracing import turn_ids
from dialog_engine.chat.events import Readers
from dialog_engine.chat.ports import Control
from dialog_engine.chat.running_turn import RunningTurn
from dialog_engine.chat.turns import RunningTurns
from dialog_engine.errors import StorageUnavailableError, TurnNotFoundError, TurnStartedError
from dialog_engine.model import Leaving, Turn

log = logging.getLogger(__name__)

KEPT_LOOKS = 3
"""For how many looks it is known that a reader was there: until other engines have asked for it."""


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
        ends_when_left: Callable[[str], Awaitable[bool]],
        times: LeavingTimes = LeavingTimes(),
        *,
        all_answer: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ends_when_left`: as in `AskedResponses`. `all_answer`: whether no engine of an earlier release lives, which
        would not answer. `clock` is that of the readers and turns, in seconds."""
        self._turns = turns
        self._readers = readers
        self._control = control
        self._ends_when_left = ends_when_left
        self._times = times
        self._all_answer = all_answer
        self._watched: dict[str, Watch] = {}
        self._clock, self._looked_at = clock, clock()
        self._outages = OutageLog(log, "ending turns that nobody reads")

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(self._times.look)
            for left in self.look():
                await self._end(left)

    def look(self) -> Sequence[Turn]:
        """The turns and messages that have been left. Asks who reads what nobody reads here."""
        running = {each.turn.turn_id: each for each in self._turns if each.turn.leaving}
        for turn_id in running:
            self._readers.messages.pop(turn_id, None)  # it has begun here
        turns = [*(each.turn for each in running.values()), *self._readers.messages.values()]
        self._watched = {
            each.turn_id: self._watch(each, each.leaving, running.get(each.turn_id)) for each in turns if each.leaving
        }
        now = self._clock()
        left = [each for each in turns if self._is_left(each, running.get(each.turn_id), now)]
        self._looked_at = now
        self._readers.forget(now - KEPT_LOOKS * self._times.look)
        return left

    async def _end(self, left: Turn) -> None:
        """Cancel the turn, unless a later request that went on with it has said otherwise, or withdraw its message.

        Not while this engine shuts down: its readers are sent to others, and the grace begins again there.
        """
        if self._turns.queue.closed:
            return
        running = next((each for each in self._turns if each.turn is left), None)
        try:
            if running is None:
                await self._withdraw(left)
            elif await self._ends_when_left(left.turn_id) and not running.waits_for_user:
                log.info("a turn is cancelled: nobody reads it any more", extra=turn_ids(left))
                running.stop()
        except StorageUnavailableError as error:
            self._outages.failed(error)  # the next look finds it
        else:
            self._outages.worked()

    async def _withdraw(self, message: Turn) -> None:
        """Withdraw a message, unless its turn has begun: the engine that runs it watches it from its beginning."""
        with suppress(TurnStartedError, TurnNotFoundError):
            session_id = await self._turns.queue.withdraw(message.subject, message.turn_id)
            log.info("a message is withdrawn: nobody waits for its turn any more", extra=turn_ids(message))
            await self._turns.begin_next(session_id)
        self._readers.messages.pop(message.turn_id, None)

    def _watch(self, turn: Turn, leaving: Leaving, running: RunningTurn | None) -> Watch:
        known = self._watched.get(turn.turn_id)
        if known and known.epoch == turn.epoch:
            return known
        grace = max(leaving.seconds, self._times.adopted) if running and running.is_adopted else leaving.seconds
        return Watch(turn.epoch, grace, leaving.asleep)

    def _is_left(self, turn: Turn, running: RunningTurn | None, now: float) -> bool:
        watch = self._watched[turn.turn_id]
        # A reader may come and leave between two looks. One that has left while the turn waited has read nothing since.
        since = max(self._looked_at, running.runs_since) if running else self._looked_at
        if running and running.waits_for_user:
            watch.sleep()
        elif self._readers.read_since(turn.turn_id, since):
            watch.read()
        elif not self._all_answer():
            watch.forget()
        else:
            watch.asks(now)
            if watch.is_left(now):
                return True
            self._control.who_reads(turn.turn_id, now - since)
        return False

    def asked(self, turn_id: str, within: float) -> None:
        """An engine asks who reads the turn, or has read it within so many seconds: perhaps this one."""
        if self._readers.read_since(turn_id, self._clock() - within):
            self._control.reads(turn_id)
        if watch := self._watched.get(turn_id):
            watch.heard = True

    def answered(self, turn_id: str) -> None:
        """An engine has a reader of the turn, or had one since the look before."""
        if watch := self._watched.get(turn_id):
            watch.read()
