"""Workers stand still (SIGSTOP) for longer than their lease, and go on as if nothing had been.

Their calls belong to others by then. A worker that wakes up may neither end such a call nor take it back.
"""

import random
import time
from dataclasses import dataclass
from pathlib import Path

from plugins_mcp.leases import LeaseTimes
from tests.chaos.load import Work
from tests.chaos.observer import STOLEN
from tests.chaos.report import Report, Size
from tests.chaos.trial import Trial, trial
from tests.support.quick_worker import QUICK
from tests.support.waiting import wait_until_blocking


@dataclass(frozen=True, slots=True)
class Form:
    """How much is done in one size: so many stops of so many seconds, some of them at the same time."""

    stops: int
    at_once: int
    seconds: float
    workers: int
    work: Work
    quick: bool

    @property
    def times(self) -> LeaseTimes:
        """The leases of the workers."""
        return QUICK if self.quick else LeaseTimes()


# Calls that run for longer than a lease: who took one over is still at it when its first worker wakes up.
FORMS = {
    Size.SHORT: Form(
        3, 3, 6.0, 5, Work(calls_per_turn=6, open_calls=40, shortest_ms=500, longest_ms=4_500), quick=True
    ),
    Size.FULL: Form(100, 4, 30.0, 8, Work(calls_per_turn=10, open_calls=60, longest_ms=25_000), quick=False),
}


def run(size: Size, folder: Path, *, source: str = "") -> Report:
    """Stop workers that run something. `source`: see `Rig`."""
    form = FORMS[size]
    with trial(folder, form.work, workers=form.workers, quick=form.quick, source=source) as under_fire:
        _stop_and_wake(under_fire, form)
        history = under_fire.judge()
        under_fire.figures |= {
            "stops": len(under_fire.hits),
            "seconds of each stop": form.seconds,
            "started calls hit": len(under_fire.struck),
            "calls that another worker took over": len({each.call for each in under_fire.observer.told.handovers}),
            "stale completions": sum(
                0 < call.attempts < call.entry.starts for call in history.calls.values() if call.entry
            ),
            "stolen leases": sum(finding.what == STOLEN for finding in under_fire.findings),
        }
        return under_fire.report("workers_stopped")


def _stop_and_wake(under_fire: Trial, form: Form) -> None:
    """Stop workers one after the other, so that at most `at_once` stand still."""
    stopped: dict[int, float] = {}
    gap = form.seconds / form.at_once
    stops = 0
    while stops < form.stops or stopped:
        now = time.monotonic()
        for port in [port for port, wake_at in stopped.items() if wake_at <= now]:
            under_fire.wake_worker(port)
            del stopped[port]
        if stops < form.stops and len(stopped) < form.at_once:
            port = _busy_worker(under_fire, stopped)
            under_fire.stop_worker(port)
            stopped[port] = time.monotonic() + form.seconds
            stops += 1
        under_fire.load.wait(gap if len(stopped) < form.at_once else 0.2)


def _busy_worker(under_fire: Trial, stopped: dict[int, float]) -> int:
    """A worker that has begun a call and is not stopped."""

    def busy() -> list[int]:
        workers = under_fire.rig.workers.items()
        return [port for port, each in workers if port not in stopped and under_fire.observer.begun_by(each.pid)]

    return random.choice(wait_until_blocking(busy, 20, what="a worker that has begun a call"))
