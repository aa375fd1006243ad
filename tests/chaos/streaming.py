"""The part of the product that streams: Redis, the model, engines without tools, and an nginx in front of them."""

import sys
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from tests.chaos.cluster import Cluster
from tests.chaos.report import UnableHereError
from tests.support import nginx
from tests.support.nginx import running_nginx
from tests.support.stack import ENGINE


@contextmanager
def running_engines(
    folder: Path, *, behind_nginx: bool, engines: int = 1, send_timeout: float | None = None
) -> Generator[tuple[Cluster, int]]:
    """The running processes, and the port where clients go, for as long as the block.

    `send_timeout`: after how many seconds a client that does not read is dropped.

    Raises:
        UnableHereError: there is no nginx.
    """
    if behind_nginx and (reason := nginx.missing()):
        raise UnableHereError(reason)
    slow = (sys.executable, "-m", "tests.chaos.engine", "--send-timeout", str(send_timeout))
    cluster = Cluster(
        folder,
        engines=engines,
        program=ENGINE if send_timeout is None else slow,
        database="postgres" if engines > 1 else "sqlite",
        engine_env={"ENABLE_MCP": "false"},
    )
    with closing(cluster), ExitStack() as stack:
        cluster.start(workers=0)
        port = cluster.engine_port
        if behind_nginx:
            url = stack.enter_context(running_nginx(folder / "nginx", [*cluster.running_engines]))
            port = int(url.rpartition(":")[2])
        yield cluster, port
