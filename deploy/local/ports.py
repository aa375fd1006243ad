"""Ports for the servers of this machine that were given none.

`LOCAL_PORTS`, such as `20000-25999`, limits the choice: two programs that start servers at the same time, each with a
range of its own, never choose the same port. The programs that they start inherit it.
"""

import os
import random
import socket
from collections.abc import Iterator
from functools import cache
from itertools import cycle

ALL = range(20_000, 32_000)
"""Below the ports that Linux (from 32768) and others (from 49152) give to outgoing connections: any connection could
take one of those before its server has started."""


def allowed() -> range:
    """Returns the ports of `LOCAL_PORTS`, or all."""
    first, _, last = os.environ.get("LOCAL_PORTS", "").partition("-")
    return range(int(first), int(last) + 1) if first else ALL


@cache
def _in_turn(ports: range) -> Iterator[int]:
    """The ports of the range in a random order, over and over."""
    return cycle(random.sample(ports, len(ports)))


def free_port() -> int:
    """Returns a TCP port of 127.0.0.1 that is free now and that this process was not given recently.

    Raises:
        OSError: there is none.
    """
    ports = _in_turn(allowed())
    for _ in ALL:
        port = next(ports)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise OSError("no port is free for a local server")
