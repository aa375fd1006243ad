"""Workers are killed at random, about one a second, and replaced.

What a killed worker ran is taken over when its lease has run out: what may run again runs again, the rest is unknown.
"""

import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from plugins_contract.messages import ExecutionClass
from plugins_contract.outcomes import CallState
from plugins_mcp.leases import LeaseTimes
from tests.chaos.history import History
from tests.chaos.invariants import Finding
from tests.chaos.load import Work
from tests.chaos.report import Report, Size
from tests.chaos.trial import Trial, quantile, trial
from tests.support.quick_worker import QUICK

SPARE_SECONDS = 3.0
"""Recovery: the lease, the longest pause between two sweeps, and this much for the rest."""


@dataclass(frozen=True, slots=True)
class Form:
    """How much is done in one size."""

    calls: int
    workers: int
    work: Work
    kill_seconds: float
    quick: bool

    @property
    def times(self) -> LeaseTimes:
        """The leases of the workers."""
        return QUICK if self.quick else LeaseTimes()


FORMS = {
    Size.SHORT: Form(500, 4, Work(calls_per_turn=10, open_calls=30, longest_ms=1000), kill_seconds=1.5, quick=True),
    Size.FULL: Form(10_000, 8, Work(calls_per_turn=20, open_calls=200, longest_ms=1000), kill_seconds=1.0, quick=False),
}


@dataclass(frozen=True, slots=True)
class Kill:
    """A worker's end, at this Unix time in milliseconds, with the calls that it had begun."""

    at_ms: float
    begun: tuple[str, ...]


def run(size: Size, folder: Path, *, source: str = "") -> Report:
    """Kill workers until all calls were asked for. `source`: see `Rig`."""
    form = FORMS[size]
    with trial(
        folder, form.work, workers=form.workers, calls=form.calls, quick=form.quick, source=source
    ) as under_fire:
        kills = _kill_until_begun(under_fire, form.kill_seconds)
        history = under_fire.judge()
        recoveries = _judge_kills(under_fire, kills, history)
        limit = form.times.lease + SPARE_SECONDS
        slowest = quantile(recoveries, 0.99)
        if slowest > limit:
            under_fire.findings.append(Finding("recovery", f"p99 is {slowest:.1f} s, more than {limit:.0f} s", "-"))
        return under_fire.report("workers_killed")


def _kill_until_begun(under_fire: Trial, every_seconds: float) -> list[Kill]:
    kills: list[Kill] = []
    rig = under_fire.rig
    while not under_fire.load.begun:
        port = random.choice(list(rig.workers))
        # Stopped first, so that nothing begins between the look at what it runs and its end.
        rig.workers[port].send(signal.SIGSTOP)
        mark = f"-{rig.workers[port].pid}-"
        begun = tuple(
            call for call, seen in under_fire.observer.look().items() if mark in seen.holder and seen.state == "started"
        )
        rig.kill_worker(port)
        kills.append(Kill(time.time() * 1000, begun))
        rig.start_worker(wait=False)
        under_fire.load.wait(every_seconds)
    return kills


def _judge_kills(under_fire: Trial, kills: list[Kill], history: History) -> list[float]:
    """Add what became of the calls that were hit. Returns how long each took to its end, in seconds."""
    last_hit = {call: kill.at_ms for kill in kills for call in kill.begun}
    hit = [history.calls[call] for call in last_hit]
    unknown = [call for call in history.calls.values() if call.outcome == CallState.UNKNOWN]
    under_fire.findings += (
        Finding("I1", "a call is unknown that no kill had hit", call.correlation_id)
        for call in unknown
        if call.correlation_id not in last_hit
    )
    took = [
        (call.entry.finished_at - last_hit[call.correlation_id]) / 1000
        for call in hit
        if call.entry and call.entry.finished_at
    ]
    under_fire.figures |= {
        "kills": len(kills),
        "kills that hit a started call": sum(bool(kill.begun) for kill in kills),
        "started calls hit": len(hit),
        "once calls hit": sum(call.execution_class == ExecutionClass.ONCE for call in hit),
        "recovery p50 s": round(quantile(took, 0.5), 2),
        "recovery p99 s": round(quantile(took, 0.99), 2),
        "recovery max s": round(max(took, default=0), 2),
    }
    return took
