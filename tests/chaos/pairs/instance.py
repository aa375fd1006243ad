"""One pair of faults under load, and the judgement over every call that was committed meanwhile."""

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plugins_contract.keys import Keys
from plugins_contract.outcomes import CallState
from tests.chaos.followed import engines_at
from tests.chaos.history import Call, History, collect
from tests.chaos.load import Load, Work
from tests.chaos.observer import Observer
from tests.chaos.pairs.stack import PairStack
from tests.chaos.pairs.strikes import Fault, Strike, Striker
from tests.chaos.pairs.verdict import Follower, of_calls, told_differently
from tests.support.waiting import wait_until_blocking

WORK = Work(calls_per_turn=4, open_calls=24, kind="mostly once", shortest_ms=200, longest_ms=2_500)
FULL_SECONDS = 30.0
SOON = 0.5
"""The share of second faults that strike within the first tenth of the time in which they may."""
FOLLOWED = 2
"""How many turns have a client that follows them from before the faults."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two different faults, in this order."""

    first: Fault
    second: Fault

    def __str__(self) -> str:
        return f"{self.first}+{self.second}"


@dataclass
class Instance:
    """What came of one pair. Times are Unix milliseconds; `open` are the calls that were open at either fault."""

    store: str
    pair: str
    seed: str
    gap_seconds: float
    strikes: list[str]
    at_ms: list[float]
    open_at: list[int]
    held: list[int | None]
    open: int = 0
    unknown: int = 0
    calls: int = 0
    seconds: float = 0.0
    violations: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """What does not hold, by kind: the calls or sessions."""
    notes: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        found = self.violations or "held" if self.counts else "hit nothing"
        return (
            f"{self.store} {self.pair} seed {self.seed}: gap {self.gap_seconds:.2f} s,"
            f" {self.unknown} of {self.open} unknown, {found} {' '.join(self.notes)}"
        )

    @property
    def counts(self) -> bool:
        """Whether both faults hit open calls, and where one engine or worker was struck, calls of its own."""
        return all(self.open_at) and all(number != 0 for number in self.held)


class PairTrial:
    """Runs pairs on one stack, one after the other. `within_seconds` of the first fault the second one strikes."""

    def __init__(self, stack: PairStack, artifacts: Path, within_seconds: float) -> None:
        self._stack = stack
        self._artifacts = artifacts
        self._within_seconds = within_seconds
        self._earlier: dict[str, Call] = {}
        """The calls of earlier pairs, by token: what of them takes effect late is a finding, too."""
        self.broken = False
        """Whether the stack did not come back as it should: it is not used again."""

    def run(self, pair: Pair, seed: str) -> Instance:
        stack, dice = self._stack, random.Random(seed)
        begun, since_ms = time.monotonic(), time.time() * 1000
        with (
            Observer(stack, redis_loses_data=True) as observer,
            engines_at(stack.running_engines) as engines,
            ThreadPoolExecutor(FOLLOWED) as pool,
        ):
            with Load(stack, WORK) as load:
                wait_until_blocking(lambda: len(observer.open) >= WORK.open_calls * 0.8, FULL_SECONDS, what="load")
                time.sleep(dice.uniform(0, 2.0))
                followers = [Follower(turn_id) for turn_id in [*load.accepted][-FOLLOWED:]]
                following = [pool.submit(follower.follow, engines) for follower in followers]
                striker = Striker(stack, load, observer, dice)
                first = striker.strike(pair.first)
                gap = dice.uniform(0, self._within_seconds * (0.1 if dice.random() < SOON else 1))
                time.sleep(max(0.0, first.at_ms / 1000 + gap - time.time()))
                strikes = [first, striker.strike(pair.second)]
            missing = stack.mend()
            for each in following:
                each.result()
        history = collect(stack, since_ms=since_ms)
        instance = self._instance(pair, seed, strikes, history, load)
        instance.notes += missing
        self.broken = bool(missing)
        turns = {call.turn_id for strike in strikes for call in _open_at(history, strike.at_ms)}
        for kind, what in [
            *of_calls(history, observer.observations.begun, self._earlier),
            *told_differently(stack, history, turns, followers),
        ]:
            instance.violations.setdefault(kind, []).append(what)
        instance.seconds = round(time.monotonic() - begun, 1)
        if instance.violations or instance.notes:
            self._keep(instance, history, observer)
        self._earlier |= {call.token: call for call in history.calls.values()}
        stack.bury_dead()
        stack.effect_log.write_bytes(b"")
        return instance

    def _instance(self, pair: Pair, seed: str, strikes: list[Strike], history: History, load: Load) -> Instance:
        hit = [_open_at(history, strike.at_ms) for strike in strikes]
        both = {call.correlation_id: call for calls in hit for call in calls}
        return Instance(
            str(self._stack.database),
            str(pair),
            seed,
            round((strikes[1].at_ms - strikes[0].at_ms) / 1000, 3),
            [f"{strike.fault}: {strike.details}" for strike in strikes],
            [strike.at_ms for strike in strikes],
            [len(calls) for calls in hit],
            [_held(strike, calls, load) for strike, calls in zip(strikes, hit, strict=True)],
            open=len(both),
            unknown=sum(call.outcome == CallState.UNKNOWN for call in both.values()),
            calls=len(history.calls),
        )

    def _keep(self, instance: Instance, history: History, observer: Observer) -> None:
        """Everything that is needed to read what has happened."""
        folder = self._artifacts / f"{instance.store}-{instance.pair}-{instance.seed.rsplit('-', 1)[-1]}"
        folder.mkdir(parents=True, exist_ok=True)
        named = {what.split(":")[0] for found in instance.violations.values() for what in found}
        calls = [*history.calls.values(), *self._earlier.values()]
        with self._stack.client() as redis:
            ledger = {call: redis.hgetall(Keys().call(call)) for call in named}
        facts: dict[str, Any] = vars(instance) | {
            "named": [str(call) for call in calls if {call.correlation_id, call.token, call.turn_id} & named],
            "ledger": ledger,
            "starts": {call: sorted(lines) for call, lines in observer.observations.begun.items() if lines},
            "outbox": [str(row) for row in self._stack.store.rows("SELECT * FROM outbox")],
            "engines": [str(row) for row in self._stack.store.rows("SELECT * FROM engines")],
            "all": [str(call) for call in history.calls.values()],
        }
        (folder / "instance.json").write_text(json.dumps(facts, indent=1, default=str))
        (folder / "effects.log").write_bytes(self._stack.effect_log.read_bytes())
        (folder / "logs.txt").write_text(self._stack.logs())


def _open_at(history: History, at_ms: float) -> list[Call]:
    return [
        call
        for call in history.calls.values()
        if call.created_ms <= at_ms and (call.answered_ms is None or call.answered_ms > at_ms)
    ]


def _held(strike: Strike, calls: list[Call], load: Load) -> int | None:
    """How many of the open calls the engine or worker had that was struck; None when none was."""
    if strike.engine is not None:
        return sum(load.accepted.get(call.turn_id) == strike.engine for call in calls)
    return None if strike.calls is None else sum(call.correlation_id in strike.calls for call in calls)
