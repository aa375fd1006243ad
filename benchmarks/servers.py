"""How soon a worker has what its MCP servers offer: a changed file, a start with broken servers, a changed list.

    python -m benchmarks.servers [--calls 64] [--servers 50] [--broken 10] [--rounds 5]

Real processes: Redis, one worker, one engine, MCP servers over stdio. "At the engine" is what `GET /v1/tools` answers.
A reload is measured while calls are in flight, all of which must end at the process where they began. Of the broken
servers half exit at once and half never answer.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import psutil

from benchmarks.arguments import at_least
from plugins_contract.outcomes import CallState
from tests.support.processes import ROOT
from tests.support.stack import Json, Stack, running_stack
from tests.support.waiting import wait_until_blocking
from tests.support.working import calling

SLOW: Json = {
    "command": sys.executable,
    "args": ["-m", "examples.demo_server", "--transport", "stdio"],
    "env": {"PYTHONPATH": str(ROOT)},
}
GROWING: Json = SLOW | {"args": ["-c", "from tests.integration.servers.demo import server; server.run()"]}
EXITS: Json = {"command": sys.executable, "args": ["-c", "raise SystemExit(3)"]}
SILENT: Json = {"command": sys.executable, "args": ["-c", "import time; time.sleep(600)"]}
CALL_SECONDS = 8
SOON = 10.0
"""Seconds after which a worker should offer what answered."""
LIMIT = 120.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=at_least(1), default=64, help="in flight during the reload")
    parser.add_argument("--servers", type=at_least(2), default=50)
    parser.add_argument("--broken", type=at_least(1), default=10, help="so many of the servers")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="changes of a list")
    options = parser.parse_args()
    measured = [asyncio.run(reload(options.calls)), start(options.servers, options.broken), lists(options.rounds)]
    print("", *measured, sep="\n")  # after what the processes wrote


async def reload(calls: int) -> str:
    """One server stays, one goes and one comes, while calls run at the one that stays and the one that goes."""
    config = _file(stays=SLOW, goes=SLOW)
    with running_stack(config=config, worker_env={"WORKER_CONCURRENCY": str(calls)}) as stack:
        async with calling(stack.redis.url) as caller:
            requests = [
                await caller.call("slow_job", server=("stays", "goes")[number % 2], seconds=CALL_SECONDS, steps=1)
                for number in range(calls)
            ]
            for request in requests:
                await caller.started(request)
            before = _children(stack)
            _write(stack, _file(stays=SLOW, comes=SLOW))
            gone = await asyncio.to_thread(_until, lambda: "goes" not in _offered(stack))
            come = gone + await asyncio.to_thread(_until, lambda: "comes" in _offered(stack))
            running = sum([not await caller.has_ended(request) for request in requests])
            kept = len(before & _children(stack))
            outcomes = [await caller.outcome(request, LIMIT) for request in requests]
            starts = [await caller.starts(request) for request in requests]
    ended = sum(outcome.state is CallState.SUCCEEDED for outcome in outcomes)
    return (
        f"reload with {running} of {calls} calls in flight: {gone:.2f} s at the engine, {come:.2f} s with what is new;"
        f" {calls - ended} calls lost, {sum(count != 1 for count in starts)} repeated,"
        f" {kept} of {len(before)} processes kept until their calls ended"
    )


def start(servers: int, broken: int) -> str:
    """A worker starts with many servers, some of which never work."""
    good = {f"good{number}": SLOW for number in range(servers - broken)}
    bad = {f"bad{number}": (EXITS, SILENT)[number % 2] for number in range(broken)}
    with running_stack(config=_file(**good, **bad), start=False) as stack:
        stack.redis.start()
        stack.start_model()
        stack.start_engine()
        began = time.perf_counter()
        stack.start_worker()
        ready = time.perf_counter() - began
        time.sleep(max(0.0, began + SOON - time.perf_counter()))
        soon = len(_offered(stack))
        _until(lambda: len(_offered(stack)) == len(good))
        complete = time.perf_counter() - began
        states = stack.http.get("/v1/tools").json()["servers"]
        named = sum(each["server"] in bad and each["state"] != "ready" for each in states)
    return (
        f"{servers} servers, {broken} broken or silent: /readyz after {ready:.1f} s,"
        f" {soon} servers offered after {SOON:g} s, all that work after {complete:.1f} s;"
        f" {named} of {broken} named as not ready"
    )


def lists(rounds: int) -> str:
    """A server changes its list of tools and says so, at the call of a tool."""
    with running_stack(config=_file(growing=GROWING)) as stack:
        seconds = [asyncio.run(_grown(stack, f"tool{number}")) for number in range(rounds)]
    return f"list_changed at the engine: median {statistics.median(seconds):.3f} s, longest {max(seconds):.3f} s"


async def _grown(stack: Stack, name: str) -> float:
    async with calling(stack.redis.url) as caller:
        request = await caller.call("grow", server="growing", name=name)
        await caller.outcome(request)
        return await asyncio.to_thread(
            _until, lambda: any(tool["name"].endswith(name) for tool in _offered(stack)["growing"])
        )


def _file(**servers: Json) -> Json:
    return {"mcpServers": servers}


def _write(stack: Stack, config: Json) -> None:
    new = stack.config_path.with_suffix(".new")
    new.write_text(json.dumps(config))
    new.rename(stack.config_path)


def _offered(stack: Stack) -> dict[str, Sequence[Json]]:
    return {name: each["tools"] for name, each in stack.tools().items() if each["tools"]}


def _children(stack: Stack) -> set[int]:
    [worker] = stack.workers.values()
    return {each.pid for each in psutil.Process(worker.pid).children()}


def _until(holds: Callable[[], bool]) -> float:
    """Seconds until it holds."""
    began = time.perf_counter()
    wait_until_blocking(holds, LIMIT)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
