"""The measurements. Every answer is compared with what the provider sent."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from benchmarks.relay.answers import Answer, text_in
from benchmarks.relay.readers import Reader, connection, get
from benchmarks.relay.relays import Relay, cpu_seconds, memory_bytes
from tests.support.processes import Process

LEAST_SECONDS = 1.0
"""A relay that finishes sooner gets the same load again: processor time is counted in steps of 10 ms."""
FILL_SECONDS = 5.0
"""How long streams run before their memory is measured: logs and buffers are filled by then."""
EVERY_MS = 500.0
"""The pace of the streams whose memory is measured."""
BLOCK = 20
_numbers = count(1)


class TextLostError(Exception):
    """A relay sent another text than the provider."""


@dataclass(frozen=True)
class Load:
    """Simultaneous streams, each an answer of `tokens` tokens."""

    streams: int
    tokens: int
    every_ms: float = 0.0

    def answers(self) -> list[Answer]:
        """The answers that the provider sends, no two of them equal."""
        return [Answer(next(_numbers), self.tokens, self.every_ms) for _ in range(self.streams)]


@dataclass
class Seen:
    """Tokens per second of processor time: of the relay alone, and together with the processes that it needs."""

    alone: list[float] = field(default_factory=list[float])
    with_others: list[float] = field(default_factory=list[float])
    per_second: list[float] = field(default_factory=list[float])
    """Tokens per second of wall-clock time: this shows how busy the machine was, not how good the relay is."""


async def relayed(relay: Relay, load: Load, seen: Seen) -> None:
    """Run the load on the relay, repeated until it is long enough to be measured."""
    readers = [await connection(relay.port) for _ in range(load.streams)]
    processes = [relay.process, *relay.beside.values()]
    before = [cpu_seconds(process) for process in processes]
    tokens, busy = 0, 0.0
    while busy < LEAST_SECONDS:
        answers = load.answers()
        began = time.perf_counter()
        for reader, answer in zip(readers, answers, strict=True):
            reader.ask(relay.request(answer), answer.first.encode())
        busy += max(await asyncio.gather(*(reader.ended for reader in readers))) - began
        tokens += load.streams * load.tokens
        for reader, answer in zip(readers, answers, strict=True):
            check(reader, answer)
    spent = [cpu_seconds(process) - was for process, was in zip(processes, before, strict=True)]
    seen.alone.append(tokens / spent[0])
    seen.with_others.append(tokens / sum(spent))
    seen.per_second.append(tokens / busy)
    for reader in readers:
        reader.transport.close()


def check(reader: Reader, answer: Answer) -> None:
    """Raises TextLostError unless the answer is the one that the provider sent."""
    if (text := text_in(reader.received)) != answer.text:
        raise TextLostError(f"answer {answer} came as {text[:200]!r}… of {len(text)} characters")


async def first_tokens(ways: list[Relay], asks: int) -> list[list[float]]:
    """For every way, the seconds from a question to its first token: one question at a time, the ways in turn.

    Each way is asked `BLOCK` questions in a row, because after a question to another relay the processor's caches hold
    that relay's data.
    """
    readers = [await connection(way.port) for way in ways]
    times: list[list[float]] = [[] for _ in ways]
    while len(times[-1]) < asks:
        for way, reader, mine in zip(ways, readers, times, strict=True):
            for _ in range(min(BLOCK, asks - len(mine))):
                answer = Answer(next(_numbers), 3, 5.0)
                began = time.perf_counter()
                reader.ask(way.request(answer), answer.first.encode())
                mine.append(await reader.marked - began)
                await reader.ended
                check(reader, answer)
    return times


async def growth(
    relay: Relay, streams: int, fill_seconds: float = FILL_SECONDS, memory: Callable[[Process], int] = memory_bytes
) -> dict[str, float]:
    """What a stream adds to the memory of the engine, in KiB: one more reader of a turn, and a whole turn."""
    quiet = Answer(next(_numbers), 1, 10.0, stays=True)
    [asking] = await _asked(relay, [relay.request(quiet)], quiet)
    watch = get(relay.port, f"/v1/turns/{asking.field('x-turn-id')}/events")
    before = memory(relay.process)
    watching = await _asked(relay, [watch] * streams, quiet)
    idle = memory(relay.process) - before
    talks = [Answer(next(_numbers), 100_000, EVERY_MS) for _ in range(streams)]
    before = memory(relay.process)
    readers: list[Reader] = []
    for (
        talk
    ) in talks:  # one after the other: what counts is the memory of running streams, not of many simultaneous starts
        readers += await _asked(relay, [relay.request(talk)], talk)
    await asyncio.sleep(fill_seconds)
    active = memory(relay.process) - before
    for reader in (asking, *watching, *readers):
        assert not reader.ended.done(), reader.received
        reader.transport.abort()
    return {
        "idle: one more client of a turn": idle / streams / 1024,
        "active: a turn, its model, its client": active / streams / 1024,
    }


async def _asked(relay: Relay, requests: list[bytes], answer: Answer) -> list[Reader]:
    """Readers that have sent their request and received the first token."""
    readers = [await connection(relay.port) for _ in requests]
    for reader, request in zip(readers, requests, strict=True):
        reader.ask(request, answer.first.encode())
    await asyncio.gather(*(reader.marked for reader in readers))
    return readers
