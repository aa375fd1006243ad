"""A cluster that lives through many pairs of faults: what a fault has broken is mended, and it is used again."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from plugins_contract.keys import GROUP, Keys
from tests.chaos.cluster import Cluster
from tests.chaos.history import backlog
from tests.chaos.load import running_turns
from tests.chaos.observer import pid_of
from tests.chaos.pairs.redis_pair import OPTIONS, RedisPair
from tests.chaos.trial import engines_on
from tests.support import quick_engine, stack
from tests.support.processes import Process, answers
from tests.support.servers import LocalServer, embedded_binary
from tests.support.stack import START_SECONDS
from tests.support.store import Kind
from tests.support.waiting import comes

WORKERS = 3
MEND_SECONDS = 90.0
EMPTY_SECONDS = 30.0
LOOK_SECONDS = 0.2
QUICK_ENGINE = (stack.QUICK_WORKER[0], "-m", quick_engine.__name__)
BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}
"""Without it each process that is started costs a second of computing more."""


@dataclass
class PairStack(Cluster):
    """`later` are things that happen some time after a fault, and belong to it."""

    redis_options: tuple[str, ...] = OPTIONS
    later: list[Future[None]] = field(default_factory=list[Future[None]])

    def __post_init__(self) -> None:
        self.engine_env = {**BYTECODE, **self.engine_env}
        # Calls must wait in the stream as well: they have more to lose than those that run.
        self.worker_env = {**BYTECODE, "WORKER_CONCURRENCY": "4", **self.worker_env}
        super().__post_init__()
        replica = LocalServer(embedded_binary(), self._sub("replica"), *OPTIONS)
        self.pair = RedisPair(self.redis, self.folder / "redis", replica, self.folder / "replica")
        self.dead: list[Process] = []
        """Engines that were killed since the last mending."""
        self._pool = ThreadPoolExecutor(thread_name_prefix="later")

    @property
    def living(self) -> list[int]:
        return [port for port, engine in self.running_engines.items() if engine.returncode is None]

    def start(self, *, workers: int = WORKERS) -> None:
        super().start(workers=workers)
        self.pair.start()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        super().close()
        self.pair.close()

    def then(self, seconds: float, do: Callable[[], Any]) -> None:
        def wait() -> None:
            time.sleep(seconds)
            do()

        self.later.append(self._pool.submit(wait))

    def kill_engine(self, port: int) -> None:
        engine = self.running_engines[port]
        engine.kill()
        self.dead.append(engine)

    def revive_engine(self, port: int) -> None:
        """Start an engine that was killed, as often as it takes: its store may be away."""
        until = time.monotonic() + MEND_SECONDS
        while True:
            try:
                engine = self.run_engine(port, "engine")
                break
            except (RuntimeError, TimeoutError):
                if time.monotonic() > until:
                    raise
                time.sleep(LOOK_SECONDS)
        if port == self.engine_port:
            self.engine = engine
        else:
            self.others[port] = engine

    def fail_over(self) -> tuple[LocalServer, int]:
        """See `RedisPair`. What is started from now on knows nothing of the old master."""
        old, behind = self.pair.fail_over()
        self.redis = self.pair.master
        return old, behind

    def mend(self) -> list[str]:
        """Bring everything back that a fault has broken. What of it did not come back in time."""
        for each in self.later:
            each.result(MEND_SECONDS)
        self.later.clear()
        self.pair.settle()
        waits: dict[str, tuple[Callable[[], bool], float]] = {
            "turns have not ended": (lambda: running_turns(self.store) == 0, 2 * MEND_SECONDS),
            "requests are left in the stream": (lambda: backlog(self) == (0, 0), EMPTY_SECONDS),
            "workers are not ready": (
                lambda: all(answers(f"http://127.0.0.1:{port}/readyz") for port in self.workers),
                START_SECONDS,
            ),
            "engines do not offer tools": (lambda: all(map(_has_tools, self.running_engines)), START_SECONDS),
        }
        missing = [what for what, (there, seconds) in waits.items() if not comes(there, seconds)]
        self._forget_dead_consumers()
        return missing

    def bury_dead(self) -> None:
        for engine in self.dead:
            self.bury(engine)
        self.dead.clear()
        self.worker_logs.clear()

    def logs(self) -> str:
        """What everything has written, the dead included."""
        engines = [*self.dead, *self.running_engines.values()]
        return "\n".join([super().logs(), *(f"--- engine {each.pid}\n{each.output()}" for each in engines)])

    def _forget_dead_consumers(self) -> None:
        """Dead workers of this pair are no fault of the next one: an operator removes their consumers."""
        alive = {worker.pid for worker in self.workers.values()}
        with self.client() as redis:
            for consumer in redis.xinfo_consumers(Keys().requests, GROUP):
                if pid_of(consumer["name"]) not in alive and not consumer["pending"]:
                    redis.xgroup_delconsumer(Keys().requests, GROUP, consumer["name"])


def _has_tools(port: int) -> bool:
    try:
        return any(each["tools"] for each in httpx2.get(f"http://127.0.0.1:{port}/v1/tools").json()["servers"])
    except httpx2.TransportError:
        return False


def pair_stack(folder: Path, store: Kind, *, quick: bool, source: str = "") -> PairStack:
    """A stack that is not started; `quick`: with short leases."""
    program = QUICK_ENGINE if quick else stack.ENGINE
    return PairStack(folder, quick=quick, source=source, program=program, **engines_on(store))
