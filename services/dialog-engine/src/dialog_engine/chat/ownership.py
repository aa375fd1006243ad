"""Which turns this engine runs: it renews its lease, and adopts the turns of dead engines.

An engine counts as dead when its lease has not changed for its length on the monotonic clock of the engine that looks,
while the store answered. No two clocks are compared, so a clock that is set changes nothing. A wrong decision is
harmless: each write of a turn is fenced by its owner and epoch.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from callstream_runtime.loops import kept_running
from callstream_runtime.outage_log import OutageLog
from dialog_engine.chat.outbox import OutboxRelay
from dialog_engine.chat.ports import Adopted, Engines, SeenEngine
from dialog_engine.chat.turns import RunningTurns
from dialog_engine.errors import StorageUnavailableError, TurnCrashesError
from dialog_engine.model import ResetReason, Turn

log = logging.getLogger(__name__)

ADOPT_AT_ONCE = 16
"""How many turns one transaction adopts, so that several engines share those of a dead one."""
MAX_CRASHES = 5
"""A turn fails after this many owners in a row have died soon after getting it: it may be what kills them, and each
crash affects all turns of that engine. Fewer crashes may have another cause, such as a machine without memory."""


@dataclass(frozen=True, slots=True)
class OwnershipTimes:
    """The times of leases, in seconds. Every engine of a store must use the same `lease`."""

    lease: float = 10.0
    renew: float = 2.5
    look: float = 1.0
    """How often the leases of others are read."""


class OwnershipObserver:
    """Takes the facts of ownership, and does nothing with them. Its methods must not block and must not raise."""

    def moved(self, turn: Turn, how: str) -> None:
        """A turn has changed its owner: "restart", "takeover" (from a dead engine) or "lost" (to another engine)."""

    def renewed(self, seconds: float) -> None:
        """The engine's lease was renewed, which took so long."""

    def not_renewed(self) -> None:
        """The engine's lease could not be renewed, because the store did not answer."""

    def counted(self, engines: int) -> None:
        """So many engines share the store, including this one."""

    def adopted(self, engine: SeenEngine) -> None:
        """The turns of this engine, which is dead or has released its lease, were adopted here."""


class Ownership:
    """The lease of one engine, and its view of the leases of others."""

    def __init__(
        self,
        turns: RunningTurns,
        engines: Engines,
        *,
        relay: OutboxRelay,
        observer: OwnershipObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
        times: OwnershipTimes = OwnershipTimes(),
    ) -> None:
        """`clock` returns monotonic seconds."""
        self._times = times
        self._turns = turns
        self._engines = engines
        self._relay = relay
        self._observer = observer or OwnershipObserver()
        self._clock = clock
        self._seen: dict[SeenEngine, float] = {}
        """When each lease was first seen with this value, on `clock`."""
        self._retired = False
        self._released = False
        self._lease = asyncio.Lock()
        self._outages = OutageLog(log, "the store for leases")

    async def start(self) -> None:
        """Take the lease, and resume the turns that an earlier life of this engine left.

        Raises:
            StorageUnavailableError: the store cannot be written.
        """
        released = await self._engines.register(_ms(self._times.lease))
        self._resume(await self._engines.adopt_own(None, released=released), ResetReason.RESTART)

    def retire(self) -> None:
        """Adopt nothing more: this engine shuts down."""
        self._retired = True

    async def release(self) -> None:
        """Release the lease for good, so that others adopt the unfinished turns of this engine at once."""
        async with self._lease:  # after a renewal that has begun, which would take the lease again
            self._released = True
            try:
                await self._engines.release()
            except StorageUnavailableError as error:
                log.warning("the lease cannot be released and will expire: %s", error)

    async def run(self) -> None:
        """Renew the lease and look at those of others, until cancelled."""
        async with kept_running(
            partial(self._repeat, self.renew, self._times.renew), partial(self._repeat, self.look, self._times.look)
        ):
            await asyncio.Future()

    async def renew(self) -> None:
        """Renew the lease, drop running turns that the store has not, and resume those that only the store has.

        Raises:
            StorageUnavailableError: the store cannot be used now.
        """
        running = self._turns.running()
        async with self._lease:
            if self._released:
                return
            began = self._clock()
            try:
                rows = await self._engines.renew(_ms(self._times.lease))
            except StorageUnavailableError:
                self._observer.not_renewed()
                raise
            self._observer.renewed(self._clock() - began)
        owned = {(row.turn_id, row.epoch) for row in rows}
        doubtful = [turn for turn in running if (turn.turn_id, turn.epoch) not in owned]
        fenced = set(await self._engines.fenced(doubtful))
        lost = [turn for turn in doubtful if turn.turn_id in fenced]
        for turn in lost:
            self._observer.moved(turn, "lost")
        self._turns.drop(lost)
        # Such as a turn whose begin was committed though the answer was lost.
        left = [row.turn_id for row in rows if not self._turns.knows(row.turn_id)]
        if left and not self._retired:
            self._resume(await self._engines.adopt_own(left), ResetReason.RECOVERY)

    async def look(self) -> None:
        """Execute stop requests, and adopt the turns of dead engines.

        Raises:
            StorageUnavailableError: the store cannot be used now.
        """
        for turn_id in await self._engines.stop_requests():
            self._turns.stop(turn_id)
        if self._retired:
            return
        others = await self._engines.others()
        self._observer.counted(len(others) + 1)
        for engine in self._dead(others):
            await self._adopt_all(engine)

    async def _repeat(self, step: Callable[[], Awaitable[None]], seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds * random.uniform(0.75, 1.0))
            try:
                await step()
            except StorageUnavailableError as error:
                self._seen.clear()  # no engine could renew its lease
                self._outages.failed(error)
            else:
                self._outages.worked()

    def _dead(self, engines: Sequence[SeenEngine]) -> list[SeenEngine]:
        """The engines that have released their lease, or have not renewed it for its length."""
        now = self._clock()
        self._seen = {engine: self._seen.get(engine, now) for engine in engines}
        lease = self._times.lease
        return [engine for engine, since in self._seen.items() if engine.released or now - since >= lease]

    async def _adopt_all(self, engine: SeenEngine) -> None:
        while adopted := await self._engines.adopt(engine, ADOPT_AT_ONCE):
            self._resume(adopted, ResetReason.ADOPTION)
        rows = await self._engines.remove(engine)
        if rows is not None:
            self._relay.offer(rows)
            self._observer.adopted(engine)

    def _resume(self, adopted: Sequence[Adopted], why: ResetReason) -> None:
        for each in adopted:
            turn = replace(each.turn, resumed=why)
            self._observer.moved(turn, "takeover" if why is ResetReason.ADOPTION else "restart")
            failure = None
            if each.crashes >= MAX_CRASHES:
                failure = TurnCrashesError(
                    f"{each.crashes} times in a row an engine crashed soon after it had begun or resumed this turn"
                )
            self._turns.run(turn, stopped=each.stopped, failure=failure)
            self._relay.offer(each.rows)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
