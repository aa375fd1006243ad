"""The faults, each of which strikes at once; what belongs to it and comes later happens while the next one strikes."""

import random
import signal
import time
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from tests.chaos.load import Load
from tests.chaos.observer import Observer, pid_of
from tests.chaos.pairs.stack import PairStack

AIMED = 0.75
"""The share of engines that are killed soon after they have accepted a question: its calls are under way then."""
AIM_SECONDS = 0.15
BACK_SECONDS = {"engine": (0.0, 8.0), "redis": (0.1, 1.0), "old master": (0.0, 1.5), "postgres": (0.2, 3.0)}
"""From when to when after the fault something is back, or, an old master, gone."""


class Fault(StrEnum):
    ENGINE = "engine"
    """An engine is killed, and started again after some seconds; another one adopts its turns, where there is one."""
    WORKER = "worker"
    """A worker is killed, and another one is started."""
    FREEZE = "freeze"
    """A worker is stopped (SIGSTOP) for longer than a lease, and goes on."""
    FLUSH = "flush"
    """FLUSHALL."""
    RESTART = "restart"
    """Redis is killed and comes back as it was a second before: another `run_id`, and the last second is lost."""
    FAILOVER = "failover"
    """A replica is promoted that was a second behind. Who is connected to the old master is answered for a moment."""
    POSTGRES = "postgres"
    """PostgreSQL is killed, and started again."""


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault as it struck, at this Unix time in milliseconds.

    `engine` is the port of the engine that was struck, `calls` what the worker held that was struck; None: neither was.
    """

    fault: Fault
    at_ms: float
    details: str = ""
    engine: int | None = None
    calls: frozenset[str] | None = None


class Striker:
    def __init__(self, stack: PairStack, load: Load, observer: Observer, dice: random.Random) -> None:
        self._stack = stack
        self._load = load
        self._observer = observer
        self._dice = dice
        self._struck: int | None = None
        """The port of the worker that was struck first."""

    def strike(self, fault: Fault) -> Strike:
        match fault:
            case Fault.ENGINE:
                return self._engine()
            case Fault.WORKER | Fault.FREEZE:
                return self._worker(fault)
            case Fault.FLUSH:
                self._stack.pair.flush()
                return Strike(fault, _now())
            case Fault.RESTART:
                return self._restart()
            case Fault.FAILOVER:
                return self._fail_over()
            case Fault.POSTGRES:
                return self._postgres()

    def _engine(self) -> Strike:
        port = self._dice.choice(self._stack.living)
        if self._dice.random() < AIMED:
            self._stack.then(0, lambda: self._load.begin(port))
            time.sleep(self._dice.uniform(0, AIM_SECONDS))
        self._stack.kill_engine(port)
        at_ms, back = _now(), self._after("engine")
        self._stack.then(back, lambda: self._stack.revive_engine(port))
        return Strike(Fault.ENGINE, at_ms, f"engine at {port}, back after {back:.1f} s", engine=port)

    def _worker(self, fault: Fault) -> Strike:
        stack = self._stack
        held = Counter(pid_of(holder) for holder in self._held().values())
        workers = {worker.pid: port for port, worker in stack.workers.items() if port != self._struck}
        pid = max(workers, key=lambda pid: held[pid])
        port = workers[pid]
        self._struck = port
        stack.workers[port].freeze()
        at_ms = _now()
        calls = frozenset(call for call, holder in self._held().items() if pid_of(holder) == pid)
        if fault is Fault.WORKER:
            stack.kill_worker(port)
            new = stack.start_worker(wait=False)
            stack.then(0, lambda: stack.wait_worker(new))
            details = f"worker {pid}"
        else:
            seconds = stack.leases.lease * self._dice.uniform(1.05, 1.4)
            stack.then(seconds, lambda: stack.workers[port].send(signal.SIGCONT))
            details = f"worker {pid} for {seconds:.1f} s"
        return Strike(fault, at_ms, details, calls=calls)

    def _held(self) -> dict[str, str]:
        """The open calls that are in the hands of a worker, as the last samples have it."""
        return {
            call: holder for call, holder in [*self._observer.observations.held.items()] if call in self._observer.open
        }

    def _restart(self) -> Strike:
        lost = self._stack.pair.kill()
        at_ms, back = _now(), self._after("redis")
        self._stack.then(back, self._stack.pair.master.start)
        return Strike(Fault.RESTART, at_ms, f"{lost} bytes are lost, back after {back:.2f} s")

    def _fail_over(self) -> Strike:
        old, behind = self._stack.fail_over()
        at_ms, gone = _now(), self._after("old master")
        self._stack.then(gone, old.kill)
        return Strike(Fault.FAILOVER, at_ms, f"{behind} bytes are lost, the old master answers for {gone:.2f} s")

    def _postgres(self) -> Strike:
        postgres = self._stack.postgres
        assert postgres is not None
        postgres.kill()
        at_ms, back = _now(), self._after("postgres")
        self._stack.then(back, postgres.start)
        return Strike(Fault.POSTGRES, at_ms, f"back after {back:.1f} s")

    def _after(self, what: str) -> float:
        return self._dice.uniform(*BACK_SECONDS[what])


def _now() -> float:
    return time.time() * 1000
