"""Every key in Redis has a TTL or is listed as permanent: a test that leaves another one fails."""

from typing import Any

from redis import Redis

from plugins_contract.keys import Keys

NO_TTL = -1
_NAMED = (Keys().pins_of(""), Keys().requests_of("-").removesuffix("-"))


def leaked_keys(url: str) -> list[str]:
    permanent = tuple(Keys().permanent)
    client: Any = Redis.from_url(url, socket_timeout=5, decode_responses=True)
    with client:
        names: list[str] = list(client.scan_iter(count=1000))
        names = [name for name in names if not name.endswith(permanent) and not any(each in name for each in _NAMED)]
        return sorted(name for name in names if client.ttl(name) == NO_TTL)
