"""Keeps the group tidy: a worker that is killed leaves its name there, and nobody else takes it out."""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from redis.asyncio import Redis
from redis.exceptions import RedisError

from plugins_contract.keys import Keys
from plugins_contract.ledger.group import show_consumer, tidy_consumers

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TidyTimes:
    """In seconds."""

    silent: float = 600.0
    """A consumer that holds nothing and was silent for so long is gone. Many times the longest pause between reads."""
    every: float = 60.0
    """How often each worker looks, roughly: they should not all look at once."""


async def keep_tidy(
    redis: Redis,
    keys: Keys,
    consumer: str,
    *,
    steady_for: Callable[[], float],
    times: TidyTimes | None = None,
) -> None:
    """Show that `consumer` lives, and take out those whose workers are gone, for ever.

    Not before Redis has been steady for so long that every living worker has shown itself again.
    """
    times = times or TidyTimes()
    while True:
        await asyncio.sleep(times.every * random.uniform(0.5, 1.5))
        try:
            await show_consumer(redis, keys, consumer)
            if steady_for() < 1.5 * times.every:
                continue
            gone = await tidy_consumers(redis, keys, consumer, silent_ms=int(times.silent * 1000))
        except RedisError as error:
            log.debug("the group cannot be kept tidy now: %s", error)  # the consumer says so, and makes it anew
            continue
        if gone:
            log.info("taken out of the group, silent for %.0f s: %s", times.silent, ", ".join(gone))
