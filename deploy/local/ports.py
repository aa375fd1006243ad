"""Ports for the servers of this machine that were given none."""

import random
import socket
from itertools import cycle

# Below the ports that Linux (from 32768) and others (from 49152) give to outgoing connections: one of those could be
# taken by any connection before its server has started.
_SERVERS = range(20_000, 32_000)
_IN_TURN = cycle(random.sample(_SERVERS, len(_SERVERS)))


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on right now, and that this process was not given lately.

    Raises:
        OSError: there is none.
    """
    for _ in _SERVERS:
        port = next(_IN_TURN)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise OSError(f"no free port between {_SERVERS.start} and {_SERVERS.stop - 1}")
