"""Redis is killed again and again, and comes back with its append-only file; some outages are longer than a lease.

Idle times go on growing while Redis is away: when it is back every running call looks abandoned. None may be taken.
"""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from plugins_contract.errors import ErrorCode
from plugins_mcp.leases import LeaseTimes
from tests.chaos.history import Call, History
from tests.chaos.invariants import Finding
from tests.chaos.load import Work
from tests.chaos.report import Report, Size
from tests.chaos.trial import Trial, engines_on, quantile, trial
from tests.support.quick_worker import QUICK
from tests.support.store import Kind

STORES: Sequence[Kind] = ("postgres", "sqlite")
WARM_SECONDS = 3.0
"""Engines and workers that have only just started are slow."""
NORMAL_SECONDS = 5.0
"""Within so many seconds after Redis is back calls are answered as if nothing had been."""
WRITES_BEFORE_REPLIES = ("--appendfsync", "no")
"""Redis hands each command to the operating system before it replies, so a kill of its process loses nothing. With
`everysec` it postpones the write for up to 2 s while an fsync is running: on a busy disk a kill loses commands."""
FLOOR_MS = 1_000.0
"""A wait that is usual on a busy machine."""


@dataclass(frozen=True, slots=True)
class Outage:
    """Redis is away for so many seconds; with `graceful` it was asked to end and not killed."""

    seconds: float
    graceful: bool = False


@dataclass(frozen=True, slots=True)
class Form:
    """How much is done in one size.

    Redis is left alone for `first_seconds`, and after each outage for `pause_seconds`: in both there must be time for
    calls whose waits are compared.
    """

    outages: Sequence[Outage]
    first_seconds: float
    pause_seconds: float
    workers: int
    work: Work
    quick: bool

    @property
    def lease(self) -> float:
        """The lease in seconds."""
        return (QUICK if self.quick else LeaseTimes()).lease


FORMS = {
    Size.SHORT: Form(
        (Outage(0.3), Outage(4.5)), 5.0, 9.0, 2, Work(calls_per_turn=10, open_calls=30, longest_ms=2_000), quick=True
    ),
    Size.FULL: Form(
        [Outage(15.0 if number % 6 == 5 else 0.5 * (number % 6), graceful=number % 10 == 9) for number in range(33)],
        15.0,
        15.0,
        4,
        Work(calls_per_turn=10, open_calls=60, longest_ms=4_000),
        quick=False,
    ),
}


@dataclass(frozen=True, slots=True)
class Return:
    """Redis was back at this Unix time in milliseconds, and stayed until the next one went away."""

    at_ms: float
    until_ms: float


def run(
    size: Size,
    folder: Path,
    *,
    store: Kind = "postgres",
    source: str = "",
    redis_options: tuple[str, ...] = WRITES_BEFORE_REPLIES,
) -> Report:
    """Kill Redis and start it again. `source`, `redis_options`: see `Cluster`."""
    form = FORMS[size]
    with trial(
        folder,
        form.work,
        workers=form.workers,
        quick=form.quick,
        source=source,
        redis_options=redis_options,
        **engines_on(store),
    ) as under_fire:
        under_fire.load.wait(WARM_SECONDS)
        since_ms = time.time() * 1000
        under_fire.load.wait(form.first_seconds)
        first_ms = time.time() * 1000
        fewest, returns = _break_and_mend(under_fire, form)
        history = under_fire.judge()
        _judge_waits(under_fire, history, Return(since_ms, first_ms), returns)
        under_fire.check_agreement()
        lost = sum(call.error == ErrorCode.LOST for call in history.calls.values())
        if lost:
            under_fire.findings.append(Finding("I7", "calls are LOST though Redis wrote everything down", str(lost)))
        under_fire.figures |= {
            "times Redis was killed": sum(not outage.graceful for outage in form.outages),
            "times it was restarted": sum(outage.graceful for outage in form.outages),
            "outages longer than a lease": sum(outage.seconds > form.lease for outage in form.outages),
            "calls that ran when Redis went away, at least": fewest,
            "calls answered LOST": lost,
            "calls taken from living workers": len(under_fire.observer.observations.handovers),
        }
        return under_fire.report("redis_killed")


def _break_and_mend(under_fire: Trial, form: Form) -> tuple[int, list[Return]]:
    """The fewest calls that ran when Redis went away, and its returns."""
    redis, back, running, returns = under_fire.cluster.redis, math.nan, list[int](), list[Return]()
    for outage in form.outages:
        if returns or not math.isnan(back):
            returns.append(Return(back, time.time() * 1000))
        running.append(under_fire.wait_for_running_calls())
        if outage.graceful:
            redis.stop()
        else:
            redis.kill()
        under_fire.load.wait(outage.seconds)
        redis.start()
        back = time.time() * 1000
        under_fire.load.wait(form.pause_seconds)
    return min(running), [*returns, Return(back, time.time() * 1000)]


def _judge_waits(under_fire: Trial, history: History, before_all: Return, returns: list[Return]) -> None:
    """How long calls waited beyond their own work: before all this, and from a while after each return on."""
    calls = history.calls.values()
    first = _waits(calls, before_all.at_ms, before_all.until_ms)
    later = [_waits(calls, back.at_ms + NORMAL_SECONDS * 1000, back.until_ms) for back in returns]
    before, after = quantile(first, 0.99), [quantile(waits, 0.99) for waits in later]
    under_fire.must_have_struck({"calls compared before": len(first), "and after a return": min(map(len, later))})
    limit = max(2 * before, FLOOR_MS)
    under_fire.findings += (
        Finding(
            "latency", f"{NORMAL_SECONDS:.0f} s after Redis was back p99 was {wait:.0f} ms, {before:.0f} before", "-"
        )
        for wait in after
        if wait > limit
    )
    under_fire.figures |= {
        "p99 wait before ms": round(before),
        f"p99 wait {NORMAL_SECONDS:.0f} s after each return, worst, ms": round(max(after)),
    }


def _waits(calls: Iterable[Call], since_ms: float, until_ms: float) -> list[float]:
    """The waits of the calls that were committed in that time, and had the time to end in it."""
    return [call.wait_ms for call in calls if since_ms <= call.created_ms <= until_ms - call.work_ms - FLOOR_MS]
