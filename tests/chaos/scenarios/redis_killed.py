"""Redis is killed again and again, and comes back with its append-only file; some outages are longer than a lease.

Idle times go on growing while Redis is away: when it is back every running call looks abandoned. None may be taken.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plugins_contract.errors import ErrorCode
from tests.chaos.history import Call, History
from tests.chaos.load import Work
from tests.chaos.report import Report, Size
from tests.chaos.trial import Trial, engines_on, quantile, trial
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


FORMS = {
    Size.SHORT: Form((Outage(0.3), Outage(4.5)), 5.0, 9.0, 2, Work(calls_per_turn=10, open_calls=30, longest_ms=2_000)),
    Size.FULL: Form(
        [Outage(15.0 if number % 6 == 5 else 0.5 * (number % 6), graceful=number % 10 == 9) for number in range(33)],
        15.0,
        15.0,
        4,
        Work(calls_per_turn=10, open_calls=60, longest_ms=4_000),
    ),
}


Span = tuple[float, float]
"""From when to when Redis was there, in Unix milliseconds."""


def run(
    size: Size,
    folder: Path,
    *,
    store: Kind = "postgres",
    source: str = "",
    redis_options: tuple[str, ...] = WRITES_BEFORE_REPLIES,
) -> Report:
    form = FORMS[size]
    more = {"quick": size is Size.SHORT, "source": source, "redis_options": redis_options}
    options: dict[str, Any] = engines_on(store) | more
    with trial(folder, form.work, workers=form.workers, **options) as under_fire:
        under_fire.load.wait(WARM_SECONDS)
        since_ms = _now_ms()
        under_fire.load.wait(form.first_seconds)
        first_ms = _now_ms()
        fewest, returns = _break_and_mend(under_fire, form)
        history = under_fire.judge()
        _judge_waits(under_fire, history, (since_ms, first_ms), returns)
        under_fire.check_agreement()
        lost = sum(call.error == ErrorCode.LOST for call in history.calls.values())
        under_fire.expect(not lost, "I7", "calls are LOST though Redis wrote everything down", str(lost))
        under_fire.figures |= {
            "times Redis was killed": sum(not outage.graceful for outage in form.outages),
            "times it was restarted": sum(outage.graceful for outage in form.outages),
            "outages longer than a lease": sum(
                outage.seconds > under_fire.cluster.leases.lease for outage in form.outages
            ),
            "calls that ran when Redis went away, at least": fewest,
            "calls answered LOST": lost,
            "calls taken from living workers": len(under_fire.observer.observations.handovers),
        }
        return under_fire.report("redis_killed")


def _break_and_mend(under_fire: Trial, form: Form) -> tuple[int, list[Span]]:
    """The fewest calls that ran when Redis went away, and how long it stayed after each return."""
    redis, running, spans = under_fire.cluster.redis, list[int](), list[Span]()
    for outage in form.outages:
        running.append(under_fire.wait_for_running_calls())
        if outage.graceful:
            redis.stop()
        else:
            redis.kill()
        under_fire.load.wait(outage.seconds)
        redis.start()
        back_ms = _now_ms()
        under_fire.load.wait(form.pause_seconds)
        spans.append((back_ms, _now_ms()))
    return min(running), spans


def _judge_waits(under_fire: Trial, history: History, before_all: Span, returns: list[Span]) -> None:
    """How long calls waited beyond their own work: before all this, and from a while after each return on."""
    calls = history.calls.values()
    first = _waits(calls, *before_all)
    later = [_waits(calls, back_ms + NORMAL_SECONDS * 1000, until_ms) for back_ms, until_ms in returns]
    before, after = quantile(first, 0.99), [quantile(waits, 0.99) for waits in later]
    under_fire.must_have_struck({"calls compared before": len(first), "and after a return": min(map(len, later))})
    limit = max(2 * before, FLOOR_MS)
    for wait in after:
        what = f"{NORMAL_SECONDS:.0f} s after Redis was back p99 was {wait:.0f} ms, {before:.0f} before"
        under_fire.expect(wait <= limit, "latency", what)
    under_fire.figures |= {
        "p99 wait before ms": round(before),
        f"p99 wait {NORMAL_SECONDS:.0f} s after each return, worst, ms": round(max(after)),
    }


def _waits(calls: Iterable[Call], since_ms: float, until_ms: float) -> list[float]:
    """The waits of the calls that were committed in that time, and had the time to end in it."""
    return [call.wait_ms for call in calls if since_ms <= call.created_ms <= until_ms - call.work_ms - FLOOR_MS]


def _now_ms() -> float:
    return time.time() * 1000
