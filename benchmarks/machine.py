"""Describes what a figure depends on: the machine and the versions."""

import os
import platform
import sqlite3
import statistics
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from redis import Redis

SYNCS = 50


def describe(folder: Path, redis_url: str) -> str:
    """A one-line description of this machine."""
    with Redis.from_url(redis_url) as redis:
        info: Any = redis.info("server")
    server = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"
    return ", ".join(
        [
            f"{os.cpu_count()} cores ({processor()}), load {os.getloadavg()[0]:.1f}",
            f"{platform.system()} {platform.machine()}",
            f"fsync {fsync_ms(folder):.2f} ms",
            f"Python {platform.python_version()}",
            server,
            f"SQLite {sqlite3.sqlite_version}",
            *(f"{name} {version(name)}" for name in ("mcp", "redis", "uvloop")),
        ]
    )


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def fsync_ms(folder: Path) -> float:
    """The median time to sync 4 KiB to the disk: the lower bound of a commit."""
    times: list[float] = []
    with (folder / "fsync").open("wb", buffering=0) as file:
        for _ in range(SYNCS):
            file.write(bytes(4096))
            began = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000
