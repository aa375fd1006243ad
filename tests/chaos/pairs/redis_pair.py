"""A Redis with a replica that is a second behind: it can be flushed, lose its last second, and fail over.

Clients have one address. At a failover the replica is promoted as far as it has come, and takes the port; the old
master keeps the connections that it has, and answers them until it is killed.
"""

import os
import time
from collections import deque
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from redis import Redis

from deploy.local.ports import free_port
from tests.chaos.faults import Faults
from tests.chaos.proxy import Proxy
from tests.support.servers import LocalServer, answers_ping
from tests.support.waiting import wait_until_blocking

LOST_SECONDS = 1.0
"""How far the replica is behind, and how much a restart loses."""
LOOK_SECONDS = 0.05
SYNC_SECONDS = 60.0
OPTIONS = ("--appendfsync", "no", "--repl-diskless-sync-delay", "0")
"""Each command is in the file before it is answered, so that the size of the file is a point in time."""


@contextmanager
def client_of(server: LocalServer) -> Generator[Any]:
    """A connection of the harness; replies are text."""
    with Redis.from_url(server.url, decode_responses=True, socket_timeout=5) as client:
        yield client


class Recorder:
    """Knows how long the append-only file of a server was some time ago."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: deque[tuple[float, Path, int]] = deque(maxlen=round(4 * LOST_SECONDS / LOOK_SECONDS))
        self._stop = Event()
        self._thread = Thread(target=self._run, name="sizes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._stop.set()
        self._thread.join()

    def cut(self, seconds: float) -> int:
        """Shorten the file, whose server is dead, to what it was so long ago. How many bytes were lost."""
        path = self._file()
        known = self.known(seconds)
        size = path.stat().st_size
        kept = min(size, known[-1] if known else 0)
        os.truncate(path, kept)
        return size - kept

    def known(self, seconds: float) -> list[int]:
        """The sizes that the file had so long ago and before."""
        path, until = self._file(), time.monotonic() - seconds
        return [size for at, file, size in list(self._sizes) if file == path and at <= until]

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            path = self._file()
            if path.exists():
                self._sizes.append((time.monotonic(), path, path.stat().st_size))

    def _file(self) -> Path:
        """The part of the append-only file that grows: the one with the highest number."""
        parts = self._folder.glob("appendonlydir/*.incr.aof")
        return max(parts, key=lambda path: int(path.name.split(".")[-3]), default=self._folder / "none")


class RedisPair:
    """The two servers. `master` is the one that new connections reach."""

    def __init__(self, master: LocalServer, master_folder: Path, replica: LocalServer, replica_folder: Path) -> None:
        self.master, self.replica = master, replica
        self._folders = {id(master): master_folder, id(replica): replica_folder}
        self._late = Proxy(master.port, redis=False)
        self._running = ExitStack()
        self._recorders: dict[int, Recorder] = {}

    def start(self) -> None:
        """Start the replica; the master runs. Returns when the replica is as near as it will be."""
        self._running.enter_context(self._late)
        self._late.set(Faults(delay_replies=LOST_SECONDS))
        self._recorders = {server: Recorder(folder) for server, folder in self._folders.items()}
        self.settle()

    def close(self) -> None:
        """End both."""
        for recorder in self._recorders.values():
            recorder.close()
        self._running.close()
        self.replica.stop()
        self.master.stop()

    def flush(self) -> None:
        """Everything is gone. Waits until there is a server that can be asked."""
        wait_until_blocking(self._answers, SYNC_SECONDS)
        with client_of(self.master) as client:
            client.flushall()

    def kill(self) -> int:
        """Kill the master; its last second is lost, of which the number of bytes is returned."""
        wait_until_blocking(self._answers, SYNC_SECONDS)
        self.master.kill()
        return self._recorders[id(self.master)].cut(LOST_SECONDS)

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
        for recorder in self._recorders.values():  # of both: the one that takes over may be killed at once
            wait_until_blocking(
                lambda recorder=recorder: recorder.known(LOST_SECONDS), SYNC_SECONDS, what="the size of a second ago"
            )

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
