"""Records the backlog of a burst of tool calls: `python -m tests.support.recorded_backlog FILE`.

One worker with eight slots; calls of two seconds come faster than it can run them, then no more come.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
from redis import Redis

from plugins_contract.keys import GROUP, Keys
from tests.support.stack import running_stack

CALLS = 190
ENGINE = {"MCP_REQUEST_TIMEOUT_MS": "60000", "SUBJECT_WINDOW": "0"}


def keda_reads(redis: Any) -> dict[str, int]:
    """What the triggers of KEDA's `redis-streams` read: XLEN and XPENDING."""
    stream = Keys().requests
    return {"length": redis.xlen(stream), "pending": redis.xpending(stream, GROUP)["pending"]}


def main() -> None:
    """Write one sample per second into the file, until nothing waits any more."""
    samples: list[dict[str, int]] = []
    with (
        running_stack(worker_env={"WORKER_CONCURRENCY": "8"}, engine_env=ENGINE) as stack,
        Redis.from_url(stack.redis.url) as redis,
        ThreadPoolExecutor(CALLS) as clients,
        httpx2.Client(base_url=stack.url, timeout=120, limits=httpx2.Limits(max_connections=CALLS)) as stack.http,
    ):
        turns = [clients.submit(stack.ask, "Run a slow job for 2 seconds") for _ in range(CALLS)]
        while not all(turn.done() for turn in turns):
            samples.append(keda_reads(redis))
            time.sleep(1)
    Path(sys.argv[1]).write_text(json.dumps(samples) + "\n")


if __name__ == "__main__":
    main()
