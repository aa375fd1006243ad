"""The sessions of a worker in Redis: it becomes their holder, renews its leases on them, and ends these."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from redis import Redis as SyncRedis
from redis.asyncio import Redis

from plugins_contract.keys import Keys
from plugins_contract.ledger import steps
from plugins_contract.ledger.scripts import Scripts, run_each, unexpected
from plugins_contract.pools import OWN_POOL

KEPT_AT_ONCE = 256
"""How many leases one script renews."""
FORGOTTEN_MS = 60_000
"""A worker that has not renewed its lease on a session for longer has ended it."""


@dataclass(frozen=True, slots=True)
class SessionLease:
    """The lease on a session of `server`, kept for `owner` (`sessions.owner_of`)."""

    server: str
    owner: str
    fence: int


@dataclass(frozen=True, slots=True)
class Holding:
    """HOLD: this worker holds the session. `lost`: there was an earlier one, whose state is lost."""

    lease: SessionLease
    lost: bool


@dataclass(frozen=True, slots=True)
class HeldElsewhere:
    """HOLD: the worker in this pool holds the session."""

    pool: str


class SessionLeases:
    """The sessions of one worker. Every method raises what redis raises."""

    def __init__(self, redis: Redis, keys: Keys, pool: str, *, lease_ms: int) -> None:
        """`pool` is that of this worker alone (`pools.own_pool`)."""
        self._scripts = Scripts(redis)
        self._keys = keys
        self._stream = keys.requests_of(pool)
        self._lease_ms = lease_ms

    async def hold(self, server: str, owner: str, token: str) -> Holding | HeldElsewhere:
        """Hold a session before it is opened, unless another worker does.

        Ask with the same `token` (`new_id`) until an answer comes, so that what this worker holds by a lost reply is
        not taken for an earlier session.
        """
        prefix = self._keys.requests_of(OWN_POOL)
        answer = await self._scripts.run(
            steps.hold(
                session=self._keys.session(owner),
                stream=self._stream,
                server=server,
                token=token,
                lease_ms=self._lease_ms,
                streams=prefix,
            )
        )
        match answer:
            case [b"HELD", fence, lost]:
                return Holding(SessionLease(server, owner, fence), bool(lost))
            case [b"OTHER", stream]:
                return HeldElsewhere(OWN_POOL + stream.decode().removeprefix(prefix))
            case _:
                raise unexpected("HOLD", answer)

    async def close(self, leases: Sequence[SessionLease], *, opened: bool = True) -> None:
        """End the leases of sessions that are closed, or that were not `opened`, nor any of their owners before."""
        await self._scripts.run_each(
            [
                steps.close(
                    session=self._keys.session(each.owner), server=each.server, mine=each.fence, opened=str(int(opened))
                )
                for each in leases
            ]
        )

    def keep(self, redis: SyncRedis, leases: Sequence[SessionLease]) -> list[SessionLease]:
        """Renew leases from a thread, with its own client. Returns those that this worker does not have any more."""
        steps_ = [
            steps.keep(
                stream=self._stream,
                sessions=[self._keys.session(each.owner) for each in some],
                held=msgspec.json.encode([(each.server, each.fence) for each in some]),
                lease_ms=self._lease_ms,
            )
            for some in _in_pages(leases)
        ]
        stale: list[SessionLease] = []
        for some, answer in zip(_in_pages(leases), run_each(redis, steps_), strict=True):
            if isinstance(answer, Exception):
                raise answer
            stale += [some[int(number) - 1] for number in answer]
        return stale


async def forget_sessions(redis: Redis, keys: Keys, owners: Sequence[str]) -> None:
    """Remove what is known of the sessions of deleted owners, whose workers then end them. Raises what redis raises."""
    await Scripts(redis).run(
        steps.forget(
            silent_ms=FORGOTTEN_MS,
            control=keys.control,
            message=msgspec.json.encode({"kind": "forget", "owners": owners}),
            sessions=[*map(keys.session, owners)],
        )
    )


def _in_pages(leases: Sequence[SessionLease]) -> list[Sequence[SessionLease]]:
    return [leases[at : at + KEPT_AT_ONCE] for at in range(0, len(leases), KEPT_AT_ONCE)]
