"""Which turns this engine runs: keeps its lease, and adopts the turns of engines that are gone.

An engine is taken for dead when its lease has stayed the same for LEASE_SECONDS on the clock of the engine that looks,
and the database answered all that time. No two clocks are compared: whatever is done to the clock of the database or
of a machine, an engine that renews its lease is alive, and one that does not is dead. A mistake does no harm: each
write of a turn is fenced by its owner and epoch.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence

from dialog_engine.chat.outbox import OfferRows
from dialog_engine.chat.ports import Adopted, Engines, SeenEngine
from dialog_engine.chat.turns import RunningTurns
from dialog_engine.errors import StorageUnavailableError, TurnCrashesError

log = logging.getLogger(__name__)

LEASE_SECONDS = 10.0
RENEW_SECONDS = 2.5
LOOK_SECONDS = 1.0
ADOPT_AT_ONCE = 16
"""Turns of one transaction: several engines share what a dead one left."""
MAX_CRASHES = 5
"""A turn is given up after so many owners in a row that died soon after they had taken it: it may well be what they die
of, and it takes all other turns there with it. Fewer may be an accident, such as a machine that has no memory left."""


class Ownership:
    """The lease of one engine, and its look at those of the others."""

    def __init__(
        self,
        turns: RunningTurns,
        engines: Engines,
        *,
        offer: OfferRows,
        note: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`note` is told of each turn that changes hands: "restart", "takeover", or "lost" to another engine. `clock`
        tells seconds."""
        self._turns = turns
        self._engines = engines
        self._offer = offer
        self._note = note
        self._clock = clock
        self._seen: dict[SeenEngine, float] = {}
        """Since when each lease of another engine has been as it is."""
        self._retired = False
        self._released = False
        self._lease = asyncio.Lock()

    async def start(self) -> None:
        """Take the lease, and go on with the turns that an earlier life of this engine left.

        Raises:
            StorageUnavailableError: the store cannot be written.
        """
        released = await self._engines.register(_ms(LEASE_SECONDS))
        self._own(await self._engines.adopt_own(None, released=released), "restart")

    def retire(self) -> None:
        """Adopt nothing more: this engine goes down."""
        self._retired = True

    async def release(self) -> None:
        """Let others have at once what this engine leaves unfinished as it goes down. It is not renewed any more."""
        async with self._lease:  # behind a renewal that is on its way, which would take the lease again
            self._released = True
            try:
                await self._engines.release()
            except StorageUnavailableError as error:
                log.warning("the lease cannot be given up and will run out: %s", error)

    async def run(self) -> None:
        """Renew and look, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._again(self.renew, RENEW_SECONDS), name="engine lease")
            tasks.create_task(self._again(self.look, LOOK_SECONDS), name="leases of other engines")

    async def renew(self) -> None:
        """Renew the lease, and see that the turns that run here are those that the store says so of.

        Raises:
            StorageUnavailableError: nothing can be seen now.
        """
        running = self._turns.running()
        async with self._lease:
            if self._released:
                return
            rows = await self._engines.renew(_ms(LEASE_SECONDS), self._turns.queue.turn_ids)
        owned = {(row.turn_id, row.epoch) for row in rows}
        doubtful = [turn for turn in running if (turn.turn_id, turn.epoch) not in owned]
        fenced = set(await self._engines.fenced(doubtful))
        for turn in doubtful:
            if turn.turn_id in fenced:
                log.info("turn %s is run by another engine", turn.turn_id)
                self._note("lost")
                await self._turns.drop(turn)
        # Such as a turn whose beginning was committed though the answer was lost.
        left = [row.turn_id for row in rows if not self._turns.knows(row.turn_id)]
        if left and not self._retired:
            self._own(await self._engines.adopt_own(left), "restart")

    async def look(self) -> None:
        """Stop what users want stopped, and adopt what dead engines left.

        Raises:
            StorageUnavailableError: nothing can be seen now.
        """
        for turn_id in await self._engines.stop_requests():
            self._turns.stop(turn_id)
        if self._retired:
            return
        for engine in self._dead(await self._engines.others()):
            await self._adopt_all(engine)

    async def _again(self, step: Callable[[], Awaitable[None]], seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds * random.uniform(0.75, 1.0))
            try:
                await step()
            except StorageUnavailableError as error:
                self._seen.clear()  # nobody could renew a lease meanwhile
                log.warning("leases cannot be seen to now: %s", error)
            except Exception:
                log.exception("leases cannot be seen to")

    def _dead(self, engines: Sequence[SeenEngine]) -> list[SeenEngine]:
        """Those that have gone down in good order, or have not renewed their lease for too long."""
        now = self._clock()
        self._seen = {engine: self._seen.get(engine, now) for engine in engines}
        return [engine for engine, since in self._seen.items() if engine.released or now - since >= LEASE_SECONDS]

    async def _adopt_all(self, engine: SeenEngine) -> None:
        while adopted := await self._engines.adopt(engine, ADOPT_AT_ONCE):
            self._own(adopted, "takeover")
        self._offer(await self._engines.remove(engine))

    def _own(self, adopted: Sequence[Adopted], how: str) -> None:
        for each in adopted:
            turn = each.turn
            log.info("turn %s goes on in epoch %d (%s)", turn.turn_id, turn.epoch, how)
            self._note(how)
            failure = None
            if each.crashes >= MAX_CRASHES:
                failure = TurnCrashesError(
                    f"{each.crashes} times in a row its engine died soon after it had taken this turn up"
                )
            self._turns.run(turn, stopped=each.stopped, failure=failure)
            self._offer(each.rows)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
