"""The cost of relaying a model's tokens: Callstream beside a naive relay and, if installed, LiteLLM's proxy.

    make bench-relay                         or, with options, make bench-relay ARGS="--rounds 3"
    python -m benchmarks.relay --help

A provider streams prepared bytes to all of them, one token per event; clients in this process receive the answers and
compare them afterwards with what was sent. The relays are measured in turn, so that other work on the machine affects
all of them. Ratios are comparable between machines; absolute numbers are not.
"""

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import uvloop

from benchmarks.arguments import at_least
from benchmarks.machine import describe
from benchmarks.relay.measures import Load, Seen, first_tokens, growth, relayed
from benchmarks.relay.relays import Relay, callstream, litellm, litellm_command, naive, provider
from tests.support.processes import ROOT

WARM_UP = Load(streams=16, tokens=50)


async def measure(options: argparse.Namespace, folder: Path) -> None:
    with ExitStack() as stack:
        source = stack.enter_context(provider())
        relays = [stack.enter_context(callstream(source.port, folder)), stack.enter_context(naive(source.port))]
        if command := litellm_command():
            relays.append(stack.enter_context(litellm(command, source.port, folder)))
        else:
            print("LiteLLM's proxy is not installed (LITELLM=/path/to/litellm): left out")
        print(describe(folder, relays[0].redis_url), flush=True)
        for relay in relays:
            await relayed(relay, WARM_UP, Seen())
        flood = Load(options.streams, options.tokens)
        await side_by_side("as fast as it is read", relays, flood, options.rounds)
        seconds = options.paced_seconds
        for streams in options.paced:
            load = Load(streams, seconds * options.pace, 1000 / options.pace)
            await side_by_side(f"{options.pace} tokens/s each", relays[:2], load, options.rounds)
        await first_token(source, relays, options.asks)
        # A new engine: the one above has free memory from before, which would hide the memory of the streams.
        (apart := folder / "memory").mkdir()
        await memory(stack.enter_context(callstream(source.port, apart)), options.memory_streams)


async def side_by_side(
    what: str, relays: Sequence[Relay], load: Load, rounds: int, *, base: str = "naive relay"
) -> None:
    """Measure tokens per second of processor time, the relays in turn, and compare them with the one named `base`."""
    seen = {relay.name: Seen() for relay in relays}
    for _ in range(rounds):
        for relay in relays:
            await relayed(relay, load, seen[relay.name])
    first, alone = base.partition(" ")[0], seen[base].alone
    print(f"\n{load.streams} streams of {load.tokens} tokens, {what}; {rounds} rounds")
    print(f"{'tokens per CPU second':24}{'median':>10}{'min':>10}{'max':>10}{'times ' + first:>14}{'tokens/s':>12}")
    for relay in relays:
        mine = seen[relay.name]
        ratio = statistics.median(a / b for a, b in zip(mine.alone, alone, strict=True))
        print(
            f"{relay.name:24}{statistics.median(mine.alone):>10.0f}{min(mine.alone):>10.0f}{max(mine.alone):>10.0f}"
            f"{ratio:>14.1f}{statistics.median(mine.per_second):>12.0f}"
        )
        if relay.beside:
            ratio = statistics.median(a / b for a, b in zip(mine.with_others, alone, strict=True))
            print(f"{'  and ' + ', '.join(relay.beside):24}{statistics.median(mine.with_others):>10.0f}{ratio:>34.1f}")


async def first_token(source: Relay, relays: Sequence[Relay], asks: int) -> None:
    """Measure what each relay adds to the time to the first token of the provider itself."""
    ways = [source, *relays]
    times = await first_tokens(ways, asks)
    print(
        f"\n{'to the first token, ms':24}{'added p50':>10}{'added p99':>10}{'p50':>10}{'p99':>10}   ({asks} questions)"
    )
    for way, mine in zip(ways, times, strict=True):
        added = [a - b for a, b in zip(mine, times[0], strict=True)]
        cells = [percentile(added, 50), percentile(added, 99), percentile(mine, 50), percentile(mine, 99)]
        print(f"{way.name:24}" + "".join(f"{cell:>10.2f}" for cell in cells))


async def memory(relay: Relay, streams: int) -> None:
    """Measure the growth of the engine's memory per stream."""
    seen = await growth(relay, streams)
    print(f"\n{'memory per stream, KiB':40}   ({streams} streams)")
    for what, kilobytes in seen.items():
        print(f"{what:40}{kilobytes:>8.1f}")


def percentile(seconds: Sequence[float], percent: int) -> float:
    """The percentile of these times, in milliseconds."""
    return statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1] * 1000


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.relay",
        description="A model's tokens, relayed.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--rounds", type=at_least(1), default=5, help="how often each relay is measured")
    parser.add_argument("--streams", type=at_least(1), default=32, help="streams at a time")
    parser.add_argument("--tokens", type=at_least(1), default=1000, help="tokens of each")
    parser.add_argument("--pace", type=at_least(1), default=50, help="tokens/s of a paced stream")
    parser.add_argument("--paced", type=at_least(1), nargs="*", default=[10, 50], help="how many paced streams")
    parser.add_argument("--paced-seconds", type=at_least(1), default=6, help="how long they last")
    parser.add_argument("--asks", type=at_least(2), default=200, help="questions for the first token")
    parser.add_argument("--memory-streams", type=at_least(1), default=500, help="streams for memory")
    options = parser.parse_args()

    # On the disk of the repository: /tmp may be in memory, where a synced commit costs nothing.
    data = ROOT / ".data"
    data.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=data) as folder, suppress(KeyboardInterrupt):
        uvloop.run(measure(options, Path(folder)))


if __name__ == "__main__":
    main()
