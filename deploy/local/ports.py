"""Ports for the servers of this machine that were given none.

`LOCAL_PORTS`, such as `20000-25999`, limits the choice, so that two programs with ranges of their own never meet.
"""

import os
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import cycle

ALL = range(20_000, 32_000)
"""Below the ports of outgoing connections (on Linux from 32768), which could take one before its server has started."""


def allowed() -> range:
    """The ports of `LOCAL_PORTS`, or all."""
    first, _, last = os.environ.get("LOCAL_PORTS", "").partition("-")
    return range(int(first), int(last) + 1) if first else ALL


@cache
def _in_turn(ports: range) -> Iterator[int]:
    return cycle(random.sample(ports, len(ports)))


def free_port() -> int:
    """A TCP port of 127.0.0.1 that is free now and was not given recently. Raises OSError when there is none."""
    for _ in ALL:
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port := next(_in_turn(allowed()))))
            return port
    raise OSError("no port is free for a local server")
