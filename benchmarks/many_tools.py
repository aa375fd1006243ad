"""How long the event loop is held while the engine makes what it offers in the place of very many tools.

    python -m benchmarks.many_tools [--tools 500]

Beside it the same work without a pause, in the same run. In processor time, so that it does not
matter what else this machine does.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

from benchmarks.arguments import at_least
from dialog_engine.model import Turn
from dialog_engine.tool_calls.exposure import Exposure, ExposureMode
from dialog_engine.tool_calls.ports import ToolSource
from dialog_engine.tool_calls.ranking import Ranking
from dialog_engine.tool_calls.slices import at_once
from dialog_engine.tool_calls.tool_search import ToolSearch
from plugins_contract.catalog import ToolEntry
from plugins_contract.outcomes import ToolError

ROUNDS = 9
SERVERS = 20
WORDS = (
    *("author", "body", "branch", "comment", "commit", "cursor", "date", "draft", "event", "file", "folder", "issue"),
    *("label", "limit", "member", "message", "note", "order", "owner", "page", "path", "project", "repository", "team"),
    *("add", "close", "create", "delete", "fetch", "find", "get", "list", "merge", "move", "read", "search", "update"),
)


@dataclass
class Catalog(ToolSource):
    """These tools."""

    entries: tuple[ToolEntry, ...]

    def tools(self) -> tuple[ToolEntry, ...]:
        return self.entries

    def find(self, name: str) -> ToolEntry | ToolError:
        raise NotImplementedError


def catalog(number: int) -> Catalog:
    """Tools with names, descriptions and schemas of the length that is usual."""
    random = Random(1)
    return Catalog(tuple(_tool(n, random) for n in range(number)))


def _tool(number: int, random: Random) -> ToolEntry:
    def words(count: int) -> str:
        return " ".join(random.choices(WORDS, k=count))

    properties: dict[str, Any] = {
        words(2).replace(" ", "_"): {"type": random.choice(["string", "integer"]), "description": words(10)}
        for _ in range(6)
    }
    server, own = f"server{number % SERVERS}", f"{words(2).replace(' ', '_')}_{number}"
    schema = {"type": "object", "properties": properties, "required": [*properties][:2]}
    return ToolEntry(name=f"{server}__{own}", server=server, tool=own, description=f"{words(60)}.", input_schema=schema)


async def longest_hold(work: Callable[[], Awaitable[object]]) -> float:
    """The longest time, in milliseconds of the processor, for which nothing else could run meanwhile."""
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - before)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    await work()
    await asyncio.sleep(0)
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    return longest * 1000


async def main(number: int) -> None:
    there = catalog(number)
    turn = Turn("turn", "session", "subject")

    async def list_at_once() -> None:
        Exposure(ExposureMode.GATEWAY).in_force(there.entries)

    async def index_at_once() -> None:
        at_once(Ranking.of(there.entries))

    async def search() -> None:
        await ToolSearch(there).answer(turn, {"query": "create a draft for the review"})

    async def offer() -> None:
        await Exposure(ExposureMode.GATEWAY).prepare(there.entries)

    print(f"{number} tools of {SERVERS} servers: the longest hold in ms, median and worst of {ROUNDS}")
    rows: Sequence[tuple[str, Callable[[], Awaitable[object]]]] = [
        ("list of the gateway", offer),
        ("the same without a pause", list_at_once),
        ("a first search, with its index", search),
        ("the index without a pause", index_at_once),
    ]
    for name, work in rows:
        holds = [await longest_hold(work) for _ in range(ROUNDS)]
        print(f"{name:32} {statistics.median(holds):6.1f} {max(holds):6.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", type=at_least(1), default=500)
    asyncio.run(main(parser.parse_args().tools))
