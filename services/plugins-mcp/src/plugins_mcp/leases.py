"""Leases: a worker renews the leases of its running calls, from a thread with its own connection.

A lease is the idle time of the call's entry in the group's pending list. The thread renews it only while the event loop
is alive: a loop that is busy for a moment loses nothing, and a process that hangs loses its calls. Renewals are fenced,
so a worker that stalled cannot take an entry back. A renewal also restores what Redis lost of the call, so all leases
are renewed as soon as an outage is over.

The event loop gives up a repeatable call whose lease was not renewed in time, so that the call has ended here before
another worker runs it, even if the thread still waits for Redis. A `once` call is never run elsewhere. It continues
through an outage, because its result is still useful.

A server of Redis that this worker has not seen before may have lost starts and ends of calls. The thread writes there
what this worker knows, and then reports: until every worker has, no `once` call from before is started there. A START
at one server and a report at the next must not cross: see `reported` and `held`.
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

from callstream_runtime.redis_errors import RedisUnavailable
from callstream_runtime.tracing import call_ids
from plugins_contract.catalog import HEARTBEAT_SECONDS
from plugins_contract.keys import Keys
from plugins_contract.ledger import LEASE_MS, Delivery, RecentCompletions, complete_again, renew_each, report, server_of
from plugins_contract.ledger.replies import Renewed, Stale
from plugins_contract.ledger.scripts import ServerMark
from plugins_contract.messages import ExecutionClass
from plugins_mcp.errors import ServerChangedError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """The times of leases, in seconds. Every worker of a group must use the same."""

    lease: float = LEASE_MS / 1000
    """An entry that is idle for longer is taken over."""
    renew: float = 2.5
    renew_again: float = 0.25
    """How often Redis is checked. After an outage all leases are renewed, before other workers take calls over."""
    give_up: float = 8.0
    """A repeatable call is stopped this long after its last renewal, before another worker can start it."""
    loop_alive: float = 5.0
    """An event loop that has not run for this long gets no renewals."""
    heartbeat: float = 0.5
    sweep: float = 1.0
    """How often a worker looks for expired entries."""
    grace: float = 5.0
    """How long Redis must have been steady before an entry is taken over. A running worker renews sooner after an
    outage or a clock step. Less than a lease, or workers that are killed often would never take over."""

    announce: float = 2.5
    """How often a worker announces its servers and held calls. It counts as gone after four times as long, as these."""
    catalog: float = HEARTBEAT_SECONDS
    """How often a worker publishes its catalogs."""
    settle: float = 2.0
    """A worker starts no `once` call this soon after its first report. Redis may lose its latest writes, and this one
    with them: a server that lost it would not know that this worker may have started calls."""

    @property
    def lease_ms(self) -> int:
        """The lease in milliseconds."""
        return int(self.lease * 1000)

    @property
    def silent_ms(self) -> int:
        """How long a worker that runs may not have announced itself, in milliseconds."""
        return round(self.announce * 4000)


@dataclass(slots=True, eq=False)
class Lease:
    """One held call. `on_cancel` and `on_lost` are called in the event loop, each at most once, while it is held."""

    delivery: Delivery
    fence: int
    on_cancel: Callable[[], None]
    on_lost: Callable[[], None]
    renewed_at: float
    cancel_reported: bool = False
    lost: bool = False

    @property
    def may_run_elsewhere(self) -> bool:
        """Whether another worker runs the call again after the lease expired."""
        return self.delivery.request.execution_class is ExecutionClass.REPEATABLE


class LeaseKeeper:
    """Renews the leases of this worker. Only its own thread uses `redis`."""

    def __init__(
        self,
        redis: Redis,
        keys: Keys,
        times: LeaseTimes | None = None,
        *,
        worker: str,
        recent: RecentCompletions,
        also: Callable[[Redis, asyncio.AbstractEventLoop], None] = lambda redis, loop: None,
        count: Callable[[str], None] = lambda outcome: None,
    ) -> None:
        """`count` is called in the thread for each renewal: "renewed", "stale" (another worker has it) or "failed".

        `worker` is the name under which this worker reports, `recent` what it knows beside its running calls. `also`
        renews other leases of it, in the thread.
        """
        self._redis = redis
        self._keys = keys
        self._worker = worker
        self._recent = recent
        self._also = also
        self._server: str | None = None
        """The run id of the server at which this worker has reported; None while it may be another one."""
        self._reported = asyncio.Event()
        self._settled_at: float | None = None
        """When the first report will be old enough, on the monotonic clock; None before that report."""
        self._times = times or LeaseTimes()
        self._count = count
        self._leases: set[Lease] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._mark = ServerMark()
        self._loop_alive_at = time.monotonic()

    async def reported(self) -> str:
        """The run id of the server at which this worker has reported; empty where it cannot be read.

        Waits until it has, and until its first report cannot be lost with the latest writes of Redis.
        """
        while True:
            server, settled_at = self._server, self._settled_at
            if server is None or settled_at is None:
                self._reported.clear()
                await self._reported.wait()
            elif (early := settled_at - time.monotonic()) > 0:
                await asyncio.sleep(early)
            else:
                return server

    @contextlib.contextmanager
    def held(
        self,
        delivery: Delivery,
        fence: int,
        *,
        since: float,
        on_cancel: Callable[[], None],
        on_lost: Callable[[], None],
        started_at: str | None = None,
    ) -> Generator[None]:
        """Renew the lease of `delivery`, which started at the monotonic time `since`, while the context is open.

        Raises:
            ServerChangedError: this worker has since reported, or is about to, at another server than `started_at`, and
                has not reported this call there.
        """
        lease = Lease(delivery, fence, on_cancel, on_lost, since)
        with self._lock:
            if started_at is not None and started_at != self._server:
                raise ServerChangedError
            self._leases.add(lease)
        try:
            yield
        finally:
            with self._lock:
                self._leases.discard(lease)

    async def run(self) -> None:
        """Renew until cancelled. The thread has ended when this returns."""
        loop = asyncio.get_running_loop()
        self._stop.clear()
        self._loop_alive_at = time.monotonic()
        thread = threading.Thread(target=self._renew_all, args=(loop,), name="lease renewal", daemon=True)
        thread.start()
        try:
            while True:
                self._loop_alive_at = time.monotonic()
                for lease in self._held_now():
                    if lease.may_run_elsewhere and time.monotonic() - lease.renewed_at > self._times.give_up:
                        self._lose(lease, "it could not be renewed in time")
                await asyncio.sleep(self._times.heartbeat)
        finally:
            self._stop.set()
            await asyncio.to_thread(thread.join)

    def _held_now(self) -> list[Lease]:
        with self._lock:
            return [lease for lease in self._leases if not lease.lost]

    # Runs in the thread.

    def _renew_all(self, loop: asyncio.AbstractEventLoop) -> None:
        due, stalled, logged = 0.0, False, ""
        while not self._stop.wait(self._times.renew_again):
            was_stalled, stalled = stalled, time.monotonic() - self._loop_alive_at > self._times.loop_alive
            if stalled:
                if not was_stalled:
                    log.warning("the event loop has not run for %.0f s: leases are not renewed", self._times.loop_alive)
                continue
            try:
                if not self._mark.found(self._redis):  # Redis may restart without its data between two renewals
                    self._set_server(None)
                    self._mark.leave(self._redis)
                elif self._server is not None and time.monotonic() < due:
                    continue
                self._write_what_is_known(loop)
                due, logged = time.monotonic() + self._times.renew * random.uniform(0.9, 1.1), ""
            except RedisUnavailable as error:
                if (reason := str(error)) != logged:
                    log.warning("leases cannot be renewed, and no once call is started meanwhile: %s", reason)
                    logged = reason
                if error.code == "READONLY":
                    # The master was demoted: another connection may lead to the new one.
                    self._redis.connection_pool.disconnect()
                due = 0.0
            except Exception:
                log.exception("internal error while renewing leases")
                due = 0.0

    def _write_what_is_known(self, loop: asyncio.AbstractEventLoop) -> None:
        """Renew the leases, and report. A new server may not know either what this worker ended last."""
        server = self._server if self._server is not None else server_of(self._redis, self._keys)
        self._renew_each(self._held_now(), loop)
        self._also(self._redis, loop)
        if self._server is not None:
            self._recent.forget_old()
        else:
            for error in complete_again(self._redis, self._recent):
                if isinstance(error, RedisUnavailable):
                    raise error
                log.error("a call that had ended cannot be completed again", exc_info=error)
        if not report(self._redis, self._keys, self._worker, server):
            self._set_server(None)
            return
        if self._settled_at is None:
            self._settled_at = time.monotonic() + self._times.settle
        self._set_server(server)
        loop.call_soon_threadsafe(self._reported.set)

    def _set_server(self, server: str | None) -> None:
        with self._lock:
            self._server = server
            if server is None and self._settled_at is not None and time.monotonic() < self._settled_at:
                self._settled_at = None

    def _renew_each(self, leases: list[Lease], loop: asyncio.AbstractEventLoop) -> None:
        """Renew all leases in one round trip: with one each, a worker with many calls would be too slow.

        Raises the error of an outage, also if only some renewals failed with it.
        """
        if not leases:
            return
        asked_at = time.monotonic()
        outage: RedisUnavailable | None = None
        answers = renew_each(self._redis, self._keys, [(lease.delivery, lease.fence) for lease in leases])
        for lease, answer in zip(leases, answers, strict=True):
            match answer:
                case Renewed(cancel_requested):
                    lease.renewed_at = asked_at
                    self._count("renewed")
                    if cancel_requested:
                        loop.call_soon_threadsafe(self._report_cancel, lease)
                case Stale():
                    self._count("stale")
                    loop.call_soon_threadsafe(self._check_stale, lease)
                case RedisUnavailable():
                    self._count("failed")
                    outage = answer
                case error:
                    self._count("failed")
                    log.error("a lease cannot be renewed", exc_info=error, extra=call_ids(lease.delivery.request))
        if outage is not None:
            raise outage

    # Runs in the event loop. A lease that is not held any more is ignored.

    def _report_cancel(self, lease: Lease) -> None:
        if lease in self._leases and not lease.cancel_reported:
            lease.cancel_reported = True
            lease.on_cancel()

    def _check_stale(self, lease: Lease) -> None:
        """Lose the lease if it is still held one heartbeat later: the call's own COMPLETE may be on its way."""
        asyncio.get_running_loop().call_later(self._times.heartbeat, self._lose, lease, "another worker has it")

    def _lose(self, lease: Lease, why: str) -> None:
        if lease in self._leases and not lease.lost:
            lease.lost = True
            log.warning("lease lost: %s", why, extra=call_ids(lease.delivery.request))
            lease.on_lost()
