"""Which sessions of MCP servers that keep state this worker has: it holds a lease on each, so that no other opens it.

A session is that of one server and one owner (`plugins_contract.sessions`), and the owner is taken from the signed
request: what stands in Redis decides only which worker runs the call.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from redis import Redis as SyncRedis

from callstream_runtime.redis_errors import RedisUnavailable
from plugins_contract.errors import ErrorCode
from plugins_contract.ledger.session_leases import HeldElsewhere, SessionLease, SessionLeases
from plugins_contract.messages import ToolCallRequested
from plugins_contract.pools import Room
from plugins_contract.sessions import owner_of
from plugins_mcp.leases import LeaseTimes
from plugins_mcp.mcp import CallResult, McpServers, NotSent, Rejected
from plugins_mcp.ports import Sessions, ToolServer

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Held:
    """A lease, and when it was last renewed, on the monotonic clock."""

    lease: SessionLease
    renewed_at: float


class SessionKeeper(Sessions):
    """The sessions of one worker."""

    def __init__(self, servers: McpServers, leases: SessionLeases, times: LeaseTimes) -> None:
        self._servers = servers
        self._leases = leases
        self._times = times
        self._held: dict[tuple[str, str], _Held] = {}
        """By server and owner."""
        self._asked: dict[tuple[str, str], str] = {}
        """The tokens of those HOLD to which no answer has come."""
        self._opening = asyncio.Lock()
        self._closed = False

    async def elsewhere(self, request: ToolCallRequested) -> str | None:
        own = self._servers.stateful.get(request.server)
        if own is None:
            return None
        owner = owner_of(own.mode, request)
        key = (request.server, owner)
        if self._closed:
            return None if owner in own else ""
        # One at a time: a call would take the HOLD of another one that is refused for an earlier session.
        async with self._opening:
            held = self._held.get(key)
            if owner in own and held and time.monotonic() - held.renewed_at < self._times.give_up:
                return None
            asked_at = time.monotonic()
            answer = await self._leases.hold(request.server, owner, self._asked.setdefault(key, uuid.uuid4().hex))
            if isinstance(answer, HeldElsewhere):
                self._drop(key)
                return answer.pool
            if has_room := owner in own or own.make_room(request.subject):
                self._held[key] = _Held(answer.lease, asked_at)
            else:
                await self._leases.close([answer.lease], opened=answer.lost)
            self._asked.pop(key, None)
            if has_room and owner not in own:
                own.open(owner, request.subject, lost=answer.lost, asks=bool(request.may_ask))
            return None

    def server_for(self, request: ToolCallRequested) -> ToolServer:
        return _ServerOfSession(self, request)

    async def call(self, request: ToolCallRequested, call: Callable[[ToolServer], Awaitable[CallResult]]) -> CallResult:
        """Make a call in its session."""
        own = self._servers.stateful.get(request.server)
        if own is None:
            return NotSent(f"the MCP server {request.server!r} was taken out of the configuration")
        owner = owner_of(own.mode, request)
        try:
            # It may have ended since the call was taken.
            if owner not in own and await self.elsewhere(request) is not None:
                return NotSent("another worker has its session")
        except RedisUnavailable as error:
            return NotSent(f"its session cannot be opened: {error}")
        if (session := own.get(owner)) is not None:
            return await session.run(call)
        return Rejected(ErrorCode.OVERLOADED, f"{own.refusal(request.subject)}; it was not run")

    def forget(self, owners: Sequence[str]) -> None:
        """End the sessions of deleted owners, after their calls."""
        for key in [(server, owner) for server in self._servers.stateful for owner in owners]:
            self._drop(key)

    def rooms(self) -> Mapping[str, Room]:
        """The servers that keep state, and how many more sessions this worker can open; nothing once it is closed."""
        if self._closed:
            return {}
        return {name: Room(mode=own.mode, free=own.free) for name, own in self._servers.stateful.items()}

    async def run(self) -> None:
        """End the leases of sessions that have ended. Runs until cancelled."""
        while True:
            await asyncio.sleep(self._times.sweep)
            with suppress(RedisUnavailable):  # they expire
                await self._close_ended()

    async def close(self) -> None:
        """Let other workers open the sessions: this one shuts down. Raises `RedisUnavailable`."""
        self._closed = True
        leases = [held.lease for held in self._held.values()]
        self._held.clear()
        await self._leases.close(leases)

    def renew(self, redis: SyncRedis, loop: asyncio.AbstractEventLoop) -> None:
        """Renew all leases, from the thread that renews those of calls. Raises what redis raises."""
        if not (held := [*self._held.values()]):
            return
        asked_at = time.monotonic()
        stale = {*self._leases.keep(redis, [each.lease for each in held])}
        for each in held:
            if each.lease in stale:
                loop.call_soon_threadsafe(self._lose, each)
            else:
                each.renewed_at = asked_at

    async def _close_ended(self) -> None:
        async with self._opening:
            ended = [key for key in self._held if not self._is_open(*key)]
            leases = [self._held.pop(key).lease for key in ended]
            if leases:
                await self._leases.close(leases)

    def _is_open(self, server: str, owner: str) -> bool:
        return owner in self._servers.stateful.get(server, ())

    def _lose(self, held: _Held) -> None:
        key = (held.lease.server, held.lease.owner)
        if self._held.get(key) is held:
            log.info("MCP server %r: a session was deleted, or another worker has it: it is ended here", key[0])
            self._drop(key)

    def _drop(self, key: tuple[str, str]) -> None:
        self._held.pop(key, None)
        self._asked.pop(key, None)
        server, owner = key
        if self._is_open(server, owner):
            self._servers.stateful[server].end(owner)


@dataclass(frozen=True, slots=True)
class _ServerOfSession(ToolServer):
    """A server as one call finds it."""

    sessions: SessionKeeper
    request: ToolCallRequested

    async def call(self, tool: str, arguments: dict[str, Any], **how: Any) -> CallResult:
        return await self.sessions.call(self.request, lambda server: server.call(tool, arguments, **how))
