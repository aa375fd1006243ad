"""Users press Stop at every moment of a turn, also at an engine that does not run it.

The outcome of each call that they receive must fit what its MCP server noted; the model's stream must be closed, what
it had said kept and marked, and the session must be one that a strict provider takes the next turn of.
"""

import signal
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis import Redis

from plugins_contract.keys import Keys
from tests.chaos.report import Report, Size
from tests.chaos.stopping.notes import Noted, What
from tests.chaos.stopping.phases import PHASES, Phase
from tests.chaos.stopping.stack import BEFORE, StoppingStack, running_stage
from tests.chaos.stopping.users import Stopped, ask_again, stop
from tests.chaos.stopping.verdict import judged, missed
from tests.chaos.trial import quantile
from tests.support.replicas import Replica
from tests.support.waiting import wait_until_blocking

Figures = dict[str, float | int | str]
STOP, STOP_ELSEWHERE = "from Stop", "from Stop at another engine"
NOTIFIED, CLOSED = "notifications/cancelled", "the closed connection, which is today's way"
MODEL_CLOSED = "the end of the model's stream"
TURN = "from Stop to the end of the turn"
"""Bounded by how long a worker may take to say what became of a call, which is seconds."""


@dataclass(frozen=True, slots=True)
class Form:
    """How often each phase is played, by how many users at a time, and how soon 99 of 100 stops must have come through.

    In the short form that is a bound for a machine that has other things to do.
    """

    times: int
    users: int
    cancel_seconds: float


FORMS = {Size.SHORT: Form(2, 2, cancel_seconds=2.0), Size.FULL: Form(60, 4, cancel_seconds=0.25)}


@dataclass
class Run:
    """The stack and all turns that were stopped on it."""

    stack: StoppingStack
    one: Replica
    two: Replica
    pool: ThreadPoolExecutor
    turns: list[Stopped] = field(default_factory=list[Stopped])

    def play(self, phase: Phase, times: int) -> None:
        """Stop that many turns in this phase, and ask for the next turn of each session."""
        worker = next(iter(self.stack.workers.values()))
        if phase.held:
            worker.send(signal.SIGSTOP)
        try:
            turns = self._all([self.pool.submit(stop, self.one, self.two, phase, number) for number in range(times)])
        finally:
            worker.send(signal.SIGCONT)
        both = (self.one, self.two)
        self._all([self.pool.submit(ask_again, turn, both[number % 2]) for number, turn in enumerate(turns)])
        self.turns += turns

    def settled(self) -> Noted:
        """The notes, when no tool is at work any more and nothing is left in the stream."""

        def quiet() -> bool:
            noted = self.stack.noted()
            return set(noted.tokens(What.CALLED)) == set(noted.tokens(What.ENDED))

        with Redis.from_url(self.stack.redis.url) as redis:
            wait_until_blocking(lambda: not redis.xlen(Keys().requests), 30, what="an empty stream")
        wait_until_blocking(quiet, 30, what="the end of all tools")
        return self.stack.noted()

    @staticmethod
    def _all(futures: Sequence["Future[Any]"]) -> list[Any]:
        return [future.result(120) for future in futures]


def run(size: Size, folder: Path, source: str = "") -> Report:
    """One phase after the other, then the judgement. `source` is put in front of the installed services."""
    form = FORMS[size]
    with running_stage(folder, source) as (stack, one, two), ThreadPoolExecutor(form.users) as pool:
        play = Run(stack, one, two, pool)
        for phase in PHASES:
            began = time.monotonic()
            play.play(phase, form.times)
            print(f"{phase.name}: {time.monotonic() - began:.1f} s")
        noted = play.settled()
    findings = [finding for turn in play.turns for finding in judged(turn, noted)]
    findings += [f"the model was sent what it cannot take: {token}" for token in noted.tokens(What.INVALID)]
    figures: Figures = {
        "turns": len(play.turns),
        "unknown calls that were stopped on their way and ran on": sum(missed(turn, noted) for turn in play.turns),
    }
    for phase in PHASES:
        turns = [turn for turn in play.turns if turn.phase is phase]
        figures[phase.name] = _ends(turns, noted)
        print(
            phase.name,
            {name: (quantile(each, 0.5), quantile(each, 0.99)) for name, each in _delays(turns, noted).items() if each},
        )
    for name, seconds in _delays(play.turns, noted).items():
        p99 = quantile(seconds, 0.99)
        figures |= {
            f"{name}, times": len(seconds),
            f"{name}, p50 ms": quantile(seconds, 0.5) * 1000,
            f"{name}, p99 ms": p99 * 1000,
            f"{name}, max ms": max(seconds, default=0.0) * 1000,
        }
        if not seconds or (p99 > form.cancel_seconds and name != TURN):
            findings.append(f"{name}: p99 {p99 * 1000:.0f} ms of {len(seconds)}")
    return Report("stops", figures, tuple(findings))


def _ends(turns: Sequence[Stopped], noted: Noted) -> str:
    """How the calls of these turns ended, and with what effect."""
    ends = Counter(
        f"{step.get('status', 'none')} {'with' if noted.times(What.EFFECT, token) else 'without'} effect"
        for turn in turns
        for token, step in turn.calls
    )
    return ", ".join(f"{count} {end}" for end, count in sorted(ends.items())) or "no calls"


def _delays(turns: Sequence[Stopped], noted: Noted) -> dict[str, list[float]]:
    """Seconds from the request to stop to what it is for."""
    delays: dict[str, list[float]] = {
        f"{stop} to {end}": [] for end in (NOTIFIED, CLOSED, MODEL_CLOSED) for stop in (STOP, STOP_ELSEWHERE)
    }
    delays[TURN] = []
    for turn in turns:
        stop = STOP_ELSEWHERE if turn.phase.elsewhere else STOP
        ends = [(MODEL_CLOSED, at) for at in noted.times(What.LEFT, turn.token)]
        for (tool, _), (token, _) in zip(turn.plan.calls, turn.calls, strict=True):
            how = NOTIFIED if tool.startswith(BEFORE) else CLOSED
            ends += [(how, at) for at in noted.times(What.CANCELLED, token)]
        for end, at in ends:
            delays[f"{stop} to {end}"].append(at - turn.pressed_at)
        delays[TURN].append(turn.done_at - turn.pressed_at)
    return delays
