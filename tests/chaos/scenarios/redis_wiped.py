"""Redis loses everything while calls are open in every state: FLUSHALL, and FLUSHALL with the group made anew by hand.

No turn waits for a call that is gone: each gets an end within seconds, and none has its effect twice. Sessions are not
in Redis: afterwards all engines tell all of them alike.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plugins_contract.keys import GROUP, Keys
from plugins_contract.outcomes import CallState
from tests.chaos.history import History
from tests.chaos.load import Work
from tests.chaos.report import Report, Size
from tests.chaos.sample import open_calls
from tests.chaos.trial import Trial, engines_on, trial
from tests.support.store import Kind

STORES: Sequence[Kind] = ("postgres", "sqlite")
TERMINAL_SECONDS = 15.0


def flush(redis: Any) -> None:
    redis.flushall()


def flush_and_recreate(redis: Any) -> None:
    """Everything is gone, and stream and group are created anew at once: no part sees an error."""
    both = redis.pipeline(transaction=True)  # a worker makes the group anew at its next read
    both.flushall()
    both.xgroup_create(Keys().requests, GROUP, id="$", mkstream=True)
    both.execute()


@dataclass(frozen=True, slots=True)
class Wipe:
    """Redis lost its data at this Unix time in milliseconds; these calls were open, in so many states."""

    at_ms: float
    open: frozenset[str]
    states: Counter[str]


@dataclass(frozen=True, slots=True)
class Form:
    """How much is done in one size: the wipes, with a pause after each."""

    wipes: Sequence[Callable[[Any], None]]
    pause_seconds: float


# More calls than the workers have room for: some wait in the stream, some run, some have just been answered.
WORK = Work(calls_per_turn=10, open_calls=40, shortest_ms=200, longest_ms=2_500)
ROOM = {"WORKER_CONCURRENCY": "8"}
FORMS = {Size.SHORT: Form((flush, flush_and_recreate), 3.0), Size.FULL: Form((flush, flush_and_recreate) * 5, 20.0)}


def run(size: Size, folder: Path, *, store: Kind = "postgres", source: str = "") -> Report:
    form = FORMS[size]
    more = {"quick": size is Size.SHORT, "source": source, "worker_env": ROOM}
    options: dict[str, Any] = engines_on(store) | more
    with trial(folder, WORK, workers=2, redis_loses_data=True, **options) as under_fire:
        under_fire.load.wait(3.0)
        wipes = [_wipe(under_fire, how, form.pause_seconds) for how in form.wipes]
        history = under_fire.judge()
        _judge_wipes(under_fire, wipes, history)
        under_fire.check_agreement()
        return under_fire.report("redis_wiped")


def _wipe(under_fire: Trial, how: Callable[[Any], None], pause_seconds: float) -> Wipe:
    cluster = under_fire.cluster
    under_fire.wait_for_running_calls()
    seen = under_fire.observer.look()
    with cluster.client() as redis:
        how(redis)
    at_ms = time.time() * 1000
    calls = frozenset(open_calls(cluster.store))
    wipe = Wipe(at_ms, calls, Counter(seen[call].state if call in seen else "not yet published" for call in calls))
    under_fire.load.wait(pause_seconds)
    return wipe


def _judge_wipes(under_fire: Trial, wipes: list[Wipe], history: History) -> None:
    took: list[float] = []
    for wipe in wipes:
        for correlation_id in wipe.open:
            answered_ms = history.calls[correlation_id].answered_ms or math.inf
            took.append((answered_ms - wipe.at_ms) / 1000)
            what = f"a call that was open had no end {TERMINAL_SECONDS:.0f} s after Redis lost its data"
            under_fire.expect(took[-1] <= TERMINAL_SECONDS, "I7", what, correlation_id)
    states = sum((wipe.states for wipe in wipes), Counter[str]())
    under_fire.figures |= {
        "times Redis lost everything": len(wipes),
        "calls open then": sum(len(wipe.open) for wipe in wipes),
        **{f"of these {state}": count for state, count in sorted(states.items())},
    }
    open_states = (CallState.PUBLISHED, CallState.STARTED)
    under_fire.must_have_struck({f"of these {state}": states[state] for state in open_states})
    under_fire.figures["seconds to the end of the last of them"] = round(max(took, default=0.0), 1)
