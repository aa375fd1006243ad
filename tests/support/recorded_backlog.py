"""Records lag and pending of a burst of tool calls: `python -m tests.support.recorded_backlog > FILE`.

One worker with four slots; turns with a slow job of two seconds come faster than it can run them, then stop.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from redis import Redis

from plugins_contract.keys import GROUP, Keys
from tests.support.stack import running_stack

CALLS = 80


def keda_reads(redis: Any) -> dict[str, int | None]:
    """What the triggers of KEDA's `redis-streams` read: XINFO GROUPS, and XPENDING."""
    stream = Keys().requests
    [lag] = [each["lag"] for each in redis.xinfo_groups(stream) if each["name"] == GROUP.encode()]
    return {"lag": lag, "pending": redis.xpending(stream, GROUP)["pending"]}


def main() -> None:
    """Print one sample per second, until nothing waits any more."""
    samples: list[dict[str, int | None]] = []
    with (
        running_stack(worker_env={"WORKER_CONCURRENCY": "4"}) as stack,
        Redis.from_url(stack.redis.url) as redis,
        ThreadPoolExecutor(CALLS) as clients,
    ):
        turns = [clients.submit(stack.ask, "Run a slow job for 2 seconds") for _ in range(CALLS)]
        while not all(turn.done() for turn in turns):
            samples.append(keda_reads(redis))
            time.sleep(1)
    sys.stdout.write(json.dumps(samples) + "\n")


if __name__ == "__main__":
    main()
