"""Users press Stop at every moment of a turn, also at an engine that does not run it.

The outcome of each call that they receive must fit what its MCP server noted; the model's stream must be closed, what
it had said kept and marked, and the session must be one that a strict provider takes the next turn of.
"""

import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2

from tests.chaos.followed import engines_at
from tests.chaos.history import backlog
from tests.chaos.load import Work
from tests.chaos.notes import Noted, What
from tests.chaos.report import Report, Size
from tests.chaos.stopping.phases import PHASES, Phase
from tests.chaos.stopping.users import Stopped, ask_again, stop
from tests.chaos.stopping.verdict import judged, missed
from tests.chaos.tools import ASKING, BEFORE, NARROW, SERVER, mcp_config
from tests.chaos.trial import Trial, quantile, trial
from tests.support.waiting import wait_until_blocking

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


def run(size: Size, folder: Path, *, source: str = "") -> Report:
    form, config = FORMS[size], mcp_config(SERVER, BEFORE, NARROW, ASKING)
    options: dict[str, Any] = {"database": "postgres", "engines": 2, "config": config, "source": source}
    with (
        trial(folder, Work(), calls=0, workers=1, **options) as under_fire,
        ThreadPoolExecutor(form.users) as pool,
        engines_at(under_fire.cluster.running_engines) as engines,
    ):
        turns = [turn for phase in PHASES for turn in _play(under_fire, phase, form.times, engines, pool)]
        noted = _settled(under_fire)
        under_fire.findings += (finding for turn in turns for finding in judged(turn, noted))
        for token in noted.tokens(What.INVALID):
            under_fire.expect(False, "model", f"it was sent what it cannot take: {token}")
        unheard = sum(missed(turn, noted) for turn in turns)
        under_fire.figures |= {"turns": len(turns), "unknown calls that were stopped on their way and ran on": unheard}
        under_fire.figures |= {phase.name: _ends(phase, turns, noted) for phase in PHASES}
        for name, seconds in _delays(turns, noted).items():
            p99 = quantile(seconds, 0.99)
            under_fire.figures |= {
                f"{name}, times": len(seconds),
                f"{name}, p50 ms": quantile(seconds, 0.5) * 1000,
                f"{name}, p99 ms": p99 * 1000,
                f"{name}, max ms": max(seconds, default=0.0) * 1000,
            }
            soon = bool(seconds) and (p99 <= form.cancel_seconds or name == TURN)
            under_fire.expect(soon, "delay", f"{name}: p99 {p99 * 1000:.0f} ms of {len(seconds)}")
        return under_fire.report("stops")


def _play(
    under_fire: Trial, phase: Phase, times: int, engines: Sequence[httpx2.Client], pool: ThreadPoolExecutor
) -> list[Stopped]:
    """Stop that many turns in this phase, and ask for the next turn of each session."""
    worker, begun = next(iter(under_fire.cluster.workers.values())), time.monotonic()
    if phase.held:
        worker.send(signal.SIGSTOP)
    try:
        turns = list(pool.map(partial(stop, *engines, phase), range(times), timeout=120))
    finally:
        worker.send(signal.SIGCONT)
    again = [engines[number % 2] for number in range(times)]
    list(pool.map(ask_again, turns, again, timeout=120))
    print(f"{phase.name}: {time.monotonic() - begun:.1f} s")
    return turns


def _settled(under_fire: Trial) -> Noted:
    """The notes, when no tool is at work any more and nothing is left in the stream."""

    def quiet() -> bool:
        noted = under_fire.cluster.noted()
        return set(noted.tokens(What.CALLED)) == set(noted.tokens(What.ENDED))

    wait_until_blocking(lambda: backlog(under_fire.cluster) == (0, 0), what="an empty stream")
    wait_until_blocking(quiet, what="the end of all tools")
    return under_fire.cluster.noted()


def _ends(phase: Phase, turns: Sequence[Stopped], noted: Noted) -> str:
    """How the calls of this phase ended, and with what effect."""
    ends = Counter(
        f"{step.get('status', 'none')} {'with' if noted.times(What.EFFECT, token) else 'without'} effect"
        for turn in turns
        if turn.phase is phase
        for _, token, step in turn.calls
    )
    return ", ".join(f"{count} {end}" for end, count in sorted(ends.items())) or "no calls"


def _delays(turns: Sequence[Stopped], noted: Noted) -> dict[str, list[float]]:
    """Seconds from the request to stop to what it is for."""
    ends = [f"{stop} to {end}" for end in (NOTIFIED, CLOSED, MODEL_CLOSED) for stop in (STOP, STOP_ELSEWHERE)]
    delays: dict[str, list[float]] = {name: [] for name in (*ends, TURN)}
    for turn in turns:
        for name, at in _came_of(turn, noted):
            delays[name].append(at - turn.pressed_at)
    return delays


def _came_of(turn: Stopped, noted: Noted) -> Iterator[tuple[str, float]]:
    """What the stop of this turn was for, and when it came."""
    stop = STOP_ELSEWHERE if turn.phase.elsewhere else STOP
    yield TURN, turn.done_at
    for at in noted.times(What.LEFT, turn.order.tag):
        yield f"{stop} to {MODEL_CLOSED}", at
    for tool, token, _ in turn.calls:
        for at in noted.times(What.CANCELLED, token):
            yield f"{stop} to {NOTIFIED if tool.startswith(BEFORE) else CLOSED}", at
