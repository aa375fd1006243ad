"""A trial: the product under load, with an observer, and at its end the judgement over every call."""

import math
import signal
import statistics
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Queue
from typing import Any, TypeVar

from plugins_contract.messages import ExecutionClass
from plugins_contract.outcomes import CallState
from plugins_mcp.dead_consumers import CleanupTimes
from tests.chaos.behind_proxies import Proxies, behind_proxies
from tests.chaos.cluster import Cluster
from tests.chaos.followed import disagreements
from tests.chaos.history import Call, History, backlog, collect
from tests.chaos.invariants import NOT_RUN, Finding, as_text, check, not_struck
from tests.chaos.load import Load, Work
from tests.chaos.observer import Away, Observer, from_the_living, pid_of
from tests.chaos.report import Report
from tests.chaos.sample import Sample
from tests.support.leaks import leaked_keys
from tests.support.store import Kind
from tests.support.waiting import comes, wait_until_blocking

SETTLE_SECONDS = 60.0
RUNNING_SECONDS = 20.0
MISSED_SECONDS = CleanupTimes().silent + 2 * CleanupTimes().every
"""How long a dead worker may still be missed by a server of Redis that takes over: see `Trial.kill_redis`."""
WAKING_SECONDS = 3.0
"""How long after it goes on a worker may still be taken for one that is gone."""
L = TypeVar("L")
J = TypeVar("J")
Figures = dict[str, float | int | str]


@dataclass(frozen=True, slots=True)
class Hit:
    """A worker was struck at this Unix time in milliseconds, and these calls had been begun there."""

    at_ms: float
    calls: Sample


@dataclass
class Trial:
    """What a scenario works with. `findings` and `figures` are its own; those of the calls come at the end."""

    cluster: Cluster
    load: Load
    observer: Observer
    redis_loses_data: bool
    store_goes_away: bool
    began: float
    proxies: Proxies | None = None
    stopped: set[str] = field(default_factory=set[str])
    """The turns that their users have stopped: what became of their calls is right."""
    hits: list[Hit] = field(default_factory=list[Hit])
    redis_killed: list[float] = field(default_factory=list[float])
    """When Redis was killed, in Unix time in milliseconds."""
    away: list[Away] = field(default_factory=list[Away])
    figures: Figures = field(default_factory=dict[str, float | int | str])
    findings: list[Finding] = field(default_factory=list[Finding])
    notes: list[str] = field(default_factory=list[str])

    @property
    def struck(self) -> set[str]:
        return {call for hit in self.hits for call in hit.calls}

    def busy_workers(self, execution_class: ExecutionClass) -> list[int]:
        """The ports of the workers that run a call of this class. Raises what redis raises."""
        running = self.observer.running().values()
        busy = {pid_of(seen.holder) for seen in running if seen.execution_class == execution_class}
        return [port for port, worker in self.cluster.workers.items() if worker.pid in busy]

    def wait_for_running_calls(self) -> int:
        """Wait until calls run, so that what is broken next breaks them; how many.

        Raises:
            TimeoutError: none did.
        """
        return len(wait_until_blocking(self.observer.running, RUNNING_SECONDS, what="a call that runs"))

    def expect(self, holds: bool, rule: str, what: str, call: str = "-") -> None:
        if not holds:
            self.findings.append(Finding(rule, what, call))

    def must_have_struck(self, times: Mapping[str, int]) -> None:
        self.figures |= times
        self.findings += not_struck(times)

    def stop_worker(self, port: int) -> Hit:
        """Stop a worker (SIGSTOP), and look what it has begun: nothing can begin between the two."""
        worker = self.cluster.workers[port]
        stopped_at = time.monotonic()
        worker.freeze()
        running = self.observer.running().items()
        calls = {call: seen for call, seen in running if pid_of(seen.holder) == worker.pid}
        hit = Hit(time.time() * 1000, calls)
        self.hits.append(hit)
        self.away.append(Away(worker.pid, stopped_at))
        return hit

    def wake_worker(self, port: int) -> None:
        """Let a stopped worker go on. What it has lost may still be taken over for a moment."""
        worker = self.cluster.workers[port]
        worker.send(signal.SIGCONT)
        until = time.monotonic() + WAKING_SECONDS
        self.away = [replace(each, until=until) if each.pid == worker.pid else each for each in self.away]

    def kill_worker(self, port: int) -> Hit:
        """End a worker as `kill -9` does, and look what it had begun."""
        hit = self.stop_worker(port)
        self.cluster.kill_worker(port)
        return hit

    def end_worker(self, port: int) -> None:
        """End a worker in good order. What it gives back may be taken over."""
        self.away.append(Away(self.cluster.workers[port].pid, time.monotonic()))
        self.cluster.end_worker(port)

    def kill_redis(self) -> None:
        """Kill Redis. What was not started by then may become `unknown`, where a worker that died shortly before cannot
        report at the next server: for that server it may have been started there."""
        self.redis_killed.append(time.time() * 1000)
        self.cluster.redis.kill()

    def check_agreement(self, engines: Collection[int] = ()) -> None:
        """Note which sessions the engines, or those at these ports, tell differently when all is over."""
        sessions = [session_id for (session_id,) in self.cluster.store.rows("SELECT session_id FROM sessions")]
        engines = engines or self.cluster.running_engines
        self.findings += disagreements(engines, sessions)
        self.figures |= {"sessions": len(sessions), "engines that tell them": len(engines)}

    def judge(self, settle_seconds: float = SETTLE_SECONDS, earlier: History | None = None) -> History:
        """Let everything end, and check it. Returns the history; `earlier` as for `collect`."""
        ended = self.load.finish(settle_seconds)
        seconds = time.monotonic() - self.began
        if not comes(lambda: backlog(self.cluster) == (0, 0), 15):
            waiting, pending = backlog(self.cluster)
            self.expect(False, "I5", f"{waiting} requests and {pending} pending are left over")
        history = collect(self.cluster, earlier)
        self.findings += self.observer.observations.findings
        self.findings += from_the_living(self.observer.observations.handovers, self.away)
        if not self.redis_loses_data and not self.store_goes_away:
            self.findings += self._without_a_cause(history)
        self.findings += check(history, redis_lost_data=self.redis_loses_data)
        self.findings += self._left_behind()
        self.figures = {**_totals(history, seconds), **self.figures}
        if not ended:
            self.notes.append(f"turns were still running {settle_seconds:.0f} s after the last one was begun")
        return history

    def report(self, scenario: str) -> Report:
        return Report(scenario, self.figures, as_text(self.findings), tuple(self.notes))

    def _without_a_cause(self, history: History) -> Iterator[Finding]:
        """The tools never fail, and no deadline is near: what does not succeed has lost its worker."""
        struck = self.struck
        for call in history.calls.values():
            if call.turn_id in self.stopped:
                continue
            if call.outcome in NOT_RUN - {CallState.DEAD}:
                what = f"a call is {call.outcome} ({call.error}) though its tool never fails"
                yield Finding("I1", what, call.correlation_id)
            elif call.outcome in (CallState.UNKNOWN, CallState.DEAD) and not (
                call.correlation_id in struck or self._in_doubt(call)
            ):
                what = f"a call is {call.outcome} whose worker was not struck while it ran"
                yield Finding("I1", what, call.correlation_id)

    def _in_doubt(self, call: Call) -> bool:
        """Whether no worker has started the call when Redis was restarted, and a dead one was missed then."""
        if call.entry is None or call.entry.starts or call.effects:
            return False
        open_until = math.inf if call.answered_ms is None else call.answered_ms
        killed = [at for at in self.redis_killed if call.created_ms <= at <= open_until]
        return any(0 < at - hit.at_ms < MISSED_SECONDS * 1000 for at in killed for hit in self.hits)

    def _left_behind(self) -> list[Finding]:
        return [Finding("keys", "a key has no TTL", name) for name in leaked_keys(self.cluster.redis.url)]


@contextmanager
def trial(
    folder: Path,
    work: Work,
    *,
    workers: int,
    calls: int | None = None,
    redis_loses_data: bool = False,
    store_goes_away: bool = False,
    proxied: bool = False,
    prepare: Callable[[Cluster], None] = lambda _: None,
    **options: Any,
) -> Generator[Trial]:
    """The product under this load for as long as the block; `options` are those of the cluster.

    A turn whose store is away may end as failed, and its calls with it: `store_goes_away`. If it is `proxied`, engines
    and workers reach Redis through proxies. `prepare` is done before the load begins.
    """
    cluster = Cluster(folder, **options)
    with closing(cluster), behind_proxies(cluster) if proxied else nullcontext() as proxies:
        cluster.start(workers=workers)
        prepare(cluster)
        with Observer(cluster, redis_loses_data=redis_loses_data) as observer, Load(cluster, work, calls) as load:
            yield Trial(cluster, load, observer, redis_loses_data, store_goes_away, time.monotonic(), proxies)


def in_lanes(lanes: Sequence[L], jobs: Iterable[J], do: Callable[[L, J], None]) -> None:
    """Do all jobs, each on the next lane that is free."""
    free: Queue[L] = Queue()
    for lane in lanes:
        free.put(lane)

    def one(job: J) -> None:
        lane = free.get()
        try:
            do(lane, job)
        finally:
            free.put(lane)

    with ThreadPoolExecutor(len(lanes)) as pool:
        list(pool.map(one, jobs))


def engines_on(store: Kind) -> dict[str, Any]:
    """The options of a cluster: two engines on one PostgreSQL, or one on SQLite."""
    return {"database": store, "engines": 2 if store == "postgres" else 1}


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which this part of them lies; 0 when there are none."""
    if len(values) < 2:
        return max(values, default=0.0)
    return statistics.quantiles(values, n=1000, method="inclusive")[round(part * 1000) - 1]


def _totals(history: History, seconds: float) -> Figures:
    calls = list(history.calls.values())
    once = [call for call in calls if call.execution_class == ExecutionClass.ONCE]
    states = {str(state): history.count(state) for state in CallState if state.terminal}
    return {
        "calls": len(calls),
        "of them once": len(once),
        **{state: count for state, count in states.items() if count},
        "lost": sum(_lost(call) for call in calls),
        "double effects of once tools": sum(call.effects > 1 for call in once),
        "calls per second": round(len(calls) / seconds, 1),
    }


def _lost(call: Call) -> bool:
    return call.outcome is None
