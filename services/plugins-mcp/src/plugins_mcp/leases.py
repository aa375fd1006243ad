"""Leases: who runs a call keeps saying so, from a thread with its own connection.

A lease is the idle time of the call's entry in the group's pending list. It is renewed while the event loop is alive,
so a loop that is busy for a moment loses nothing, and a process that hangs loses its calls. Renewal is fenced: after a
stall the entry of another worker is not stolen back. What Redis has lost of a call is put back by its renewal, so as
soon as an outage is over all leases are renewed. The event loop itself gives up what may run again and was not renewed
in time, so that the work has ended here before it begins elsewhere, however long the thread waits for an answer. What
must not run twice begins nowhere else: it goes on through any outage, and its result is worth having.
"""

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

from redis import Redis

from plugins_contract.connections import is_outage
from plugins_contract.keys import Keys
from plugins_contract.ledger import LEASE_MS, Delivery, renew_each
from plugins_contract.ledger.replies import Renewed, Stale
from plugins_contract.ledger.scripts import ServerMark
from plugins_contract.messages import ExecutionClass

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """The arithmetic of leases, in seconds. Every worker of a group must have the same."""

    lease: float = LEASE_MS / 1000
    """An entry that is idle for longer is taken over."""
    renew: float = 2.5
    renew_again: float = 0.25
    """How soon an outage of Redis is noticed, and its end: all leases are renewed then, before others take calls up."""
    give_up: float = 8.0
    """Work that may run again ends this long after its last good renewal: before it can begin elsewhere."""
    loop_alive: float = 5.0
    """A loop that has not moved for so long gets no renewals."""
    beat: float = 0.5
    sweep: float = 1.0
    """How often a worker looks for entries to take over."""
    grace: float = 5.0
    """How long Redis must have been steady before that, as this worker has seen it: a living worker renews sooner after
    an outage or a step of the clock. Not a whole lease, or workers that are killed often would never take over."""

    @property
    def lease_ms(self) -> int:
        """The lease in milliseconds."""
        return int(self.lease * 1000)


@dataclass(slots=True, eq=False)
class Lease:
    """One held call. `on_cancel` and `on_lost` are called in the event loop, each at most once, while it is held."""

    delivery: Delivery
    fence: int
    on_cancel: Callable[[], None]
    on_lost: Callable[[], None]
    renewed_at: float
    told: bool = False
    over: bool = False

    @property
    def may_run_elsewhere(self) -> bool:
        """Whether another worker would run it again when the lease has run out."""
        return self.delivery.request.execution_class is ExecutionClass.REPEATABLE


class LeaseKeeper:
    """Renews the leases of this worker. `redis` is used by one thread of its own."""

    def __init__(self, redis: Redis, keys: Keys, times: LeaseTimes | None = None) -> None:
        self._redis = redis
        self._keys = keys
        self._times = times or LeaseTimes()
        self._leases: set[Lease] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._mark = ServerMark()
        self._beat_at = time.monotonic()

    @contextlib.contextmanager
    def held(
        self,
        delivery: Delivery,
        fence: int,
        *,
        since: float,
        on_cancel: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> Generator[None]:
        """Renew the lease of `delivery`, which runs since the monotonic time `since`, while the context is open."""
        lease = Lease(delivery, fence, on_cancel, on_lost, since)
        with self._lock:
            self._leases.add(lease)
        try:
            yield
        finally:
            with self._lock:
                self._leases.discard(lease)

    async def run(self) -> None:
        """Renew, until cancelled. Its thread has ended when this has."""
        loop = asyncio.get_running_loop()
        self._stop.clear()
        self._beat_at = time.monotonic()
        thread = threading.Thread(target=self._renew_all, args=(loop,), name="lease renewal", daemon=True)
        thread.start()
        try:
            while True:
                self._beat_at = time.monotonic()
                for lease in self._held_now():
                    if lease.may_run_elsewhere and time.monotonic() - lease.renewed_at > self._times.give_up:
                        self._lose(lease, "it could not be renewed in time")
                await asyncio.sleep(self._times.beat)
        finally:
            self._stop.set()
            await asyncio.to_thread(thread.join)

    def _held_now(self) -> list[Lease]:
        with self._lock:
            return [lease for lease in self._leases if not lease.over]

    # What follows runs in the thread, up to the next comment.

    def _renew_all(self, loop: asyncio.AbstractEventLoop) -> None:
        due, still = 0.0, False
        while not self._stop.wait(self._times.renew_again):
            was_still, still = still, time.monotonic() - self._beat_at > self._times.loop_alive
            if still:
                if not was_still:
                    log.warning("the event loop has not moved for %.0f s: no renewals", self._times.loop_alive)
                continue
            leases = self._held_now()
            try:
                # Redis may go away and come back between two renewals, without what it knew.
                if leases and (not self._mark.leave(self._redis) or time.monotonic() >= due):
                    self._renew_each(leases, loop)
                    due = time.monotonic() + self._times.renew * random.uniform(0.9, 1.1)
            except Exception as error:
                if not is_outage(error):
                    log.exception("leases cannot be renewed")
                due = 0.0

    def _renew_each(self, leases: list[Lease], loop: asyncio.AbstractEventLoop) -> None:
        """Renew all of them, in one round trip: with one for each, a worker of many calls would come too late.

        Raises what says that Redis is away, or does not take every renewal.
        """
        asked_at = time.monotonic()
        outage: Exception | None = None
        answers = renew_each(self._redis, self._keys, [(lease.delivery, lease.fence) for lease in leases])
        for lease, answer in zip(leases, answers, strict=True):
            match answer:
                case Renewed(cancel_requested):
                    lease.renewed_at = asked_at
                    if cancel_requested:
                        loop.call_soon_threadsafe(self._tell_cancel, lease)
                case Stale():
                    loop.call_soon_threadsafe(self._doubt, lease)
                case error if is_outage(error):
                    outage = error
                case error:
                    call = lease.delivery.request.correlation_id
                    log.error("the lease of call %s cannot be renewed", call, exc_info=error)
        if outage is not None:
            raise outage

    # What follows runs in the event loop: a lease that is held no more is not told anything.

    def _tell_cancel(self, lease: Lease) -> None:
        if lease in self._leases and not lease.told:
            lease.told = True
            lease.on_cancel()

    def _doubt(self, lease: Lease) -> None:
        """The call may just have ended here, its COMPLETE on the way back: what is held a beat later is another's."""
        asyncio.get_running_loop().call_later(self._times.beat, self._lose, lease, "another worker has it")

    def _lose(self, lease: Lease, why: str) -> None:
        if lease in self._leases and not lease.over:
            lease.over = True
            log.warning("the lease of call %s is lost: %s", lease.delivery.request.correlation_id, why)
            lease.on_lost()
