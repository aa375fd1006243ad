"""Leases: who runs a call keeps saying so, from a thread with its own connection.

A lease is the idle time of the call's entry in the group's pending list. It is renewed while the event loop is alive,
so a loop that is busy for a moment loses nothing, and a process that hangs loses its calls. Renewal is fenced: after a
stall the entry of another worker is not stolen back. Numbers: lease 10 s, renewed every 2.5 s, work stopped 8 s after
the last good renewal, so that it has ended here before it begins elsewhere.
"""

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from plugins_contract.connections import is_outage
from plugins_contract.keys import Keys
from plugins_contract.ledger import Delivery, renew
from plugins_contract.ledger.replies import Renewed
from plugins_contract.ledger.scripts import SyncCommands

log = logging.getLogger(__name__)

LEASE_SECONDS = 10.0
RENEW_SECONDS = 2.5
GIVE_UP_SECONDS = 8.0
LOOP_ALIVE_SECONDS = 5.0
BEAT_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class Lease:
    """One held call. `on_cancel` and `on_lost` are called in the event loop, each at most once."""

    delivery: Delivery
    fence: int
    on_cancel: Callable[[], None]
    on_lost: Callable[[], None]
    renewed_at: float = field(default_factory=time.monotonic)
    over: bool = False


class LeaseKeeper:
    """Renews the leases of this worker."""

    def __init__(self, redis: SyncCommands, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._leases: set[Lease] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._beat_at = time.monotonic()

    @contextlib.contextmanager
    def held(
        self, delivery: Delivery, fence: int, *, on_cancel: Callable[[], None], on_lost: Callable[[], None]
    ) -> Generator[Lease]:
        """Renew the lease of `delivery` while the context is open."""
        lease = Lease(delivery, fence, on_cancel, on_lost)
        with self._lock:
            self._leases.add(lease)
        try:
            yield lease
        finally:
            with self._lock:
                self._leases.discard(lease)

    async def run(self) -> None:
        """Renew, until cancelled. The thread ends with this task."""
        loop = asyncio.get_running_loop()
        self._stop.clear()
        thread = threading.Thread(target=self._renew_all, args=(loop,), name="lease renewal", daemon=True)
        thread.start()
        try:
            while True:
                self._beat_at = time.monotonic()
                await asyncio.sleep(BEAT_SECONDS)
        finally:
            self._stop.set()

    def _renew_all(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stop.wait(RENEW_SECONDS * random.uniform(0.9, 1.1)):
            if time.monotonic() - self._beat_at > LOOP_ALIVE_SECONDS:
                log.warning("the event loop has not moved for %.0f s: leases are not renewed", LOOP_ALIVE_SECONDS)
                continue
            with self._lock:
                leases = list(self._leases)
            for lease in leases:
                if not lease.over:
                    self._renew(lease, loop)

    def _renew(self, lease: Lease, loop: asyncio.AbstractEventLoop) -> None:
        asked_at = time.monotonic()
        delivery = lease.delivery
        try:
            answer = renew(
                self._redis,
                self._keys,
                delivery.request.correlation_id,
                delivery.entry,
                delivery.consumer,
                lease.fence,
            )
        except Exception as error:
            if not is_outage(error):
                log.exception("the lease of call %s cannot be renewed", delivery.request.correlation_id)
            if time.monotonic() - lease.renewed_at > GIVE_UP_SECONDS:
                self._end(lease, loop)
            return
        match answer:
            case Renewed(cancel_requested):
                lease.renewed_at = asked_at
                if cancel_requested:
                    loop.call_soon_threadsafe(lease.on_cancel)
            case _:
                self._end(lease, loop)

    def _end(self, lease: Lease, loop: asyncio.AbstractEventLoop) -> None:
        lease.over = True
        log.warning("the lease of call %s is lost", lease.delivery.request.correlation_id)
        loop.call_soon_threadsafe(lease.on_lost)
