"""A worker's part in the pools: it announces itself, and looks after pools whose workers are gone."""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

from callstream_runtime.clock import Clock
from callstream_runtime.pool_directory import PoolDirectory
from callstream_runtime.redis_errors import RedisUnavailable
from plugins_contract.messages import NEWEST_VERSION
from plugins_contract.pools import Member
from plugins_mcp.leases import LeaseTimes

log = logging.getLogger(__name__)


class PoolKeeper:
    """Announces one worker, and puts what lies in abandoned pools where every worker finds it."""

    def __init__(
        self,
        directory: PoolDirectory,
        clock: Clock,
        times: LeaseTimes,
        *,
        worker: str,
        servers: Sequence[str],
        pools: Sequence[str],
        steady_for: Callable[[], float],
    ) -> None:
        """`steady_for` returns for how many seconds Redis has been steady: after an outage every worker looks gone."""
        self._directory = directory
        self._clock = clock
        self._times = times
        self._worker = worker
        self._servers = tuple(servers)
        self._pools = tuple(pools)
        self._steady_for = steady_for

    async def run(self) -> None:
        """Runs until cancelled."""
        loop = asyncio.get_running_loop()
        announce_at = 0.0
        while True:
            try:
                if loop.time() >= announce_at:
                    await self._directory.announce(self._worker, self._member(self._clock.now_ms()))
                    announce_at = loop.time() + self._times.announce
                if self._steady_for() >= self._times.grace:
                    await self._recall()
            except RedisUnavailable:
                announce_at = 0.0
            await asyncio.sleep(self._times.sweep * random.uniform(0.75, 1.25))

    async def leave(self) -> None:
        """Say that this worker runs nothing any more. Raises `RedisUnavailable`."""
        await self._directory.announce(self._worker, self._member(0))

    async def _recall(self) -> None:
        if moved := await self._directory.recall(lease_ms=self._times.lease_ms):
            log.warning("%d requests lay in a pool without workers: any worker may take them now", moved)

    def _member(self, at: int) -> Member:
        return Member(at=at, servers=self._servers, pools=self._pools, reads=NEWEST_VERSION)
