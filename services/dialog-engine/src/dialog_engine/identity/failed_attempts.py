"""Failed attempts to prove who one is, counted per address."""

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable

MOST_ADDRESSES = 10_000
"""How many addresses are remembered; beyond that the one whose last attempt is oldest is forgotten."""


class FailedAttempts:
    """A token bucket per address: `per_minute` failures at once, and as many again over each minute; 0: any number.

    An IPv6 client can choose among all addresses of its network, so the first 64 bits count.
    """

    def __init__(self, per_minute: int, *, now: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._now = now
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """By address: how many failures are left, and since when."""

    def __len__(self) -> int:
        return len(self._left)

    def wait(self, address: str) -> int:
        """In how many seconds the next attempt of this address may be made; 0: now."""
        if not self._per_minute:
            return 0
        left = self._left_now(_network(address))
        return 0 if left >= 1 else math.ceil((1 - left) * 60 / self._per_minute)

    def failed(self, address: str) -> None:
        """Count a failure."""
        if not self._per_minute:
            return
        network = _network(address)
        self._left[network] = self._left_now(network) - 1, self._now()
        self._left.move_to_end(network)
        if len(self._left) > MOST_ADDRESSES:
            self._left.popitem(last=False)

    def succeeded(self, address: str) -> None:
        """Take back a failure that was counted before the attempt was made."""
        network = _network(address)
        if network in self._left:
            self._left[network] = self._left_now(network) + 1, self._now()

    def _left_now(self, network: str) -> float:
        left, since = self._left.get(network, (float(self._per_minute), 0.0))
        return min(self._per_minute, left + (self._now() - since) * self._per_minute / 60)


def _network(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
