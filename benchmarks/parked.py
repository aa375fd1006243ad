"""What parked turns cost: `python -m benchmarks.parked [--turns 10000] [--postgres]`.

Turns that wait for approval, through the HTTP API of one engine with a real store and Redis. Printed: what is left of
them in the engine's process, what each takes in the store and in Redis, what the engine's process does in ten seconds
without and with them, and how long after a refusal the model is asked again.
"""

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psycopg
from redis import Redis

from dialog_engine.chat.running_turn import RunningTurn
from dialog_engine.chat.service import Draft
from dialog_engine.event_log.turn_log import LiveLog
from plugins_contract.catalog import ApprovalPolicy
from tests.integration.engines import Engine, Model, publish, running_engine, settings
from tests.support.fakes.worker import tool
from tests.support.postgres import PostgresServer
from tests.support.servers import LocalServer, embedded_binary
from tests.support.waiting import wait_until

ASKING = tool("files__delete", {"type": "object"}, approval=ApprovalPolicy.ALWAYS)
AT_ONCE = 16
ANSWERED = 100
IDLE_SECONDS = 10.0
END_SECONDS = 120.0


class Timed(list[Any]):
    """Notes when the model was asked."""

    last = 0.0

    def append(self, item: Any) -> None:
        self.last = time.perf_counter()
        super().append(item)


def left_in_process() -> dict[str, int]:
    """What an engine has of a running turn, and its tasks and files."""
    gc.collect()
    found = Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, RunningTurn | Draft | LiveLog))
    return {**found, "tasks": len(asyncio.all_tasks()), "files": len([*Path("/proc/self/fd").iterdir()])}


async def processor_ms() -> float:
    """What this process uses in ten seconds in which nothing happens."""
    before = time.process_time()
    await asyncio.sleep(IDLE_SECONDS)
    return (time.process_time() - before) * 1000


async def ask(engine: Engine, model: Model, turns: int) -> list[str]:
    """Begin turns that ask, until all are parked."""
    begun: list[str] = []
    for first in range(0, turns, AT_ONCE):
        count = min(AT_ONCE, turns - first)
        for _ in range(count):
            model.will_call(ASKING.name)
        begun += [each["turnId"] for each in await asyncio.gather(*(engine.begin("Delete it") for _ in range(count)))]
        await wait_until(lambda: not model.replies and model.open == 0, END_SECONDS, what="the replies")
    wanted = f"dialog_turns_parked {float(turns)}"
    await wait_until(lambda: engine.metric(wanted), END_SECONDS, what="the parked turns")
    return begun


async def answer(engine: Engine, model: Model, turn_ids: list[str]) -> list[float]:
    """Refuse the calls of turns: after how many milliseconds the model is asked with the refusal."""
    model.asked = asked = Timed()
    pending = (await engine.client.get("/v1/me/pending")).json()["approvals"]
    taken: list[float] = []
    for each in pending[:ANSWERED]:
        count, began = len(asked), time.perf_counter()
        path = f"/v1/turns/{each['turnId']}/approvals/{each['correlationId']}"
        assert await engine.status("POST", path, json={"decision": "refuse"}) == 200
        await wait_until(lambda count=count: len(asked) > count, what="the next round")
        taken.append((asked.last - began) * 1000)
    return taken


async def run(turns: int, postgres: bool, folder: Path) -> None:
    async with AsyncExitStack() as stack:
        redis = LocalServer(embedded_binary(), folder)
        redis.start()
        stack.callback(redis.stop)
        changes: dict[str, Any] = {"approval_timeout_seconds": 86_400}
        if postgres:
            server = PostgresServer(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            server.start()
            stack.callback(server.stop)
            server.create_database("parked")
            changes["database_url"] = server.url_of("parked")
        publish(redis.url, ASKING)
        client: Any = stack.enter_context(Redis.from_url(redis.url))
        model = await stack.enter_async_context(Model().serving())
        engine = await stack.enter_async_context(running_engine(settings(folder, redis.url, model.url, **changes)))
        await wait_until(engine.offers, what="the tool")

        def stored() -> int:
            if postgres:
                with psycopg.connect(changes["database_url"]) as connection:
                    size = connection.execute("SELECT pg_database_size(current_database())").fetchone()
                    return size[0] if size else 0
            return sum(file.stat().st_size for file in folder.glob("engine.sqlite3*"))

        store, in_redis, left, idle = stored(), client.info()["used_memory"], left_in_process(), await processor_ms()
        turn_ids = await ask(engine, model, turns)
        print(f"{turns} parked turns")
        print(f"in the engine's process before: {left}")
        print(f"in the engine's process:        {left_in_process()}")
        print(f"processor time of {IDLE_SECONDS:g} s: {idle:.0f} ms before, {await processor_ms():.0f} ms with them")
        print(f"in the store: {(stored() - store) / turns / 1024:.1f} KiB each")
        print(f"in Redis, for a day: {(client.info()['used_memory'] - in_redis) / turns / 1024:.1f} KiB each")
        taken = await answer(engine, model, turn_ids)
        print(f"a refusal until the model is asked: {statistics.median(taken):.1f} ms p50, {max(taken):.1f} ms at most")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parked", description=__doc__)
    parser.add_argument("--turns", type=int, default=10_000)
    parser.add_argument("--postgres", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="callstream-parked-") as folder:
        asyncio.run(run(options.turns, options.postgres, Path(folder)))


if __name__ == "__main__":
    main()
