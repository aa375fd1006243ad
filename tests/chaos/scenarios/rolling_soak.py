"""Steady work while workers and engine are replaced one after the other, in good order: nothing may pile up.

Ledger entries and response channels are kept for a day, so that both grow with the calls: what is looked for is what
grows beside them.
"""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import fmean

from tests.chaos.history import History, collect
from tests.chaos.load import Work
from tests.chaos.report import Report, Size
from tests.chaos.resource_usage import KEYS, Usage, take
from tests.chaos.trial import Trial, trial

GROWTH, GROWTH_MIB, GROWTH_FILES = 1.2, 10.0, 10.0
"""What may be added between the first third and the last: a part of it, and so many MiB or files."""
LEFT_BEHIND = 2
"""Consumers of workers that have ended, at most. One that holds an entry when it goes, such as one whose read was being
answered, stays in the group until it has been silent for ten minutes. If all stayed there would be more."""


@dataclass(frozen=True, slots=True)
class Form:
    """How long one size is, how often a worker is replaced, and how often the engine; in seconds."""

    seconds: float
    worker_seconds: float
    engine_seconds: float
    usage_seconds: float
    work: Work


FORMS = {
    Size.SHORT: Form(15, 4, 8, 2, Work(calls_per_turn=5, open_calls=10, longest_ms=300)),
    Size.FULL: Form(20 * 60, 15, 180, 10, Work(calls_per_turn=10, open_calls=20, longest_ms=1_500)),
}


def run(size: Size, folder: Path, *, source: str = "") -> Report:
    form = FORMS[size]
    with trial(folder, form.work, workers=3, quick=size is Size.SHORT, source=source) as under_fire:
        counts, restarts, earlier = _roll(under_fire, form)
        history = under_fire.judge(earlier=earlier)
        _judge_growth(under_fire, counts, history, flat=size is Size.FULL)
        under_fire.must_have_struck(restarts)
        under_fire.figures = {"seconds": form.seconds, **under_fire.figures}
        return under_fire.report("rolling_soak")


@dataclass
class _Every:
    """Something that is done again and again, `seconds` after it was last begun."""

    seconds: float
    do: Callable[[], None]
    times: int = 0
    due_at: float = 0.0

    def tick(self) -> None:
        if time.monotonic() >= self.due_at:
            if self.due_at:
                self.do()
                self.times += 1
            self.due_at = time.monotonic() + self.seconds


def _roll(under_fire: Trial, form: Form) -> tuple[list[Usage], dict[str, int], History]:
    cluster, counts, histories = under_fire.cluster, list[Usage](), list[History]()

    def replace_worker() -> None:
        oldest = next(iter(cluster.workers))
        cluster.wait_worker(cluster.start_worker(wait=False))
        under_fire.end_worker(oldest)

    def look_back() -> None:
        # Response channels go after a quarter of an hour: what is in them is read before.
        histories.append(collect(cluster, histories[-1] if histories else None))

    workers = _Every(form.worker_seconds, replace_worker)
    engines = _Every(form.engine_seconds, lambda: cluster.restart_engine(signal.SIGTERM))
    rest = (_Every(form.usage_seconds, lambda: counts.append(take(cluster))), _Every(300, look_back))
    ends_at = time.monotonic() + form.seconds
    for each in cycle((workers, engines, *rest)):
        if time.monotonic() >= ends_at:
            break
        each.tick()
        under_fire.load.wait(0.1)
    look_back()
    return counts, {"workers replaced": workers.times, "engines replaced": engines.times}, histories[-1]


def _judge_growth(under_fire: Trial, counts: list[Usage], history: History, *, flat: bool) -> None:
    cluster, third = under_fire.cluster, max(1, len(counts) // 3)
    first, last = counts[:third], counts[-third:]
    for role in ("worker", "engine"):
        for what, unit, slack in (("memory", "MiB", GROWTH_MIB), ("files", "files", GROWTH_FILES)):
            before, after = (fmean(count.mean(role, what) for count in part) for part in (first, last))
            under_fire.figures |= {f"{role} {unit} first, last": f"{before:.0f}, {after:.0f}"}
            small = not flat or after <= before * GROWTH + slack
            under_fire.expect(small, "growth", f"{role}: {before:.0f} {unit} became {after:.0f}")
    now = take(cluster)
    calls = len(history.calls)
    others = cluster.store.count("turns") + 5
    allowed = dict.fromkeys((KEYS.call("").rstrip(":"), KEYS.response("").rstrip(":")), calls)
    for kind, count in now.keys.items():
        what = f"{count} keys of a kind, {allowed.get(kind, others)} at most were expected"
        under_fire.expect(count <= allowed.get(kind, others), "keys", what, kind)
    what = f"{now.consumers} consumers are in the group, of {len(cluster.workers)} workers"
    under_fire.expect(now.consumers <= len(cluster.workers) + LEFT_BEHIND, "keys", what)
    under_fire.figures |= {
        "keys per call": round(sum(now.keys.values()) / calls, 2),
        "Redis KiB per call": round(now.redis_memory * 1024 / calls, 2),
        "store KiB per call": round(now.file * 1024 / calls, 2),
    }
