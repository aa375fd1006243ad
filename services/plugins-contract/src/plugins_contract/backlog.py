"""How far behind the workers are, as the request stream itself tells."""

from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from plugins_contract.keys import GROUP, Keys


@dataclass(frozen=True, slots=True)
class Backlog:
    """The state of `events.plugins`. `lag` counts what no worker has taken, `pending` what is in a worker's hands,
    `dead` what nobody could handle."""

    length: int
    lag: int
    pending: int
    oldest_pending_seconds: float
    consumers: int
    dead: int


async def read_backlog(redis: Redis, keys: Keys) -> Backlog:
    """The backlog now. A stream or a group that is not there yet is an empty one. Raises what redis raises."""
    length: int = await redis.xlen(keys.requests)
    dead: int = await redis.xlen(keys.dead)
    try:
        groups: Any = await redis.xinfo_groups(keys.requests)
    except ResponseError:
        groups = []
    group = next((each for each in groups if each["name"] == GROUP.encode()), None)
    if group is None:
        return Backlog(length, length, 0, 0.0, 0, dead)
    pending = group["pending"]
    oldest = 0.0
    if pending:
        rows: Any = await redis.xpending_range(keys.requests, GROUP, "-", "+", 1)
        oldest = rows[0]["time_since_delivered"] / 1000 if rows else 0.0
    # `lag` is null after a deletion ahead of the group; as answered entries are deleted, the rest is what is left.
    lag = group["lag"] if group["lag"] is not None else length - pending
    return Backlog(length, max(0, lag), pending, oldest, group["consumers"], dead)
