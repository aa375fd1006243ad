"""Many clients stop reading and do not go away, while others go on.

They all follow one turn, which first says enough to fill every buffer on the way. Each must be dropped in time and
cost little until then; when it wakes up it goes on where it was. The others must not notice: each word of theirs
carries the time when the model said it, and it is compared with a time in which as many clients follow such a turn and
read it.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.cluster import Cluster
from tests.chaos.model import Order, without_stamps
from tests.chaos.readers import Reader, clients_of
from tests.chaos.report import Report, Size
from tests.chaos.resource_usage import memory
from tests.chaos.streaming import running_engines
from tests.chaos.trial import quantile
from tests.support.waiting import wait_until

RECEIVE_BUFFER = 4096
DROPPED_SECONDS = 30.0
COST_BYTES = 96 * 1024
LOOK_SECONDS = 0.1
"""How often the connections are looked at."""
SLOWER = 2.0
"""By how much the others may be slower than without frozen clients, at the 99th percentile."""


@dataclass(frozen=True, slots=True)
class Form:
    """How much is done in one size. `send_timeout` is the engine's, None its own.

    The others follow `turns` turns, which say little, so that what the engine's memory grows by is the frozen clients.
    Delays below `noise_seconds` are noise on a machine that does other things too.
    """

    frozen: int
    others: int
    turns: int
    window_seconds: float
    noise_seconds: float
    send_timeout: float | None = None

    @property
    def loud(self) -> Order:
        """What the frozen clients follow: it fills all buffers, then it is short of words."""
        return Order(words=100, word_ms=50, loud=80, length=2000)

    def quiet(self, seconds: float) -> Order:
        """What the others follow."""
        return Order(words=round(seconds * 2), word_ms=500, stamped=True)


FORMS = {
    Size.SHORT: Form(120, 40, 4, window_seconds=5, noise_seconds=0.5, send_timeout=2),
    Size.FULL: Form(100, 400, 20, window_seconds=22, noise_seconds=0.005),
}


@dataclass
class _Times:
    frozen_at: float = 0.0
    under: tuple[float, float] = (0.0, 0.0)
    """From when to when there were frozen clients."""
    without: tuple[float, float] = (0.0, 0.0)
    bytes_before: int = 0
    bytes_most: int = 0
    dropped: list[float] = field(default_factory=list[float])
    """After how many seconds each was dropped."""
    counted: float = 0.0
    """How many the engine says it has dropped."""


def run(size: Size, folder: Path) -> Report:
    form = FORMS[size]
    essay = form.quiet(2 * form.window_seconds + 10)
    with running_engines(folder, behind_nginx=False, send_timeout=form.send_timeout) as (target, port):
        others = [Reader(port, str(essay)) for _ in range(form.others)]
        reading, frozen = (
            [Reader(port, "", receive_buffer=RECEIVE_BUFFER) for _ in range(form.frozen)] for _ in range(2)
        )
        times = asyncio.run(_freeze(form, target, others, reading, frozen))
    return _report(form, essay, others, frozen, times)


async def _freeze(
    form: Form, target: Cluster, others: Sequence[Reader], reading: Sequence[Reader], frozen: Sequence[Reader]
) -> _Times:
    times, engine = _Times(), target.engine
    assert engine
    async with asyncio.timeout(4 * form.window_seconds + 60), asyncio.TaskGroup() as tasks:
        for asking in others[: form.turns]:
            tasks.create_task(asking.run())
        await wait_until(lambda: all(asking.turn_id for asking in others[: form.turns]), 30)
        for at, following in enumerate(others[form.turns :]):
            following.turn_id = others[at % form.turns].turn_id
            tasks.create_task(following.run())
        await wait_until(lambda: all(reader.delays for reader in others), 30)

        # First those that freeze: memory that was used before would be used again, and hide what they cost.
        begun = time.monotonic()
        times.bytes_before = memory(engine)
        await _follow_a_loud_turn(form, target, frozen, tasks)
        times.frozen_at = time.monotonic()
        for reader in frozen:
            if reader.connection:
                reader.connection.freeze()
        await _until_dropped(target, frozen, times)
        times.under = (begun, time.monotonic())
        times.counted = _dropped_by_its_own_count(target)
        await wait_until(lambda: all(reader.transcript.done for reader in frozen), 30)

        begun = time.monotonic()
        await _follow_a_loud_turn(form, target, reading, tasks)
        ends = begun + times.under[1] - times.under[0]
        while time.monotonic() < ends:  # what was looked at then costs the readers the same now
            await asyncio.to_thread(clients_of, target.engine_port)
            await asyncio.sleep(LOOK_SECONDS)
        times.without = (begun, time.monotonic())
    return times


async def _follow_a_loud_turn(form: Form, target: Cluster, readers: Sequence[Reader], tasks: asyncio.TaskGroup) -> None:
    """Ask for one, and wait until every reader has heard of it."""
    asks = Reader(target.engine_port, str(form.loud))
    tasks.create_task(asks.run())
    await wait_until(lambda: asks.turn_id)
    for reader in readers:
        reader.turn_id = asks.turn_id
        tasks.create_task(reader.run())
    await wait_until(lambda: all(reader.transcript.last_id for reader in readers), 30)


def _dropped_by_its_own_count(target: Cluster) -> float:
    lines = target.http.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("dialog_clients_dropped_total "))


async def _until_dropped(target: Cluster, frozen: Sequence[Reader], times: _Times) -> None:
    waiting, engine = {reader.connection.port for reader in frozen if reader.connection}, target.engine
    assert engine

    async def look() -> bool:
        """Count the clients that were dropped since the last look. Whether all are."""
        nonlocal waiting
        times.bytes_most = max(times.bytes_most, memory(engine))
        # The kernel drops a connection without a word to its client: only the engine's end of it shows that it is gone.
        # It takes the kernel 10 to 50 ms to list the connections, for which the loop of the other readers cannot wait.
        gone = waiting - await asyncio.to_thread(clients_of, target.engine_port)
        times.dropped += [time.monotonic() - times.frozen_at for _ in gone]
        waiting -= gone
        return not waiting

    with suppress(TimeoutError):
        await wait_until(look, 2 * DROPPED_SECONDS, every=LOOK_SECONDS)
    for reader in frozen:
        if reader.connection:
            reader.connection.leave()  # they wake up, and ask again


def _report(form: Form, essay: Order, others: Sequence[Reader], frozen: Sequence[Reader], times: _Times) -> Report:
    arrivals = [each for reader in others for each in reader.delays]
    under, without = (
        [delay for at, delay in arrivals if begun <= at < ended] for begun, ended in (times.under, times.without)
    )
    cost = (times.bytes_most - times.bytes_before) / len(frozen)
    figures: dict[str, float | int | str] = {
        "frozen": len(frozen),
        "others": len(others),
        "dropped": len(times.dropped),
        "last dropped after (s)": max(times.dropped, default=0.0),
        "cost of each (KiB)": cost / 1024,
        "others' delay p99 without (ms)": 1000 * quantile(without, 0.99),
        "others' delay p99 with (ms)": 1000 * quantile(under, 0.99),
        "others' delay p50 with (ms)": 1000 * quantile(under, 0.5),
    }
    findings = [f"{reader.turn_id}: did not get what was said" for reader in others if not _whole(reader, essay)]
    findings += [f"a frozen client did not go on well: {r.transcript}" for r in frozen if not _whole(r, form.loud)]
    if len(times.dropped) < len(frozen) or max(times.dropped) > DROPPED_SECONDS:
        findings.append(f"not every frozen client was dropped within {DROPPED_SECONDS:g} s")
    if times.counted != len(times.dropped):
        findings.append(f"the engine counts {times.counted:.0f} dropped clients, not {len(times.dropped)}")
    if cost > COST_BYTES:
        findings.append(f"a frozen client costs more than {COST_BYTES} bytes")
    if quantile(under, 0.99) > SLOWER * max(quantile(without, 0.99), form.noise_seconds):
        findings.append(f"the others were more than {SLOWER:g} times slower")
    return Report("frozen_clients", figures, tuple(findings))


def _whole(reader: Reader, essay: Order) -> bool:
    transcript = reader.transcript
    return (
        without_stamps(transcript.text) == essay.text
        and not transcript.repeats
        and not transcript.resets
        and transcript.done is not None
    )
