"""Removes the consumers of dead workers from the group, and shows that this one is alive."""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from redis.asyncio import Redis
from redis.exceptions import RedisError

from plugins_contract.keys import Keys
from plugins_contract.ledger.group import show_consumer, tidy_consumers

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CleanupTimes:
    """In seconds."""

    silent: float = 30.0
    """A consumer without pending entries that was silent for this long is dead. It must not stay: a worker that never
    reports at the next server of Redis makes that server's earlier `once` calls unknown."""
    every: float = 8.0
    """How often each worker checks and is seen, with jitter, so that not all check at once."""


async def remove_dead_consumers(
    redis: Redis,
    keys: Keys,
    consumer: str,
    pools: Callable[[], Sequence[str]] = tuple,
    *,
    steady_for: Callable[[], float],
    removed: Callable[[Sequence[str]], None],
    times: CleanupTimes | None = None,
) -> None:
    """Keep `consumer` visible in the group and in its `pools`, and remove the consumers of killed workers.

    Runs until cancelled. `removed` gets their names. Nothing is removed before Redis has been steady for so long that
    every running worker was seen again.
    """
    times = times or CleanupTimes()
    while True:
        await asyncio.sleep(times.every * random.uniform(0.5, 1.5))
        try:
            await show_consumer(redis, keys, consumer, pools())
            if steady_for() < 1.5 * times.every:
                continue
            gone = await tidy_consumers(redis, keys, consumer, pools(), silent_ms=int(times.silent * 1000))
        except RedisError as error:
            log.debug("dead consumers cannot be removed now: %s", error)  # the consumer's own loop logs it loudly
            continue
        if gone:
            log.warning("removed consumers that were silent for %.0f s: %s", times.silent, ", ".join(gone))
            removed(gone)
