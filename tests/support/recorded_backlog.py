"""Records the backlog of a burst of tool calls: `python -m tests.support.recorded_backlog FILE`.

One worker with two slots; calls of two seconds come faster than it can run them, and those that wait longest expire.
"""

import json
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from redis import Redis

from plugins_contract.keys import GROUP, Keys
from tests.support.stack import Said, running_stack

CALLS, CALLS_PER_SECOND = 95, 5


def keda_reads(redis: Any) -> dict[str, int | None]:
    """What triggers of KEDA's `redis-streams` may read: XLEN, the lag of XINFO GROUPS, and XPENDING."""
    stream = Keys().requests
    [lag] = [each["lag"] for each in redis.xinfo_groups(stream) if each["name"] == GROUP.encode()]
    return {"length": redis.xlen(stream), "lag": lag, "pending": redis.xpending(stream, GROUP)["pending"]}


def main() -> None:
    """Write one sample per second into the file, until nothing waits any more."""
    samples: list[dict[str, int | None]] = []
    with (
        running_stack(worker_env={"WORKER_CONCURRENCY": "2"}) as stack,
        Redis.from_url(stack.redis.url) as redis,
        ThreadPoolExecutor(CALLS) as clients,
    ):
        turns: list[Future[Said]] = []
        while len(turns) < CALLS or not all(turn.done() for turn in turns):
            if len(turns) < CALLS:
                turns += [clients.submit(stack.ask, "Run a slow job for 2 seconds") for _ in range(CALLS_PER_SECOND)]
            samples.append(keda_reads(redis))
            time.sleep(1)
    Path(sys.argv[1]).write_text(json.dumps(samples) + "\n")


if __name__ == "__main__":
    main()
