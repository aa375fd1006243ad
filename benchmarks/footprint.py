"""What conversations leave behind and cost: the inputs of the capacity model in docs/operations.md.

`python -m benchmarks.footprint` runs turns with two tool calls each, eight at a time, through an engine on PostgreSQL
and one worker, and prints per turn: bytes in Redis and in PostgreSQL, commands, transactions, processor time.
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import psycopg
from redis import Redis

from benchmarks.arguments import at_least
from benchmarks.machine import describe
from tests.support.stack import DATABASE, Stack, running_stack

QUESTION = "What time is it in Tokyo and in Paris?"
"""Two tool calls of a few hundred bytes, and an answer of about 60 tokens."""


def counters(stack: Stack, redis: Redis) -> dict[str, float]:
    """What only rises, by name."""
    assert stack.engine
    assert stack.postgres
    stats, memory = redis.info("stats"), redis.info("memory")  # pyright: ignore[reportUnknownVariableType]
    with psycopg.connect(stack.postgres.url_of(DATABASE), autocommit=True) as database:
        row = database.execute(
            "SELECT pg_database_size(current_database()), xact_commit FROM pg_stat_database"
            " WHERE datname = current_database()"
        ).fetchone()
    assert row
    processes = {"engine": stack.engine.pid, "worker": next(iter(stack.workers.values())).pid}
    processes |= {"Redis": stack.redis.process.pid, "PostgreSQL": stack.postgres.process.pid}
    return {
        "KiB in Redis, for a day": memory["used_memory"] / 1024,
        "KiB in PostgreSQL": row[0] / 1024,
        "commands of Redis": stats["total_commands_processed"],
        "transactions": row[1],
        **{f"ms of processor time: {name}": 1000 * processor_time(pid) for name, pid in processes.items()},
    }


def processor_time(pid: int) -> float:
    """Seconds of a process and of its children, dead ones included."""
    process = psutil.Process(pid)
    times = process.cpu_times()
    alive = [child.cpu_times() for child in process.children(recursive=True)]
    gone = times.children_user + times.children_system
    return times.user + times.system + gone + sum(each.user + each.system for each in alive)


def main() -> None:
    """Run the turns, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=at_least(1), default=200)
    turns: int = parser.parse_args().turns
    with running_stack(database="postgres") as stack, Redis.from_url(stack.redis.url) as redis:
        with ThreadPoolExecutor(8) as clients:
            list(clients.map(stack.ask, [QUESTION] * 16))  # connections, prepared statements, first pages
            before, began = counters(stack, redis), time.monotonic()
            reasons = {said.reason for said in clients.map(stack.ask, [QUESTION] * turns)}
        after, took = counters(stack, redis), time.monotonic() - began
        machine = describe(stack.folder, stack.redis.url)
    assert reasons == {"stop"}, reasons
    print(machine)
    print(f"{turns} turns with two tool calls each, {turns / took:.0f} per second; per turn:")
    for name, value in after.items():
        print(f"  {name:38} {(value - before[name]) / turns:10.2f}")


if __name__ == "__main__":
    main()
