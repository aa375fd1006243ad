"""What the product occupies: memory and file descriptors of its processes, keys in Redis, bytes on the disk."""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plugins_contract.keys import GROUP, Keys
from tests.chaos.cluster import Cluster
from tests.support.processes import Process

KEYS = Keys()


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """One process: resident memory in MiB, and open file descriptors."""

    role: str
    memory: float
    files: int


@dataclass(frozen=True, slots=True)
class Usage:
    """One measurement. Keys are counted by kind: the part of the name before the first colon.

    `redis_memory` and `file`, the store on its disk, are in MiB.
    """

    processes: tuple[ProcessUsage, ...]
    keys: Counter[str]
    consumers: int
    redis_memory: float
    file: float

    def mean(self, role: str, what: str) -> float:
        values = [getattr(body, what) for body in self.processes if body.role == role]
        return sum(values) / len(values) if values else 0.0


def take(cluster: Cluster) -> Usage:
    """Measure now. Processes are measured on Linux only."""
    with cluster.client() as redis:
        keys = Counter(name.partition(":")[0] for name in redis.scan_iter(count=1000))
        consumers: Any = redis.xinfo_consumers(KEYS.requests, GROUP)
        used: Any = redis.info("memory")
    processes = tuple(_processes(cluster))
    return Usage(processes, keys, len(consumers), used["used_memory"] / 2**20, cluster.store.size / 2**20)


def processor_seconds(process: Process) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(process: Process) -> int:
    """The bytes of a process (RSS)."""
    pages = Path(f"/proc/{process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _processes(cluster: Cluster) -> Iterator[ProcessUsage]:
    processes = [("engine", engine) for engine in cluster.running_engines.values()]
    processes += [("worker", worker) for worker in cluster.workers.values()]
    for role, process in processes:
        with suppress(OSError):  # it is just ending, or there is no such place
            yield ProcessUsage(role, memory(process) / 2**20, len(list(Path(f"/proc/{process.pid}/fd").iterdir())))
