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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from plugins_contract.messages import NEWEST_VERSION, NOT_READABLE

SILENT_MS = 12_000
"""A worker that has not announced itself for longer is regarded as gone. It announces itself every four seconds."""


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


def readable(rows: Mapping[bytes, bytes]) -> Iterable[tuple[str, Member]]:
    """The rows of a release like this one. Another one's are not an error: its workers read `events.plugins` too."""
    for worker, row in rows.items():
        with contextlib.suppress(*NOT_READABLE):
            yield worker.decode(), msgspec.json.decode(row, type=Member)
