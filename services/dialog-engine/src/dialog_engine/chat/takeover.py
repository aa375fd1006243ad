"""Keeps the leases of the turns that run here, and takes over those that an earlier life, or other engines, left."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from dialog_engine.chat.copies import SessionCopy, TurnRow
from dialog_engine.chat.departures import Departures
from dialog_engine.chat.journal import Journal, NotSharedError
from dialog_engine.chat.orphans import Orphans
from dialog_engine.chat.outbox import OutboxRow
from dialog_engine.chat.ports import UnfinishedTurns
from dialog_engine.chat.runs import (
    LocalCopies,
    NotTaken,
    Renewal,
    Run,
    Runs,
    RunsUnavailableError,
    SharedCopies,
    Taken,
)
from dialog_engine.chat.turns import RunningTurns
from dialog_engine.errors import StorageUnavailableError, TurnCrashesError, TurnOvertakenError
from dialog_engine.model import Turn

log = logging.getLogger(__name__)

LEASE_SECONDS = 10.0
RENEW_SECONDS = 2.5
LOOK_SECONDS = 1.0
MAX_CUT_SHORT = 5
"""A turn is given up after so many lives in a row that ended at once: it may well be what its engines die of, and takes
all other turns there with it. Fewer may be an accident, such as a machine that has no memory left."""
NOBODY = Run("", "", 0, ended=False)


class Takeover:
    """Which turns this engine runs. `steady_for` tells for how many seconds Redis has been well."""

    def __init__(
        self,
        turns: RunningTurns,
        store: UnfinishedTurns,
        *,
        engine_id: str,
        runs: Runs,
        shared: SharedCopies,
        local: LocalCopies,
        journal: Journal,
        orphans: Orphans,
        offer: Callable[[Sequence[OutboxRow]], None],
        steady_for: Callable[[], float],
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`note` is told when a turn changes its owner: by a "restart", a "takeover", or "lost" to another engine."""
        self._turns = turns
        self._store = store
        self._engine_id = engine_id
        self._runs = runs
        self._shared = shared
        self._local = local
        self._journal = journal
        self.departures = Departures(turns, shared=shared, local=local, note=note)
        self._orphans = orphans
        self._offer = offer
        self._steady_for = steady_for
        self._note = note
        self._left: dict[str, Turn] = {}
        self._taking_up = asyncio.Lock()
        self._retired = False

    def in_doubt(self, turn_id: str) -> bool:
        """Whether the turn is in this engine's file as its own, and another engine has it, or may have."""
        return turn_id in self._left or turn_id in self.departures

    async def resume(self) -> None:
        """Take up the turns that an earlier life of this engine left, unless others have. With Redis away nobody can
        tell: they wait until it is back."""
        self._left = {turn.turn_id: turn for turn in await self._store.unfinished()}
        await self._take_up_left()

    def retire(self) -> None:
        """Take nothing more over: this engine goes down, and what it gives up is for others."""
        self._retired = True

    async def release(self, turns: Sequence[Turn]) -> None:
        """Let others have turns that this engine leaves unfinished as it goes down."""
        with suppress(RunsUnavailableError, NotSharedError):
            await self._journal.settled()
            for turn in turns:
                await self._runs.give_up(turn)

    async def run(self) -> None:
        """Do it, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._again(self._renew, RENEW_SECONDS, 0.1), name="run leases")
            tasks.create_task(self._again(self._look, LOOK_SECONDS, 0.25), name="turns left by others")
            tasks.create_task(self.departures.run(), name="turns that moved")

    async def _again(self, step: Callable[[], Awaitable[None]], seconds: float, spread: float) -> None:
        while True:
            await asyncio.sleep(seconds * random.uniform(1 - spread, 1 + spread))
            try:
                await step()
            except (RunsUnavailableError, NotSharedError):
                pass  # nobody else can take a turn over now either
            except StorageUnavailableError as error:
                log.warning("turns cannot be taken over now: %s", error)
            except Exception:
                log.exception("turns cannot be looked after")

    async def _renew(self) -> None:
        turns = self._turns.running()
        for turn, renewal in zip(turns, await self._runs.renew(turns), strict=True):
            match renewal:
                case Renewal.KEPT:
                    pass
                case Renewal.STOP:
                    self._turns.stop(turn.turn_id)
                case Renewal.MOVED:
                    self.departures.moved(turn.turn_id, turn.epoch)
                case Renewal.GONE:
                    if self._turns.runs(turn.turn_id):
                        await self._journal.share_whole(turn)

    async def _look(self) -> None:
        if self._retired:
            return
        await self._take_up_left()
        free = list(await self._runs.given_up())
        steady = self._steady_for() >= LEASE_SECONDS
        if steady:
            # Before that, engines that live may not have had the time to renew their leases.
            free += await self._runs.run_out()
        for turn_id in free:
            # What moved from here is taken back only when all that was committed of it here is forgotten.
            if not self._turns.runs(turn_id) and not self.in_doubt(turn_id):
                await _by_itself(turn_id, self._take_over(turn_id))
        if steady:
            for session_id, turn_id in await self._orphans.some():
                await _by_itself(turn_id, self._orphans.look(session_id, turn_id))
        await self.departures.look_for_deleted()

    async def _take_over(self, turn_id: str) -> None:
        run = await self._runs.look(turn_id) or NOBODY
        taken = await self._runs.take(turn_id, run)
        if isinstance(taken, NotTaken):
            return
        turn = Turn(turn_id, run.session_id, "", taken.epoch)
        try:
            await self._bring_in(turn, taken)
        except (RunsUnavailableError, StorageUnavailableError, asyncio.CancelledError):
            with suppress(RunsUnavailableError):
                await self._runs.give_up(turn)
            raise
        # Whatever else went wrong would go wrong again: others, which may do better, have it when the lease runs out.

    async def _bring_in(self, turn: Turn, taken: Taken) -> None:
        copy = await self._shared.whole(turn.session_id)
        found = await self._local.take_over(copy, turn.turn_id, taken.epoch) if isinstance(copy, SessionCopy) else None
        if found is None:
            log.info("turn %s was never committed: its engine went away before", turn.turn_id)
            await self._runs.withdraw(turn)
            return
        turn, rows = found
        log.info("turn %s is taken over in epoch %d", turn.turn_id, turn.epoch)
        self._note("takeover")
        self._journal.taken_over(turn.turn_id)
        self._turns.own(turn, stopped=taken.stopped, failure=_crashes(taken))
        self._offer(rows)

    async def _take_up_left(self) -> None:
        """What an earlier life committed is shared first, in its epoch."""
        if not self._left:
            return
        with suppress(RunsUnavailableError, NotSharedError):
            await self._journal.settled()
            async with self._taking_up:  # the start is at it, and may take longer than the first look comes
                for turn in list(self._left.values()):
                    if await _by_itself(turn.turn_id, self._take_up(turn)):
                        del self._left[turn.turn_id]

    async def _take_up(self, turn: Turn) -> None:
        run = await self._runs.look(turn.turn_id)
        if run is not None and (run.ended or run.engine_id != self._engine_id):
            self.departures.moved(turn.turn_id, turn.epoch)
            return
        overtaken = await self._overtaken(turn)
        taken = Taken(turn.epoch + 1, stopped=False)
        if run is not None:
            answer = await self._runs.take(turn.turn_id, run)
            if isinstance(answer, NotTaken):
                self.departures.moved(turn.turn_id, turn.epoch)
                return
            taken = answer
        turn = await self._store.go_on(turn, taken.epoch)
        if run is None:
            await self._journal.share_whole(turn)
        log.info("turn %s goes on in epoch %d", turn.turn_id, turn.epoch)
        self._note("restart")
        self._turns.own(turn, stopped=taken.stopped, failure=_crashes(taken) or overtaken)

    async def _overtaken(self, turn: Turn) -> TurnOvertakenError | None:
        """Another engine, which could not know of the turn, may have withdrawn it, and the session may have gone on:
        what was asked for was asked for again by then, or is not wanted any more."""
        copy = await self._shared.whole(turn.session_id)
        if not isinstance(copy, SessionCopy):
            return None
        begun = {row.turn_id: row.created_at for row in copy.rows if isinstance(row, TurnRow)}
        if max(begun.values(), default=0) <= begun.get(turn.turn_id, 0):
            return None
        return TurnOvertakenError("the session went on without this turn while its engine was away: ask again")


async def _by_itself(turn_id: str, work: Awaitable[None]) -> bool:
    """Whether it was done. A turn with which something is wrong, such as rows of a later release, holds up no other."""
    try:
        await work
    except (RunsUnavailableError, NotSharedError, StorageUnavailableError):
        raise  # it is so for every turn
    except Exception:
        log.exception("turn %s cannot be looked after", turn_id)
        return False
    return True


def _crashes(taken: Taken) -> TurnCrashesError | None:
    if taken.cut_short < MAX_CUT_SHORT:
        return None
    return TurnCrashesError(f"{taken.cut_short} times in a row its engine died soon after it had taken this turn up")
