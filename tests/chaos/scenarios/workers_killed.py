"""Workers are killed at random, about one a second, and replaced.

What a killed worker ran is taken over when its lease has run out: what may run again runs again, the rest is unknown.
"""

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from plugins_contract.messages import ExecutionClass
from tests.chaos.history import History
from tests.chaos.load import Work
from tests.chaos.report import Report, Size
from tests.chaos.trial import Trial, quantile, trial

LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Form:
    """How much is done in one size.

    `spared` workers are never killed: who has only just started takes nothing over yet, and a short form must not wait
    until chance leaves somebody alone. Kills that are `aimed` hit workers that run a `once` call: a few at random may
    all miss. Within the lease and `recovery_seconds` a call that was hit has its end.
    """

    calls: int
    workers: int
    work: Work
    kill_seconds: float
    spared: int
    aimed: bool
    recovery_seconds: float


FORMS = {
    Size.SHORT: Form(500, 4, Work(calls_per_turn=10, open_calls=30, longest_ms=1000), kill_seconds=1.5, spared=1,
        aimed=True, recovery_seconds=6),
    Size.FULL: Form(10_000, 12, Work(calls_per_turn=20, open_calls=200, longest_ms=600), kill_seconds=1.0, spared=0,
        aimed=False, recovery_seconds=3),
}  # fmt: skip


def run(size: Size, folder: Path, *, source: str = "") -> Report:
    form = FORMS[size]
    with trial(
        folder, form.work, workers=form.workers, calls=form.calls, quick=size is Size.SHORT, source=source
    ) as under_fire:
        _kill_until_begun(under_fire, form)
        recoveries = _recoveries(under_fire, under_fire.judge())
        limit, slowest = under_fire.cluster.leases.lease + form.recovery_seconds, quantile(recoveries, 0.99)
        under_fire.expect(slowest <= limit, "recovery", f"p99 is {slowest:.1f} s, more than {limit:.0f} s")
        return under_fire.report("workers_killed")


def _kill_until_begun(under_fire: Trial, form: Form) -> None:
    cluster = under_fire.cluster
    while not under_fire.load.begun:
        candidates = list(cluster.workers)[form.spared :]
        if form.aimed:
            busy = under_fire.busy_workers(ExecutionClass.ONCE)
            candidates = [port for port in candidates if port in busy]
        if not candidates:
            under_fire.load.wait(LOOK_SECONDS)
            continue
        under_fire.kill_worker(random.choice(candidates))
        cluster.start_worker(wait=False)
        under_fire.load.wait(form.kill_seconds)


def _recoveries(under_fire: Trial, history: History) -> list[float]:
    """How long each call that was hit took from its last hit to its end, in seconds."""
    last_hit = {call: hit.at_ms for hit in under_fire.hits for call in hit.calls}
    calls = [history.calls[call] for call in last_hit]
    took = [
        (call.entry.finished_at - last_hit[call.correlation_id]) / 1000
        for call in calls
        if call.entry and call.entry.finished_at
    ]
    under_fire.figures |= {
        "kills": len(under_fire.hits),
        "kills that hit a started call": sum(bool(hit.calls) for hit in under_fire.hits),
        "started calls hit": len(calls),
    }
    hit = Counter(call.execution_class for call in calls)
    under_fire.must_have_struck({f"{each} calls hit": hit[each] for each in ExecutionClass})
    under_fire.figures |= {
        "recovery p50 s": round(quantile(took, 0.5), 2),
        "recovery p99 s": round(quantile(took, 0.99), 2),
        "recovery max s": round(max(took, default=0), 2),
    }
    return took
