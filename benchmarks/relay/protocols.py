"""What a token costs the engine in each protocol that it speaks, beside its own.

    python -m benchmarks.relay.protocols [--rounds 5] [--streams 50] [--pace 50] [--readers 50]

One engine serves all of them, in turn. First each stream is a question in a new conversation, whose tokens arrive
alone. Then so many readers more follow one turn: what they add is the cost of a token for each reader.
"""

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import uvloop

from benchmarks.arguments import at_least
from benchmarks.machine import describe
from benchmarks.relay.__main__ import WARM_UP, side_by_side
from benchmarks.relay.answers import Answer
from benchmarks.relay.measures import Load, Seen, relayed
from benchmarks.relay.readers import connection, get
from benchmarks.relay.relays import Relay, callstream, cpu_seconds, provider
from dialog_engine.facades.responses.ids import response_id
from tests.support.processes import ROOT

SECONDS = 6
NATIVE = "its own"
PATHS = {
    NATIVE: "/v1/chat",
    "Chat Completions": "/v1/chat/completions",
    "Responses": "/v1/responses",
    "AI SDK": "/v1/ai-sdk/chat",
}
READ_AT = {
    NATIVE: "/v1/turns/{turn}/events",
    "Responses": "/v1/responses/{response}?stream=true",
    "AI SDK": "/v1/ai-sdk/chat/{session}/stream",
}
"""Where more readers follow the turn. Chat Completions has no such address."""


async def measure(options: argparse.Namespace, folder: Path) -> None:
    """Measure and print."""
    with ExitStack() as stack:
        source = stack.enter_context(provider())
        engine = stack.enter_context(callstream(source.port, folder))
        ways = [replace(engine, name=name, path=path, beside={}) for name, path in PATHS.items()]
        print(describe(folder, engine.redis_url), flush=True)
        for way in ways:
            await relayed(way, WARM_UP, Seen())
        load = Load(options.streams, SECONDS * options.pace, 1000 / options.pace)
        await side_by_side(f"{options.pace} tokens/s each", ways, load, options.rounds, base=NATIVE)
        print(f"\n{options.readers} readers more of one turn, µs of processor time per token and reader")
        read = [way for way in ways if way.name in READ_AT]
        costs = {way.name: list[float]() for way in read}
        for _ in range(options.rounds):
            for way in read:
                costs[way.name].append(await _per_reader(way, options))
        _print(costs)


async def _per_reader(way: Relay, options: argparse.Namespace) -> float:
    """Microseconds that one more reader of a turn costs for each token: with all the readers, less those without."""
    seconds = [await _spent(way, readers, options.pace) for readers in (0, options.readers)]
    return (seconds[1] - seconds[0]) * 1e6 / (SECONDS * options.pace * options.readers)


async def _spent(way: Relay, readers: int, pace: int) -> float:
    """Seconds of processor time for one turn with so many readers more, from its first token to its end."""
    answer = Answer(readers + 1, SECONDS * pace, 1000 / pace)
    asking = await connection(way.port)
    asking.ask(way.request(answer), b"x-turn-id")
    await asking.marked
    turn, session = asking.field("x-turn-id"), asking.field("x-session-id")
    path = READ_AT[way.name].format(turn=turn, session=session, response=response_id(turn))
    watching = [await connection(way.port) for _ in range(readers)]
    before = cpu_seconds(way.process)
    for reader in watching:
        reader.ask(get(way.port, path), b"HTTP/1.1 200")
    await asyncio.gather(asking.ended, *(reader.marked for reader in watching), *(each.ended for each in watching))
    spent = cpu_seconds(way.process) - before
    for reader in (asking, *watching):
        reader.transport.close()
    return spent


def _print(costs: Mapping[str, Sequence[float]]) -> None:
    for name, mine in costs.items():
        ratio = statistics.median(a / b for a, b in zip(mine, costs[NATIVE], strict=True))
        print(f"{name:24}{statistics.median(mine):>10.1f}{min(mine):>10.1f}{max(mine):>10.1f}{ratio:>14.2f}")


def main() -> None:
    """Parse the options and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--streams", type=at_least(1), default=50)
    parser.add_argument("--pace", type=at_least(1), default=50, help="tokens/s of a stream")
    parser.add_argument("--readers", type=at_least(1), default=50)
    options = parser.parse_args()
    data = ROOT / ".data"
    data.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=data) as folder, suppress(KeyboardInterrupt):
        uvloop.run(measure(options, Path(folder)))


if __name__ == "__main__":
    main()
