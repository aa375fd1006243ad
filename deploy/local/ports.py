"""Free ports for local servers whose port is not configured."""

import random
import socket
from itertools import cycle

# Below the range from which Linux (from 32768) and other systems (from 49152) choose the ports of outgoing connections:
# such a connection could take the port before the server has started.
_SERVERS = range(20_000, 32_000)
_IN_TURN = cycle(random.sample(_SERVERS, len(_SERVERS)))


def free_port() -> int:
    """A TCP port of 127.0.0.1 that is free now, and that was not returned to this process recently.

    Raises:
        OSError: no port is free.
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
