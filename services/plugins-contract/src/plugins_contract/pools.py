"""Pools: which workers read which streams of requests, and which of them can run a call.

Every worker reads `events.plugins`, the stream of the pool of all workers (''). It also reads the stream of each pool
that it is in: that of the workers with the same servers and release, and one that an operator has named. A pool fits a
call if every running worker in it has the call's server and can read its request. While all workers have the same
servers, the pool of all fits every call, and no other stream is used.

A worker with a server that keeps state, or that keeps calls open while people are asked, is also alone in a pool: that
of its sessions (`sessions.py`, `held.py`).

Engines put a request on the stream of a pool that fits; a worker that reads a request it cannot run moves it to one.
What a directory says may be some seconds old: a wrong pool costs the time of one more move.
"""

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from plugins_contract.messages import NEWEST_VERSION, NOT_READABLE
from plugins_contract.sessions import SessionMode

SILENT_MS = 10_000
"""A worker that has not announced itself for longer is regarded as gone. It announces itself every 2.5 seconds."""


OWN_POOL = "sessions-"
"""The names of pools with one worker, that of its sessions, begin so."""


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """How many more sessions of a server that keeps state a worker can open."""

    mode: SessionMode
    free: int


class Route(NamedTuple):
    """Where a call goes: the stream of a pool. `session` is not SHARED when its server keeps state: then the worker
    that has the session goes before, and the pool is that of a worker that may open one."""

    pool: str
    session: SessionMode = SessionMode.SHARED


class Member(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """One worker as it announces itself. `at`: Unix milliseconds on the clock of Redis; 0 once it has left.

    `pools` are in the order in which they are preferred. `reads` is the newest version of requests that it can read.
    `sessions` are its servers that keep state, and `own` is the pool of this worker alone, which may not be in use yet;
    releases before them have neither.
    """

    at: int
    servers: tuple[str, ...]
    pools: tuple[str, ...]
    reads: int
    sessions: Mapping[str, Room] = {}
    own: str = ""

    def runs(self, server: str, version: int) -> bool:
        """Whether this worker can run a call on that server, requested in that version."""
        return server in self.servers and version <= self.reads


def own_pool(worker: str) -> str:
    """The pool of the sessions of one worker."""
    return f"{OWN_POOL}{hashlib.sha256(worker.encode()).hexdigest()[:12]}"


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
    _given: Counter[str] = field(default_factory=Counter[str])
    """Of each pool of sessions: how often it was chosen."""

    def is_live(self, member: Member) -> bool:
        """Whether a worker is running."""
        return self.now_ms - member.at < self.silent_ms

    def lives(self, own: str) -> bool:
        """Whether the worker with this pool of its own is running."""
        return any(each.own == own and self.is_live(each) for each in self.members.values())

    def announced(self, own: str) -> int | None:
        """When the worker with this pool of its own announced itself last, in `now_ms`; None where it has no row."""
        return max((each.at for each in self.members.values() if each.own == own), default=None)

    def fitting(self, server: str, version: int) -> list[str]:
        """The pools of running workers that fit, as `fitting` lists them."""
        call = (server, version)
        if call not in self._found:
            self._found[call] = fitting(filter(self.is_live, self.members.values()), server, version)
        return self._found[call]

    def with_room(self, server: str, version: int) -> Route | None:
        """The running worker with the most room for another session of that server; None where none keeps its state.

        Each answer counts as a session until that worker announces itself again.
        """
        able = [
            (each.sessions[server].free - self._given[each.own], each)
            for each in self.members.values()
            if self.is_live(each) and server in each.sessions and each.own and each.runs(server, version)
        ]
        if not able:
            return None
        _, chosen = max(able, key=lambda candidate: (candidate[0], candidate[1].own))
        self._given[chosen.own] += 1
        return Route(chosen.own, chosen.sessions[server].mode)

    def read_again(self, members: Mapping[str, Member], now_ms: int) -> "Pools":
        """The same later. The sessions of workers that have not announced themselves since are still counted."""
        pools = Pools(members, now_ms, self.silent_ms)
        old = {each.own for name, each in members.items() if self.members.get(name) == each}
        pools._given.update({own: count for own, count in self._given.items() if own in old})
        return pools

    def abandoned(self) -> set[str]:
        """The pools without a running worker."""
        live = {pool for each in self.members.values() if self.is_live(each) for pool in each.pools}
        return {pool for each in self.members.values() for pool in each.pools} - live


def readable(rows: Mapping[bytes, bytes]) -> Iterable[tuple[str, Member]]:
    """The rows of a release like this one. Another one's are not an error: its workers read `events.plugins` too."""
    for worker, row in rows.items():
        with contextlib.suppress(*NOT_READABLE):
            yield worker.decode(), msgspec.json.decode(row, type=Member)
