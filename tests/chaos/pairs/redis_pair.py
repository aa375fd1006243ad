"""A Redis with a replica that is a second behind: it can be flushed, lose its last second, and fail over.

Clients have one address. At a failover the replica is promoted as far as it has come, and takes the port; the old
master keeps the connections that it has, and answers them until it is killed.
"""

import os
import re
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from redis import Redis

from deploy.local.ports import free_port
from tests.chaos.faults import Faults
from tests.chaos.proxy import Proxy
from tests.support.servers import LocalServer, answers_ping
from tests.support.waiting import wait_until_blocking

LOST_SECONDS = 1.0
"""How far the replica is behind, and how much a restart loses."""
SYNC_SECONDS = 60.0
OPTIONS = ("--appendfsync", "no", "--aof-timestamp-enabled", "yes", "--repl-diskless-sync-delay", "0")
"""Each command is in the file before it is answered, and the file says when each second began."""
STAMP = re.compile(rb"^#TS:(\d+)\r$", re.MULTILINE)


@contextmanager
def client_of(server: LocalServer) -> Generator[Any]:
    with Redis.from_url(server.url, decode_responses=True, socket_timeout=5) as client:
        yield client


def cut(folder: Path, since: float) -> int:
    """Shorten the append-only file of a dead server by what it wrote from that Unix time on: so many bytes."""
    parts = folder.glob("appendonlydir/*.incr.aof")
    path = max(parts, key=lambda path: int(path.name.split(".")[-3]))  # the part that grows
    data = path.read_bytes()
    later = (found.start() for found in STAMP.finditer(data) if int(found[1]) >= since)
    kept = next(later, len(data))
    os.truncate(path, kept)
    return len(data) - kept


class RedisPair:
    """The two servers. `master` is the one that new connections reach."""

    def __init__(self, master: LocalServer, master_folder: Path, replica: LocalServer, replica_folder: Path) -> None:
        self.master, self.replica = master, replica
        self._folders = {id(master): master_folder, id(replica): replica_folder}
        self._late = Proxy(master.port, redis=False)
        self._running = ExitStack()

    def start(self) -> None:
        """Start the replica; the master runs. Returns when the replica is as near as it will be."""
        self._running.enter_context(self._late)
        self._late.set(Faults(delay_replies=LOST_SECONDS))
        self.settle()

    def close(self) -> None:
        self._running.close()
        self.replica.stop()
        self.master.stop()

    def flush(self) -> None:
        """Everything is gone. Waits until there is a server that can be asked."""
        wait_until_blocking(self._answers, SYNC_SECONDS)
        with client_of(self.master) as client:
            client.flushall()

    def kill(self) -> int:
        """Kill the master; its last second or two are lost, of which the number of bytes is returned."""
        wait_until_blocking(self._answers, SYNC_SECONDS)
        self.master.kill()
        return cut(self._folders[id(self.master)], time.time() - 1 - LOST_SECONDS)

    def fail_over(self) -> tuple[LocalServer, int]:
        """Promote the replica. The old master, which others still reach, and how many bytes the new one is behind."""
        wait_until_blocking(self._answers, SYNC_SECONDS)
        old, new = self.master, self.replica
        port, url = old.port, old.url
        with client_of(old) as here, client_of(new) as there:
            behind = here.info("replication")["master_repl_offset"]
            there.execute_command("REPLICAOF", "NO", "ONE")
            behind -= there.info("replication")["master_repl_offset"]
            old.port, new.port = free_port(), port
            here.config_set("port", str(old.port))
            there.config_set("port", str(port))
        old.url, new.url = f"redis://127.0.0.1:{old.port}/0", url
        self.master, self.replica = new, old
        return old, behind

    def settle(self) -> None:
        """Have a replica again, that has received everything but the last second."""
        self._start_replica()
        wait_until_blocking(self._follows, SYNC_SECONDS, what="the replica to follow")
        written = self._offset(self.master)
        wait_until_blocking(lambda: self._offset(self.replica) >= written, SYNC_SECONDS, what="the replica's offset")

    def _start_replica(self) -> None:
        try:
            self.replica.process.ready(lambda: True)
        except RuntimeError:
            self.replica.stop()
            self.replica.start()
        with client_of(self.replica) as client:
            if client.info("replication")["role"] == "master":
                client.execute_command("REPLICAOF", "127.0.0.1", self._late.port)

    def _offset(self, server: LocalServer) -> int:
        """How much of the replication stream a server has written or received."""
        with client_of(server) as client:
            known = client.info("replication")
            return known["master_repl_offset" if known["role"] == "master" else "slave_repl_offset"]

    def _follows(self) -> bool:
        """Whether the replica receives what the master writes, and has forgotten what the master has lost."""
        with client_of(self.master) as here, client_of(self.replica) as there:
            written, known = here.info("replication"), there.info("replication")
        same = known["master_replid"] == written["master_replid"]
        return same and known["master_link_status"] == "up" and not known["master_sync_in_progress"]

    def _answers(self) -> bool:
        return answers_ping(self.master.url)
