"""What each subject uses: at this engine, and at all engines together, now and over the last hour. For operators only.

An engine counts in memory and writes what it has counted into a hash of Redis, which engines and a command add
up. The memory is bounded however many subjects there are: those who use most are kept, and the rest is added up as
OTHERS. Nothing is decided by these numbers.
"""

import asyncio
import heapq
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from redis.asyncio import Redis

from callstream_runtime.outage_log import OutageLog
from callstream_runtime.redis_errors import RedisUnavailable
from plugins_contract.keys import Keys
from plugins_contract.messages import new_id

log = logging.getLogger(__name__)

COUNTED = ("turns", "calls", "tokens", "refusals")
"""What is counted over time."""
OPEN = ("streams", "running")
"""What is open now: event streams, and turns that run."""
OTHERS = "(others)"
MAX_SUBJECT = 200
"""Characters of a subject that are kept."""
PERIOD_SECONDS = 300
PERIODS = 12
"""An hour: the period that runs, and those before it."""
PUBLISH_SECONDS = 5.0
STALE_SECONDS = 30.0
"""After so long without a report an engine is gone: what it had open is not counted any more."""
MAX_TRACKED, KEPT_OF_EACH, PUBLISHED_OF_EACH = 2_000, 250, 50
"""How many subjects a period holds; how many remain for each kind when there are more; and how many Redis gets."""

Counts = tuple[int, int, int, int]
"""In the order of COUNTED."""
_Period = dict[str, list[int]]


class _Now(msgspec.Struct):
    at: float
    open: dict[str, tuple[int, int]]


@dataclass(slots=True)
class Use:
    """What one subject uses: `now` in the order of OPEN, `hour` in the order of COUNTED."""

    subject: str
    now: list[int] = field(default_factory=lambda: [0] * len(OPEN))
    hour: list[int] = field(default_factory=lambda: [0] * len(COUNTED))

    def of(self, kind: str) -> int:
        """The number of one kind."""
        return self.now[OPEN.index(kind)] if kind in OPEN else self.hour[COUNTED.index(kind)]


@dataclass(frozen=True, slots=True)
class Report:
    """The use of all subjects that are known, those with the largest share first. `engines` are those that reported.

    Not `complete`: Redis is away, and these are the numbers of one engine.
    """

    uses: Sequence[Use]
    engines: int
    complete: bool = True


class SubjectUse:
    """Counts what subjects use at this engine."""

    def __init__(self, redis: Redis, keys: Keys, *, clock: Callable[[], float] = time.time) -> None:
        self._redis: Any = redis  # redis-py types its commands only partly
        self._key = keys.subjects
        self._clock = clock
        self._process = new_id()  # not the engine's id, which outlives a restart that loses these numbers
        self._periods: dict[int, _Period] = {}
        self._open: defaultdict[str, list[int]] = defaultdict(lambda: [0] * len(OPEN))
        self._tidied = 0
        self._outages = OutageLog(log, "Redis for what subjects use")

    def count(self, kind: str, subject: str, amount: int = 1) -> None:
        """Add to one of COUNTED. Must not block, and does not."""
        number = int(self._clock()) // PERIOD_SECONDS
        period = self._periods.get(number)
        if period is None:
            # Those that have ended are as small as what Redis gets.
            ended = {n: _largest(p, PUBLISHED_OF_EACH) for n, p in self._periods.items() if n > number - PERIODS}
            self._periods = ended | {number: (period := {})}
        subject = subject[:MAX_SUBJECT]
        if subject not in period and len(period) >= MAX_TRACKED:
            period = self._periods[number] = _largest(period, KEPT_OF_EACH)
        period.setdefault(subject, [0] * len(COUNTED))[COUNTED.index(kind)] += amount

    def opened(self, kind: str, subject: str) -> Callable[[], None]:
        """One of OPEN begins. Returns what to call when it has ended; another call of that does nothing."""
        subject, place = subject[:MAX_SUBJECT], OPEN.index(kind)
        self._open[subject][place] += 1
        ended = False

        def end() -> None:
            nonlocal ended
            if ended:
                return
            ended = True
            self._open[subject][place] -= 1
            if not any(self._open[subject]):
                del self._open[subject]

        return end

    async def run(self) -> None:
        """Publish what was counted, until cancelled."""
        while True:
            await asyncio.sleep(PUBLISH_SECONDS)
            try:
                await self.publish()
                self._outages.worked()
            except RedisUnavailable as error:
                self._outages.failed(error)

    async def publish(self) -> None:
        """Write the numbers of this engine into Redis, and remove old ones. Raises `RedisUnavailable`."""
        period = int(self._clock()) // PERIOD_SECONDS
        pipeline = self._redis.pipeline(transaction=False)
        # The period before too: its last numbers may not have been written.
        pipeline.hset(self._key, mapping=self._fields((period - 1, period)))
        pipeline.expire(self._key, (PERIODS + 1) * PERIOD_SECONDS)
        await pipeline.execute()
        if self._tidied != period:
            stored = await self._redis.hgetall(self._key)
            if old := [name for name, value in stored.items() if _is_old(name, value, self._clock())]:
                await self._redis.hdel(self._key, *old)
            self._tidied = period

    async def report(self) -> Report:
        """The numbers of all engines; only those of this engine while Redis is away."""
        try:
            await self.publish()
            return added_up(await self._redis.hgetall(self._key), self._clock())
        except RedisUnavailable:
            pass  # the report says that it is not complete
        own = {name.encode(): value for name, value in self._fields(self._periods).items()}
        report = added_up(own, self._clock())
        return Report(report.uses, report.engines, complete=False)

    def _fields(self, periods: "Sequence[int] | Mapping[int, _Period]") -> dict[str, bytes]:
        most = heapq.nlargest(2 * PUBLISHED_OF_EACH, self._open, key=lambda subject: sum(self._open[subject]))
        now = {"at": self._clock(), "open": {subject: self._open[subject] for subject in most}}
        fields = {
            f"{self._process}:{number}": msgspec.json.encode(_largest(self._periods[number], PUBLISHED_OF_EACH))
            for number in periods
            if number in self._periods
        }
        return fields | {f"{self._process}:now": msgspec.json.encode(now)}


def added_up(fields: Mapping[bytes, bytes], now: float) -> Report:
    """The report from the hash in Redis. What cannot be read, because another release wrote it, is left out."""
    uses: dict[str, Use] = {}
    engines = 0
    oldest = int(now) // PERIOD_SECONDS - PERIODS + 1
    for name, value in fields.items():
        _, _, period = name.decode(errors="replace").rpartition(":")
        try:
            if period == "now":
                reported = msgspec.json.decode(value, type=_Now)
                if now - reported.at > STALE_SECONDS:
                    continue
                engines += 1
                for subject, numbers in reported.open.items():
                    use = uses.setdefault(subject, Use(subject))
                    use.now = [a + b for a, b in zip(use.now, numbers, strict=True)]
            elif period.isdecimal() and int(period) >= oldest:
                for subject, numbers in msgspec.json.decode(value, type=dict[str, Counts]).items():
                    use = uses.setdefault(subject, Use(subject))
                    use.hour = [a + b for a, b in zip(use.hour, numbers, strict=True)]
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            continue
    return Report(_by_share([*uses.values()]), engines)


def first(uses: Sequence[Use], number: int, kind: str = "") -> Sequence[Use]:
    """The first of these, by one kind; as they are without one."""
    return (sorted(uses, key=lambda use: -use.of(kind)) if kind else uses)[:number]


def _by_share(uses: list[Use]) -> list[Use]:
    """Sorted by the largest share that each has of anything: a flood of refusals and a use of tokens come first."""
    totals = [sum(column) or 1 for column in zip(*([*use.now, *use.hour] for use in uses), strict=True)]

    def share(use: Use) -> float:
        return max(number / total for number, total in zip([*use.now, *use.hour], totals, strict=True))

    return sorted(uses, key=lambda use: (use.subject == OTHERS, -share(use), use.subject))


def _largest(period: _Period, of_each: int) -> _Period:
    """The subjects with the largest numbers of each kind. The others are added up."""
    if len(period) <= of_each:
        return dict(period)
    kept: set[str] = set()
    for place in range(len(COUNTED)):
        kept.update(heapq.nlargest(of_each, period, key=lambda subject, place=place: period[subject][place]))
    kept.add(OTHERS)
    found = {subject: numbers for subject, numbers in period.items() if subject in kept}
    rest = [numbers for subject, numbers in period.items() if subject not in kept]
    if rest:
        before = found.get(OTHERS, [0] * len(COUNTED))
        found[OTHERS] = [sum(column) for column in zip(before, *rest, strict=True)]
    return found


def _is_old(name: bytes, value: bytes, now: float) -> bool:
    """Whether a field is of the time before the last hour, or cannot be read."""
    _, _, period = name.decode(errors="replace").rpartition(":")
    try:
        if period == "now":
            return now - msgspec.json.decode(value, type=_Now).at > PERIODS * PERIOD_SECONDS
        return int(period) <= int(now) // PERIOD_SECONDS - PERIODS
    except (ValueError, RecursionError):
        return True
