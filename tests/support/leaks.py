"""Every key in Redis has a TTL or is listed as permanent: a test that leaves another one fails."""

from typing import Any

from redis import Redis

from plugins_contract.keys import Keys

NO_TTL = -1


def leaked_keys(url: str) -> list[str]:
    """The keys on this server without a TTL that are not listed as permanent."""
    permanent = tuple(Keys().permanent)
    client: Any = Redis.from_url(url, socket_timeout=5, decode_responses=True)
    with client:
        names: list[str] = list(client.scan_iter(count=1000))
        names = [name for name in names if not name.endswith(permanent) and Keys().pins_of("") not in name]
        return sorted(name for name in names if client.ttl(name) == NO_TTL)
