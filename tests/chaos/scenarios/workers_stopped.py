"""Workers stand still (SIGSTOP) for longer than their lease, and go on as if nothing had been.

Their calls belong to others by then. A worker that wakes up may neither end such a call nor take it back.
"""

import random
import time
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from plugins_contract.messages import ExecutionClass
from tests.chaos.load import Work
from tests.chaos.observer import STOLEN
from tests.chaos.report import Report, Size
from tests.chaos.trial import Hit, Trial, trial
from tests.support.waiting import wait_until_blocking


@dataclass(frozen=True, slots=True)
class Form:
    """How much is done in one size: so many stops of so many seconds, some of them at the same time.

    For up to `takeover_seconds` seconds more it is waited until another worker runs a call of one that stands still.
    """

    stops: int
    at_once: int
    seconds: float
    takeover_seconds: float
    workers: int
    work: Work


# Calls that run for longer than a lease: who took one over is still at it when its first worker wakes up.
FORMS = {
    Size.SHORT: Form(3, 3, 4.0, 20.0, 5, Work(calls_per_turn=6, open_calls=40, shortest_ms=3_000, longest_ms=4_500)),
    Size.FULL: Form(100, 4, 30.0, 0.0, 8, Work(calls_per_turn=10, open_calls=60, longest_ms=25_000)),
}


def run(size: Size, folder: Path, *, source: str = "") -> Report:
    form = FORMS[size]
    with trial(folder, form.work, workers=form.workers, quick=size is Size.SHORT, source=source) as under_fire:
        busy_elsewhere = _stop_and_wake(under_fire, form)
        history = under_fire.judge()
        under_fire.figures |= {
            "stops": len(under_fire.hits),
            "seconds of each stop": form.seconds,
            "started calls hit": len(under_fire.struck),
            "calls that another worker took over": len(
                {each.call for each in under_fire.observer.observations.handovers}
            ),
            "stale completions": sum(
                0 < call.attempts < call.entry.starts for call in history.calls.values() if call.entry
            ),
            "stolen leases": sum(finding.what == STOLEN for finding in under_fire.findings),
        }
        under_fire.must_have_struck({"workers that woke up while another ran a call of theirs": busy_elsewhere})
        return under_fire.report("workers_stopped")


@dataclass(frozen=True, slots=True)
class _Stopped:
    """A worker that stands still, and when it may go on and when it must, in monotonic seconds."""

    hit: Hit
    wake_at: float
    latest_at: float


def _stop_and_wake(under_fire: Trial, form: Form) -> int:
    """Stop workers one after the other, so that at most `at_once` stand still.

    Returns how many went on while another worker ran a call of theirs.
    """
    stopped: dict[int, _Stopped] = {}
    gap = form.seconds / form.at_once
    stops = busy_elsewhere = 0
    while stops < form.stops or stopped:
        for port, each in list(stopped.items()):
            now, runs = time.monotonic(), _runs_elsewhere(under_fire, each.hit)
            if now >= each.latest_at or (now >= each.wake_at and runs):
                under_fire.wake_worker(port)
                del stopped[port]
                busy_elsewhere += runs
        if stops < form.stops and len(stopped) < form.at_once:
            port = _busy_worker(under_fire, stopped)
            hit, now = under_fire.stop_worker(port), time.monotonic()
            stopped[port] = _Stopped(hit, now + form.seconds, now + form.seconds + form.takeover_seconds)
            stops += 1
        under_fire.load.wait(gap if len(stopped) < form.at_once else 0.2)
    return busy_elsewhere


def _runs_elsewhere(under_fire: Trial, hit: Hit) -> bool:
    """Whether a call that was hit has been begun again, which raises its fence, and runs."""
    running = under_fire.observer.running()
    return any(
        call in running and running[call].fence > before.fence
        for call, before in hit.calls.items()
        if before.execution_class == ExecutionClass.REPEATABLE
    )


def _busy_worker(under_fire: Trial, stopped: Container[int]) -> int:
    """A worker that runs a call which may run again, and is not stopped."""

    def busy() -> list[int]:
        return [port for port in under_fire.busy_workers(ExecutionClass.REPEATABLE) if port not in stopped]

    return random.choice(wait_until_blocking(busy, 20, what="a worker that has begun a call"))
