"""Pools: which workers read which streams of requests, and which of them can run a call.

Every worker reads `events.plugins`, the stream of the pool of all workers (''). It also reads the stream of each pool
that it is in: that of the workers with the same servers and release, and one that an operator has named. A pool fits a
call if every running worker in it has the call's server and can read its request. While all workers have the same
servers, the pool of all fits every call, and no other stream is used.

Engines put a request on the stream of a pool that fits; a worker that reads a request it cannot run moves it to one.
What a directory says may be some seconds old: a wrong pool costs the time of one more move.
"""

import contextlib
import hashlib
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from redis.asyncio import Redis

from plugins_contract.clock import Clock
from plugins_contract.connections import is_outage
from plugins_contract.keys import GROUP, Keys
from plugins_contract.ledger.scripts import Scripts
from plugins_contract.messages import NEWEST_VERSION, NOT_READABLE

SILENT_MS = 12_000
"""A worker that has not announced itself for longer is regarded as gone. It announces itself every four seconds."""
READ_AGAIN_SECONDS = 1.0
"""How long the rows of all workers are kept."""
LOOK_AGAIN_SECONDS = 0.1
"""The same while no pool fits a call."""
RECALLED_AT_ONCE = 100


class Member(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One worker as it announces itself. `at`: Unix milliseconds on the clock of Redis; 0 once it has left.

    `pools` are in the order in which they are preferred. `reads` is the newest version of requests that it can read.
    """

    at: int
    servers: tuple[str, ...]
    pools: tuple[str, ...]
    reads: int

    def runs(self, server: str, version: int) -> bool:
        """Whether this worker can run a call on that server, requested in that version."""
        return server in self.servers and version <= self.reads


def pools_of(servers: Iterable[str], named: str = "") -> tuple[str, ...]:
    """The pools of a worker with these servers, in an operator's pool where one is `named`."""
    same = msgspec.json.encode([NEWEST_VERSION, sorted(servers)])
    own = f"servers-{hashlib.sha256(same).hexdigest()[:12]}"
    return (named, own) if named else (own,)


def fitting(members: Iterable[Member], server: str, version: int) -> list[str]:
    """For each of these workers that can run a call, the first pool of it that fits; '' alone if that of all does."""
    members = list(members)
    unfit = {pool for each in members if not each.runs(server, version) for pool in ("", *each.pools)}
    able = [("", *each.pools) for each in members if each.runs(server, version)]
    if able and "" not in unfit:
        return [""]
    firsts = (next((pool for pool in pools if pool not in unfit), None) for pools in able)
    return [pool for pool in firsts if pool is not None]


@dataclass(frozen=True, slots=True)
class Pools:
    """All workers that are known, by name, at a time in Unix milliseconds on the clock of Redis."""

    members: Mapping[str, Member]
    now_ms: int
    silent_ms: int
    _found: dict[tuple[str, int], list[str]] = field(default_factory=dict[tuple[str, int], list[str]])

    def is_live(self, member: Member) -> bool:
        """Whether a worker is running."""
        return self.now_ms - member.at < self.silent_ms

    def fitting(self, server: str, version: int) -> list[str]:
        """The pools of running workers that fit, as `fitting` lists them."""
        call = (server, version)
        if call not in self._found:
            self._found[call] = fitting(filter(self.is_live, self.members.values()), server, version)
        return self._found[call]

    def abandoned(self) -> set[str]:
        """The pools without a running worker."""
        live = {pool for each in self.members.values() if self.is_live(each) for pool in each.pools}
        return {pool for each in self.members.values() for pool in each.pools} - live


class PoolDirectory:
    """The pools, as workers announce them in Redis. Raises what redis raises."""

    def __init__(self, redis: Redis, keys: Keys, clock: Clock, *, silent_ms: int = SILENT_MS) -> None:
        self._redis: Any = redis  # redis-py types its commands only partly
        self._scripts = Scripts(redis)
        self._keys = keys
        self._clock = clock
        self._silent_ms = silent_ms
        self._last = Pools({}, 0, silent_ms)
        self._read_at = float("-inf")

    async def find(self, server: str, version: int) -> str | None:
        """A pool for a call, chosen at random among the workers that can run it; None when no running worker can.

        While Redis is unavailable, what was known last decides: whoever uses the pool learns of the outage.
        """
        try:
            found = (await self._pools(READ_AGAIN_SECONDS)).fitting(server, version)
            if not found:
                found = (await self._pools(LOOK_AGAIN_SECONDS)).fitting(server, version)
        except Exception as error:
            if not is_outage(error):
                raise
            found = self._last.fitting(server, version)
        return random.choice(found) if found else None

    async def announce(self, worker: str, member: Member) -> None:
        """Write the row of a worker."""
        row = msgspec.json.encode(member)
        await self._redis.execute_command("HSET", self._keys.pools, worker, row)

    async def streams(self) -> list[str]:
        """The streams of requests that may hold something, `events.plugins` first."""
        pools = {pool for each in (await self._pools(0)).members.values() for pool in each.pools}
        return [self._keys.requests, *(self._keys.requests_of(pool) for pool in sorted(pools))]

    async def recall(self, *, lease_ms: int) -> int:
        """Move what lies in pools without workers to `events.plugins`, and forget pools that are empty.

        Returns how many requests were moved.
        """
        pools = await self._pools(0)
        kept, moved = set[str](), 0
        for pool in pools.abandoned():
            arguments = [GROUP, lease_ms, RECALLED_AT_ONCE, self._keys.call("")]
            count, left = await self._scripts.run("recall", self._streams(pool), arguments)
            moved += count
            kept |= {pool} if left else set()
        gone = [n for n, each in pools.members.items() if not pools.is_live(each) and kept.isdisjoint(each.pools)]
        if gone:
            await self._redis.execute_command("HDEL", self._keys.pools, *gone)
        return moved

    def _streams(self, pool: str) -> Sequence[str]:
        return [self._keys.requests, self._keys.requests_of(pool)]

    async def _pools(self, max_age: float) -> Pools:
        if time.monotonic() - self._read_at >= max_age:
            rows: dict[bytes, bytes] = await self._redis.hgetall(self._keys.pools)
            self._last = Pools(dict(_readable(rows)), self._clock.now_ms(), self._silent_ms)
            self._read_at = time.monotonic()
        return self._last


def _readable(rows: Mapping[bytes, bytes]) -> Iterable[tuple[str, Member]]:
    """The rows of a release like this one. Another one's are not an error: its workers read `events.plugins` too."""
    for worker, row in rows.items():
        with contextlib.suppress(*NOT_READABLE):
            yield worker.decode(), msgspec.json.decode(row, type=Member)
