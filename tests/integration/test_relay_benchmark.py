"""The relay benchmark on a tiny load: that it measures what it says, and that no token gets lost on the way."""

from collections.abc import AsyncGenerator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.relay.answers import WORDS
from benchmarks.relay.measures import Load, Seen, first_tokens, growth, relayed
from benchmarks.relay.relays import Relay, callstream, naive, provider
from tests.marks import exhaustive, promise

pytestmark = exhaustive("a benchmark, to see that it runs")

TIMES_NAIVE = 10
TRIES = 3


@pytest.fixture
async def source() -> AsyncGenerator[Relay]:
    with provider() as source:
        yield source


async def test_what_the_provider_says_comes_out_of_every_relay_and_is_counted(source: Relay, tmp_path: Path) -> None:
    with ExitStack() as stack:
        relays = [stack.enter_context(callstream(source.port, tmp_path)), stack.enter_context(naive(source.port))]
        for relay in [source, *relays]:
            for load in (Load(3, 2 * len(WORDS) + 7), Load(2, 5, every_ms=5.0)):
                seen = Seen()
                await relayed(relay, load, seen)
                assert seen.alone[0] >= seen.with_others[0] > 0
        times = await first_tokens([source, *relays], 2)
        assert [len(mine) for mine in times] == [2, 2, 2]
        assert len(await growth(relays[0], 2, fill_seconds=0.0)) == 2


@promise("the relay of tokens is ten times cheaper than a naive one", only_in_test_all="a benchmark")
async def test_relaying_costs_a_tenth_of_what_it_costs_naively(source: Relay, tmp_path: Path) -> None:
    """In processor time, both in one run. A machine that is busy with other things blurs it, so it may try again."""
    load, ratio = Load(8, 1000), 0.0
    with callstream(source.port, tmp_path) as ours, naive(source.port) as theirs:
        for _ in range(TRIES):
            mine, other = Seen(), Seen()
            await relayed(ours, load, mine)
            await relayed(theirs, load, other)
            ratio = max(ratio, mine.with_others[0] / other.alone[0])
            if ratio >= TIMES_NAIVE:
                break
    assert ratio >= TIMES_NAIVE
