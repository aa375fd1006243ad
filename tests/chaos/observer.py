"""Looks at the open calls again and again, and remembers what must not be and who took what from whom."""

import math
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Self

from redis.exceptions import RedisError

from plugins_contract.outcomes import CallState
from tests.chaos.cluster import Cluster
from tests.chaos.invariants import Finding
from tests.chaos.sample import Sample, Seen, open_calls, sample
from tests.support.store import AWAY

PERIOD_SECONDS = 0.2


STOLEN = "a lease was stolen back"


@dataclass(frozen=True, slots=True)
class Handover:
    """A call went from one consumer's hands into another's, at this monotonic time in seconds."""

    call: str
    before: str
    after: str
    at: float
    back: bool = False
    """Whether it went back to one who had held it before."""

    @property
    def from_pid(self) -> int:
        return pid_of(self.before)


def pid_of(consumer: str) -> int:
    """The process behind a consumer of the group, which is named host-pid-random."""
    return int(consumer.rsplit("-", 2)[1])


@dataclass(frozen=True, slots=True)
class Away:
    """A worker could not work between these monotonic times in seconds: it was killed, stopped or terminated."""

    pid: int
    since: float
    until: float = math.inf


def from_the_living(handovers: Iterable[Handover], away: Collection[Away]) -> list[Finding]:
    """The handovers from a worker that was there all the time: none of them may be, and least of all back."""
    return [
        Finding("I2", STOLEN, handover.call)
        if handover.back
        else Finding("lease", "a call was taken from a worker that lives", handover.call)
        for handover in handovers
        if not any(gone.pid == handover.from_pid and gone.since <= handover.at <= gone.until for gone in away)
    ]


@dataclass
class Observations:
    """What samples tell, one after the other. Pure.

    `redis_loses_data`: requests and ledger entries may vanish, because a scenario makes them.
    """

    redis_loses_data: bool = False
    findings: list[Finding] = field(default_factory=list[Finding])
    handovers: list[Handover] = field(default_factory=list[Handover])
    samples: int = 0
    held: dict[str, str] = field(default_factory=dict[str, str])
    """Who had each call in hand when it was last seen; what Redis has lost of it since changes nothing."""
    begun: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The starts of each call: when, and by whom. A ledger that was lost and made anew has only its own."""
    unbegun: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """For how many milliseconds a call was in a worker's hands at most that had not begun it."""
    _last: dict[str, Seen] = field(default_factory=dict[str, Seen])
    _holders: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def add(self, seen: Sample, at: float) -> None:
        self.samples += 1
        for call, now in seen.items():
            self._alone(call, now)
            if before := self._last.get(call):
                self._beside(call, before, now)
            self._held(call, now, at)
            if now.holder and now.state == CallState.PUBLISHED and " started " not in now.history:
                self.unbegun[call] = max(self.unbegun[call], now.idle_ms)
            self.begun[call] |= {line for line in now.history.splitlines() if " started " in line}
        self._last = seen

    def _alone(self, call: str, now: Seen) -> None:
        if self.redis_loses_data or now.terminal:
            return
        if not now.on_stream:
            self._find("I6", "the request of an open call is not in the stream", call)
        elif now.state == CallState.STARTED and not now.holder:
            self._find("I5", "a call that was begun is acknowledged before its end", call)

    def _beside(self, call: str, before: Seen, now: Seen) -> None:
        if before.terminal and now.state != before.state:
            self._find("I1", f"a call that was {before.state} became {now.state}", call)
        if self.redis_loses_data:
            return
        if now.execution_class != before.execution_class:
            self._find("I10", "the execution class of a call has changed", call)
        if now.deadline != before.deadline:
            self._find("I9", "the deadline of a call has changed", call)
        if now.fence < before.fence:
            self._find("I2", "the fence of a call went back", call)

    def _held(self, call: str, now: Seen, at: float) -> None:
        if not now.holder or now.terminal:
            self.held.pop(call, None)
        else:
            self.held[call] = now.holder
        if not now.holder:
            return
        holders = self._holders.setdefault(call, [])
        if holders and holders[-1] != now.holder:
            self.handovers.append(Handover(call, holders[-1], now.holder, at, back=now.holder in holders))
        if not holders or holders[-1] != now.holder:
            holders.append(now.holder)

    def _find(self, rule: str, what: str, call: str) -> None:
        finding = Finding(rule, what, call)
        if finding not in self.findings:
            self.findings.append(finding)


class Observer:
    """Samples in a thread, for as long as the block. While Redis or the store is away it waits."""

    def __init__(self, cluster: Cluster, *, redis_loses_data: bool = False) -> None:
        self.observations = Observations(redis_loses_data)
        self.open: frozenset[str] = frozenset()
        """The open calls at the last look."""
        self._cluster = cluster
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def look(self) -> Sample:
        """The open calls as they are now. Raises what redis raises."""
        with self._cluster.client() as redis:
            return sample(redis, list(open_calls(self._cluster.store)))

    def running(self) -> Sample:
        """The calls that workers have begun and not ended. Raises what redis raises."""
        return {call: seen for call, seen in self.look().items() if seen.state == CallState.STARTED and seen.holder}

    def _run(self) -> None:
        while not self._stop.wait(PERIOD_SECONDS):
            try:
                calls = open_calls(self._cluster.store)
                self.open = frozenset(calls)
                at = time.monotonic()
                with self._cluster.client() as redis:
                    self.observations.add(sample(redis, list(calls)), at)
            except (RedisError, *AWAY):
                continue
            for call, has_row in calls.items():
                if not has_row:
                    self.observations.findings.append(Finding("I8", "an open call has no outbox row", call))
