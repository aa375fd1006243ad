"""One kill: turns of several clients come to a step, their engine dies, and somebody goes on."""

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum

from tests.chaos.transitions import Transition
from tests.chaos.visitor import END_SECONDS, Visitor
from tests.support.replicas import Replica
from tests.support.stack import Stack
from tests.support.store import quoted
from tests.support.waiting import wait_until_blocking

TAKEOVER_SECONDS = 20.0


class Ending(StrEnum):
    """Who goes on."""

    RESTART = "restart"
    """The same engine, started again."""
    TAKEOVER = "takeover"
    """Another engine on the same store. The one that was killed comes back when all is over."""


class Victim(Replica):
    """An engine that can be told where to die."""

    def __init__(self, stack: Stack, name: str) -> None:
        self._doom = stack.folder / f"{name}.doom"
        super().__init__(stack, name, program=(sys.executable, "-m", "tests.chaos.doomed_engine", self._doom))

    def doom(self, step: str, turns: int) -> None:
        """Die when so many turns stand at that step."""
        self._doom.write_text(f"{turns} {step}")

    def live_again(self) -> None:
        """Start it, if it does not run, and let it live."""
        self._doom.unlink(missing_ok=True)
        super().live_again()


@dataclass
class Kill:
    """The kill and what came of it."""

    victim: Victim
    survivor: Replica
    transition: Transition
    ending: Ending
    turns: int
    visitors: list[Visitor] = field(default_factory=list[Visitor])
    findings: list[str] = field(default_factory=list[str])
    adopted_after: float | None = None
    """From the kill until the other engine owned the last turn that ran; None when none ran, or nobody took over."""

    def run(self) -> None:
        """Ask, kill, go on, check."""
        self.victim.live_again()
        self.victim.doom(self.transition.step, self.turns)
        self.visitors = [Visitor(self.transition) for _ in range(self.turns)]
        with ThreadPoolExecutor(self.turns + 1) as pool:
            asking = [pool.submit(visitor.ask, self.victim) for visitor in self.visitors]
            try:
                wait_until_blocking(lambda: self.victim.process.returncode is not None, END_SECONDS)
            except TimeoutError:
                self._find(f"only {[visitor.told for visitor in self.visitors]} came to the step")
                self.victim.process.kill()
            died_at = time.monotonic()
            for visitor, asked in zip(self.visitors, asking, strict=True):
                self._try(visitor, asked.result)
            engine = self.victim if self.ending is Ending.RESTART else self.survivor
            adoption = pool.submit(self._adoption, died_at) if self.ending is Ending.TAKEOVER else None
            engine.live_again()
            for seen in [pool.submit(self._see_through, visitor, engine, died_at) for visitor in self.visitors]:
                seen.result()
            if adoption is not None:
                self.adopted_after = adoption.result()
        self.victim.live_again()

    def _adoption(self, died_at: float) -> float | None:
        """When the last of the turns that the dead engine ran belonged to another one."""
        store = self.victim.stack.store
        sessions = quoted(visitor.session_id for visitor in self.visitors)
        owners = store.rows(f"SELECT DISTINCT owner FROM turns WHERE session_id IN ({sessions}) AND status = 'running'")  # noqa: S608
        if not owners:
            return None
        left = f"turns WHERE status = 'running' AND owner IN ({quoted(owner for (owner,) in owners)})"
        try:
            wait_until_blocking(lambda: store.count(left) == 0, TAKEOVER_SECONDS)
        except TimeoutError:
            self._find(f"{store.count(left)} turns were not adopted within {TAKEOVER_SECONDS:g} s")
        return time.monotonic() - died_at

    def _see_through(self, visitor: Visitor, engine: Replica, died_at: float) -> None:
        def live() -> None:
            visitor.go_on(engine, died_at)
            visitor.check(engine)
            if self.ending is Ending.TAKEOVER and (visitor.seconds or 0) > TAKEOVER_SECONDS:
                self._find(f"the end came {visitor.seconds:.1f} s after the kill")

        self._try(visitor, live)

    def _try(self, visitor: Visitor, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:  # noqa: BLE001 -- whatever it is became of this turn: the others go on
            self._find(f"turn {visitor.turn_id}: {type(error).__name__} {error}")

    def _find(self, what: str) -> None:
        self.findings.append(f"{self.ending}, {self.transition.name}: {what}")
