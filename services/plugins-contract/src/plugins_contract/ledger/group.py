"""The consumer group of the request stream: how much work waits there, and which consumers are alive."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from plugins_contract.keys import GROUP, Keys
from plugins_contract.ledger import steps
from plugins_contract.ledger.scripts import Scripts
from plugins_contract.pools import OWN_POOL

_LAST = f"{2**64 - 1}-{2**64 - 2}"  # one more would be the id that means: new entries


@dataclass(frozen=True, slots=True)
class Backlog:
    """The state of one stream of requests.

    `lag` counts the entries that no worker has taken, `pending` those that a worker holds, `dead` the dead letters.
    `oldest_waiting_seconds` is the age of the oldest entry that no worker has taken, `oldest_pending_seconds` the time
    since the lease of the oldest pending entry was renewed.
    """

    length: int
    lag: int
    pending: int
    oldest_pending_seconds: float
    consumers: int
    dead: int
    oldest_waiting_seconds: float = 0.0


async def read_backlogs(redis: Redis, keys: Keys, streams: Sequence[str]) -> dict[str, Backlog]:
    """The backlog of `events.plugins`, and of those of the `streams` that hold something. Raises what redis raises.

    The streams of sessions, one for each worker, are one together: their names are new with each worker.
    """
    found, own = dict[str, Backlog](), keys.requests_of(OWN_POOL)
    for stream in streams:
        backlog = await read_backlog(redis, keys, stream)
        if backlog.length or stream == keys.requests:
            name = f"{own}*" if stream.startswith(own) else stream
            found[name] = _together(found[name], backlog) if name in found else backlog
    return found


def _together(one: Backlog, other: Backlog) -> Backlog:
    return Backlog(
        length=one.length + other.length,
        lag=one.lag + other.lag,
        pending=one.pending + other.pending,
        oldest_pending_seconds=max(one.oldest_pending_seconds, other.oldest_pending_seconds),
        consumers=one.consumers + other.consumers,
        dead=one.dead,
        oldest_waiting_seconds=max(one.oldest_waiting_seconds, other.oldest_waiting_seconds),
    )


async def read_backlog(redis: Redis, keys: Keys, stream: str = "") -> Backlog:
    """The backlog of a stream now, of `events.plugins` by default. Raises what redis raises.

    A stream or group that does not exist yet is empty.
    """
    stream = stream or keys.requests
    length: int = await redis.xlen(stream)
    dead: int = await redis.xlen(keys.dead)
    try:
        groups: Any = await redis.xinfo_groups(stream)
    except ResponseError:
        groups = []
    group = next((each for each in groups if each["name"] == GROUP.encode()), None)
    if group is None:
        return Backlog(length, length, 0, 0.0, 0, dead, await _age_of_next(redis, stream, "-"))
    pending = group["pending"]
    oldest = 0.0
    if pending:
        rows: Any = await redis.xpending_range(stream, GROUP, "-", "+", 1)
        oldest = rows[0]["time_since_delivered"] / 1000 if rows else 0.0
    # `lag` is null after a deletion ahead of the group; as finished entries are deleted, the rest was not taken.
    lag = max(0, group["lag"] if group["lag"] is not None else length - pending)
    waiting = await _age_of_next(redis, stream, f"({group['last-delivered-id'].decode()}") if lag else 0.0
    return Backlog(length, lag, pending, oldest, group["consumers"], dead, waiting)


async def _age_of_next(redis: Redis, stream: str, start: str) -> float:
    """The age of the first entry from `start` on, in seconds; 0 when there is none. An id begins with its time."""
    entries: Any = await redis.xrange(stream, start, "+", count=1)
    if not entries:
        return 0.0
    seconds, microseconds = await redis.time()
    return max(0.0, seconds + microseconds / 1e6 - int(entries[0][0].partition(b"-")[0]) / 1000)


async def tidy_consumers(
    redis: Redis, keys: Keys, consumer: str, pools: Sequence[str] = (), *, silent_ms: int
) -> list[str]:
    """Remove consumers from the group that hold nothing and have read nothing for `silent_ms`, in these pools too.

    Returns the names of those that left `events.plugins`. `consumer` is the caller, which stays. Idle
    times keep growing while Redis is away: give living workers the time to read again before. Raises what redis raises.
    """
    step = steps.tidy(
        requests=keys.requests,
        workers=keys.workers,
        pools=[*map(keys.requests_of, pools)],
        consumer=consumer,
        silent_ms=silent_ms,
    )
    gone = await Scripts(redis).run(step)
    return [name.decode() for name in gone]


async def show_consumer(redis: Redis, keys: Keys, consumer: str, pools: Sequence[str] = ()) -> None:
    """Let the group know that `consumer` is alive, in these pools too. Redis 7.0 counts no read that found nothing.

    Raises what redis raises, also when there is no group.
    """
    # A read of the entries it holds, from behind the last one.
    streams = [keys.requests, *map(keys.requests_of, pools)]
    last = [_LAST] * len(streams)
    await redis.execute_command("XREADGROUP", "GROUP", GROUP, consumer, "COUNT", 1, "STREAMS", *streams, *last)
