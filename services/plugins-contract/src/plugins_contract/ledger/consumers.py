"""The consumers of the group: living ones show themselves, and those whose workers are gone are taken out."""

from plugins_contract.keys import GROUP, Keys
from plugins_contract.ledger import scripts

_LAST = f"{2**64 - 1}-{2**64 - 2}"  # one more, and it would mean: what is new


async def tidy_consumers(redis: scripts.AsyncCommands, keys: Keys, consumer: str, *, silent_ms: int) -> list[str]:
    """Take consumers out of the group that hold nothing and have asked for nothing for `silent_ms`; their names.

    `consumer` asks, and stays. Idle times go on growing while Redis is away: give living workers the time to read again
    before. Raises what redis raises.
    """
    gone = await scripts.run(redis, "tidy", [keys.requests], [GROUP, consumer, silent_ms])
    return [name.decode() for name in gone]


async def show_consumer(redis: scripts.AsyncCommands, keys: Keys, consumer: str) -> None:
    """Let the group know that `consumer` lives. Redis 7.0 does not count a read that found nothing. Raises what redis
    raises, also that there is no group.
    """
    # A read of what it holds, behind the last of it.
    await redis.execute_command("XREADGROUP", "GROUP", GROUP, consumer, "COUNT", 1, "STREAMS", keys.requests, _LAST)
