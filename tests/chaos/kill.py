"""One kill: turns of several clients reach a step, their engine dies, and an engine resumes them."""

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum

from tests.chaos.transitions import Transition
from tests.chaos.turn_client import END_SECONDS, TurnClient
from tests.support.replicas import Replica
from tests.support.stack import Stack
from tests.support.store import quoted
from tests.support.waiting import wait_until_blocking

TAKEOVER_SECONDS = 20.0


class Recovery(StrEnum):
    """Which engine resumes the turns."""

    RESTART = "restart"
    """The same engine, started again."""
    TAKEOVER = "takeover"
    """Another engine on the same store. The one that was killed is started again afterwards."""


class CrashingReplica(Replica):
    """An engine that kills itself at a given step."""

    def __init__(self, stack: Stack, name: str) -> None:
        self._crash_point = stack.folder / f"{name}.crash_point"
        flags = (
            "--adopt-nothing",
            "--crash-at",
            self._crash_point,
        )  # what it adopts would count among those at the step
        super().__init__(stack, name, program=(sys.executable, "-m", "tests.chaos.engine", *flags))

    def crash_at(self, step: str, turns: int) -> None:
        """Kill itself when this number of turns waits at the step."""
        self._crash_point.write_text(f"{turns} {step}")

    def live_again(self) -> None:
        """Start it, unless it runs, without a step to crash at."""
        self._crash_point.unlink(missing_ok=True)
        super().live_again()


@dataclass
class Kill:
    """The kill and what came of it."""

    victim: CrashingReplica
    survivor: Replica
    transition: Transition
    recovery: Recovery
    turns: int
    clients: list[TurnClient] = field(default_factory=list[TurnClient])
    findings: list[str] = field(default_factory=list[str])
    adopted_after: float | None = None
    """From the kill until the other engine owned the last turn that ran; None when none ran, or no engine took over."""

    def run(self) -> None:
        """Ask, kill, resume, check."""
        self.victim.live_again()
        self.victim.crash_at(self.transition.step, self.turns)
        self.clients = [TurnClient(self.transition) for _ in range(self.turns)]
        with ThreadPoolExecutor(self.turns + 1) as pool:
            asking = [pool.submit(client.ask, self.victim) for client in self.clients]
            try:
                wait_until_blocking(lambda: self.victim.process.returncode is not None, END_SECONDS)
            except TimeoutError:
                self._find(f"only {[client.received for client in self.clients]} reached the step")
                self.victim.process.kill()
            died_at = time.monotonic()
            for client, asked in zip(self.clients, asking, strict=True):
                self._try(client, asked.result)
            engine = self.victim if self.recovery is Recovery.RESTART else self.survivor
            adoption = pool.submit(self._adoption, died_at) if self.recovery is Recovery.TAKEOVER else None
            engine.live_again()
            for seen in [pool.submit(self._see_through, client, engine, died_at) for client in self.clients]:
                seen.result()
            if adoption is not None:
                self.adopted_after = adoption.result()
        self.victim.live_again()

    def _adoption(self, died_at: float) -> float | None:
        """When the last of the turns that the dead engine ran belonged to another one."""
        store = self.victim.stack.store
        sessions = quoted(client.session_id for client in self.clients)
        owners = store.rows(f"SELECT DISTINCT owner FROM turns WHERE session_id IN ({sessions}) AND status = 'running'")  # noqa: S608
        if not owners:
            return None
        left = f"turns WHERE status = 'running' AND owner IN ({quoted(owner for (owner,) in owners)})"
        try:
            wait_until_blocking(lambda: store.count(left) == 0, TAKEOVER_SECONDS)
        except TimeoutError:
            self._find(f"{store.count(left)} turns were not adopted within {TAKEOVER_SECONDS:g} s")
        return time.monotonic() - died_at

    def _see_through(self, client: TurnClient, engine: Replica, died_at: float) -> None:
        def live() -> None:
            client.resume(engine, died_at)
            client.check(engine)
            if self.recovery is Recovery.TAKEOVER and (client.seconds or 0) > TAKEOVER_SECONDS:
                self._find(f"the end came {client.seconds:.1f} s after the kill")

        self._try(client, live)

    def _try(self, client: TurnClient, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:  # noqa: BLE001 -- whatever it is became of this turn: the others go on
            self._find(f"turn {client.turn_id}: {type(error).__name__} {error}")

    def _find(self, what: str) -> None:
        self.findings.append(f"{self.recovery}, {self.transition.name}: {what}")
