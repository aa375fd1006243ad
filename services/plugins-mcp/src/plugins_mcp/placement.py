"""Where a call runs: in a worker that has its server and, if that keeps state, the session of the call."""

from dataclasses import dataclass

from plugins_contract.messages import ToolCallRequested
from plugins_mcp.ports import PoolFinder, Sessions, ToolServer, ToolServers


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A call that other workers run: those of a pool, or any, for '' and None."""

    pool: str | None


class Placement:
    """What of all calls runs in this worker."""

    def __init__(self, servers: ToolServers, sessions: Sessions, pools: PoolFinder, own: str = "") -> None:
        """`own` is the pool of this worker alone."""
        self._own = own
        self._servers = servers
        self._sessions = sessions
        self._pools = pools

    def serves(self, request: ToolCallRequested) -> bool:
        """Whether this worker has the call's server."""
        return self._servers.get(request.server) is not None

    def any_worker_runs(self, request: ToolCallRequested) -> bool:
        """Whether this worker has the call's server, which keeps no state: nothing else need be asked."""
        stateful = request.server in self._servers.stateful
        return self.serves(request) and not stateful and not _holder_of(request)

    async def elsewhere(self, request: ToolCallRequested) -> Elsewhere | None:
        """Where a call runs that this worker does not run; None for one that it does, whose session it opens. Raises
        `RedisUnavailable`."""
        if holder := _holder_of(request):
            # If that worker is gone, so is the call that it kept open: any worker can say so.
            return Elsewhere(holder) if holder != self._own and await self._pools.lives(holder) else None
        if not self.serves(request):
            return Elsewhere(await self._pools.find(request.server, request.event_version))
        if request.server not in self._servers.stateful:
            return None
        pool = await self._sessions.elsewhere(request)
        return None if pool is None else Elsewhere(pool)

    def server_of(self, request: ToolCallRequested) -> ToolServer | None:
        """The server as the call finds it, anew for each attempt, because the servers file may have changed. None when
        this worker does not have it."""
        server = self._servers.get(request.server)
        return self._sessions.server_for(request) if server and request.server in self._servers.stateful else server


def _holder_of(request: ToolCallRequested) -> str:
    """The worker that keeps the call open whose next round this is; '' where none does."""
    return request.next_round.holder if request.next_round else ""
