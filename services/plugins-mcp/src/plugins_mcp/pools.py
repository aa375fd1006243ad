"""A worker's part in the pools: it announces itself, and looks after pools whose workers are gone."""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count

from callstream_runtime.clock import Clock
from callstream_runtime.pool_directory import PoolDirectory
from callstream_runtime.redis_errors import RedisUnavailable
from plugins_contract.messages import NEWEST_VERSION
from plugins_contract.pools import Member, Room, own_pool, pools_of
from plugins_mcp.leases import LeaseTimes

log = logging.getLogger(__name__)


class PoolKeeper:
    """Announces one worker, and puts what lies in abandoned pools where every worker finds it.

    A worker whose servers have changed is another worker to the directory: what lies in a pool that it has left is
    found like that of a dead worker.
    """

    def __init__(
        self,
        directory: PoolDirectory,
        clock: Clock,
        times: LeaseTimes,
        *,
        worker: str,
        servers: Callable[[], Sequence[str]],
        rooms: Callable[[], Mapping[str, Room]] = dict,
        holds: Callable[[], bool] = lambda: False,
        pool: str = "",
        steady_for: Callable[[], float],
    ) -> None:
        """`servers` returns the names of the servers that this worker has now; `pool` is the one that it is put in.
        `rooms` returns those of them that keep state, with the room for more sessions; `holds`, whether it keeps calls
        open while people are asked.

        `steady_for` returns for how many seconds Redis has been steady: after an outage every worker looks gone.
        """
        self._directory = directory
        self._clock = clock
        self._times = times
        self._names = (f"{worker}.{number}" if number else worker for number in count())
        self._worker = next(self._names)
        self._servers = servers
        self._rooms = rooms
        self._holds = holds
        self._own = own_pool(worker)
        self._reads_own = False
        """Whether it is in the pool of its own, as it is once it keeps the state of servers, or calls open."""
        self._pool = pool
        self._steady_for = steady_for
        self._known = tuple(servers())
        self._changed = asyncio.Event()

    def pools(self) -> Sequence[str]:
        """The pools that this worker is in, whose streams it reads."""
        self._reads_own = self._reads_own or bool(self._rooms()) or self._holds()
        return (*pools_of(self._known, self._pool), *([self._own] if self._reads_own else ()))

    def servers_changed(self) -> None:
        """Announce other servers at once."""
        self._changed.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        loop = asyncio.get_running_loop()
        announce_at = 0.0
        while True:
            try:
                if self._known != (now := tuple(self._servers())):
                    await self.leave()
                    self._worker, self._known, announce_at = next(self._names), now, 0.0
                if loop.time() >= announce_at:
                    await self._directory.announce(self._worker, self._member(self._clock.now_ms()))
                    announce_at = loop.time() + self._times.announce
                if self._steady_for() >= self._times.grace:
                    await self._recall()
            except RedisUnavailable:
                announce_at = 0.0
            with suppress(TimeoutError):
                async with asyncio.timeout(self._times.sweep * random.uniform(0.75, 1.25)):
                    await self._changed.wait()
            self._changed.clear()

    async def leave(self) -> None:
        """Say that this worker runs nothing any more. Raises `RedisUnavailable`."""
        await self._directory.announce(self._worker, self._member(0))

    async def _recall(self) -> None:
        if moved := await self._directory.recall(lease_ms=self._times.lease_ms):
            log.warning("%d requests lay in a pool without workers: any worker may take them now", moved)

    def _member(self, at: int) -> Member:
        return Member(
            at=at,
            servers=self._known,
            pools=tuple(self.pools()),
            reads=NEWEST_VERSION,
            sessions=self._rooms(),
            own=self._own,
        )
