"""An engine is killed at each step of a tool turn, and started again; or it stays dead, and another goes on.

A client reads on over as many connections as it takes. In the end it must have been told exactly what is stored, every
turn must have its end, and the tool must have run once.
"""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.report import Report, Size
from tests.chaos.trial import quantile
from tests.support.replicas import Replica
from tests.support.stack import Event, Stack
from tests.support.transcript import Transcript

QUESTION = "Increment the counter, answering after 0.2 seconds, with token {token}"
TAKEOVER_SECONDS = 20.0
END_SECONDS = 60.0


@dataclass
class Progress:
    """How far a turn has come, as its events tell."""

    rounds: int = 0

    def reached(self, transition: str, event: Event) -> bool:
        """Whether this event is the transition."""
        data = event.data
        match event.name:
            case "control" if data["type"] == "turn":
                name = "started"
            case "control" if data["type"] == "tools":
                self.rounds += 1
                name = "round complete"
            case "control":
                name = data["status"]
            case "text":
                name = "answering" if self.rounds else "thinking"
            case "message":
                name = "answer committed" if self.rounds else "round committed"
            case _:
                name = event.name
        return name == transition


TRANSITIONS = (
    "started",
    "thinking",
    "round committed",
    "pending",
    "queued",
    "running",
    "succeeded",
    "round complete",
    "answering",
    "answer committed",
    "done",
)


@dataclass(frozen=True, slots=True)
class Form:
    """How often an engine is killed at each of these transitions and started again, or stays dead."""

    restarts: int
    restarted_at: tuple[str, ...]
    takeovers: int
    taken_over_at: tuple[str, ...]


FORMS = {
    Size.SHORT: Form(1, ("thinking",), 1, ("running",)),
    Size.FULL: Form(30, TRANSITIONS, 3, TRANSITIONS),
}


@dataclass
class Trial:
    """Two engines and what was found out about them."""

    stack: Stack
    one: Replica
    two: Replica
    findings: list[str] = field(default_factory=list[str])
    restarts: list[float] = field(default_factory=list[float])
    takeovers: list[float] = field(default_factory=list[float])
    resets: int = 0
    turns: int = 0

    def kill(self, transition: str, then: Callable[[], Replica], durations: list[float]) -> None:
        """Kill the first engine at this transition of a turn; `then` says who goes on."""
        token = f"{transition}-{self.turns}".replace(" ", "-")
        self.turns += 1
        session_id, turn_id = self.one.begin(QUESTION.format(token=token))
        told, progress = Transcript(), Progress()
        self.one.read(turn_id, told, until=lambda event: progress.reached(transition, event))
        self.one.process.kill()
        died_at = time.monotonic()
        survivor = then()
        try:
            survivor.read_to_the_end(turn_id, told, END_SECONDS)
        except AssertionError as error:
            self._find(transition, token, f"the turn has no end: {error}")
            return
        durations.append(time.monotonic() - died_at)
        self.resets += told.resets
        self._check(transition, token, survivor.messages(session_id), told)

    def _check(self, transition: str, token: str, stored: list[dict[str, Any]], told: Transcript) -> None:
        said = {each["messageId"]: each["content"] for each in stored if each["role"] == "assistant"}
        calls = {call["correlationId"]: call["status"] for each in stored for call in each["toolCalls"]}
        if told.messages != said or told.statuses != calls or told.open_text:
            self._find(transition, token, f"told {told.messages} {told.statuses}, stored {said} {calls}")
        if told.repeats:
            self._find(transition, token, f"told twice: {told.repeats}")
        if told.done is None or told.done["reason"] != "stop" or "succeeded" not in calls.values():
            self._find(transition, token, f"it ended with {told.done}, its calls {calls}")
        if len(effects := self.stack.effects(token)) != 1:
            self._find(transition, token, f"the tool ran {len(effects)} times")

    def _find(self, transition: str, token: str, what: str) -> None:
        self.findings.append(f"killed at {transition!r} ({token}): {what}")


def run(size: Size, folder: Path) -> Report:
    """Kill engines, one after the other."""
    form = FORMS[size]
    stack = Stack(folder, quick=True, token_delay_ms=5)
    try:
        stack.start()
        assert stack.engine
        with closing(Replica(stack, "one")) as one, closing(Replica(stack, "two")) as two:
            trial = Trial(stack, one, two)
            for replica in (one, two):
                replica.wait_for_tools()
            _kill_all(trial, form)
    finally:
        stack.close()
    figures: dict[str, float | int | str] = {"turns": trial.turns, "resets": trial.resets}
    for name, durations in (("restart", trial.restarts), ("takeover", trial.takeovers)):
        if durations:
            figures[f"{name}: end of the turn after the kill, p50 s"] = quantile(durations, 0.5)
            figures[f"{name}: end of the turn after the kill, max s"] = max(durations)
    slow = [each for each in trial.takeovers if each > TAKEOVER_SECONDS]
    if slow:
        trial.findings.append(f"{len(slow)} turns ended later than {TAKEOVER_SECONDS:.0f} s after the kill")
    return Report("engines_killed", figures, tuple(trial.findings))


def _kill_all(trial: Trial, form: Form) -> None:
    def restarted() -> Replica:
        trial.one.live_again()
        return trial.one

    for _ in range(form.restarts):
        for transition in form.restarted_at:
            trial.kill(transition, restarted, trial.restarts)
    for _ in range(form.takeovers):
        for transition in form.taken_over_at:
            trial.one.live_again()
            trial.kill(transition, lambda: trial.two, trial.takeovers)
