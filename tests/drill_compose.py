"""`make drill`: the product in containers, one part of it broken after the other (docs/drill.md).

Each fault has the alerts that must fire within ALERT_SECONDS, the alerts that may follow from it, and the step of the
runbook that repairs it. Meanwhile users chat, with calls that may run only once and without calls. A line for each says
what was seen. The exit code is 1 where a line falls short: an alert was late or wrong, a call was lost or ran twice, a
chat without tools stalled, or the fault did not heal.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from deploy.local.ports import free_port
from tests.support.compose import KEY, UNUSED_IMAGES, WITHOUT_EXPORTERS, Stack
from tests.support.prometheus import Prometheus
from tests.support.waiting import wait_until_blocking

ALERT_SECONDS = 120.0
HEALED_SECONDS = 1_000.0
"""`ProducerMistakes` looks back for 15 minutes, and ends when they are over."""
STALL_SECONDS = 3.0
"""A chat without tools whose first token takes longer stalls."""
ALWAYS = {"Watchdog", "ExporterDown"}
"""What fires all the time: the exporters do not run in the drill (WITHOUT_EXPORTERS)."""
USERS = 2
HEAD = "| broken | alerts, after | step | healed, after | lost, doubled | slowest chat | |\n" + "|---" * 7 + "|"
POISON = """
import redis
keys = redis.Redis.from_url(open("/run/callstream/redis_url").read().strip())
keys.xadd("events.plugins", {"event": "{\\"eventType\\": \\"Nonsense\\"}"})
"""
WAITING = {"RequestsWait", "ToolTimeouts", "ToolTimeoutsSlow", "ToolFailures", "ToolFailuresSlow", "OutboxNotPublished"}
"""What follows when calls are not run for minutes."""


class Load:
    """Users who ask again as soon as they are answered: with a `once` call, and without tools."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._over = threading.Event()
        self.first_tokens: list[float] = []
        self.refused = 0
        self.unfinished: list[str] = []
        users = [(user, number) for user in (self._chat, self._call) for number in range(USERS)]
        self._threads = [threading.Thread(target=user, args=(number,), daemon=True) for user, number in users]

    @contextmanager
    def running(self) -> Generator[None]:
        """For as long as the block."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join(120)

    def _chat(self, _: int) -> None:
        while not self._over.wait(0.5):
            began = time.monotonic()
            try:
                request = self._stack.request("/v1/chat", {"message": "hello"})
                with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
                    for line in response:
                        if line.startswith(b"event: text"):
                            self.first_tokens.append(time.monotonic() - began)
                            break
                    response.read()
            except OSError:
                self.refused += 1

    def _call(self, user: int) -> None:
        for number in range(100_000):
            if self._over.wait(0.5):
                return
            token = f"d{id(self) % 10_000}u{user}n{number}"
            try:
                events = self._stack.chat_through_failures(
                    f"Increment the counter, answering after 1 seconds, with token {token}"
                )
            except (OSError, urllib.error.HTTPError):
                self.refused += 1
                continue
            if not events or events[-1][0] != "done":
                self.unfinished.append(token)


@dataclass(frozen=True)
class Fault:
    """What is broken, and what must be seen. `refuses`: chats without tools are refused meanwhile."""

    what: str
    breaks: Callable[["Drill"], object]
    step: str
    repair: Callable[["Drill"], object]
    alerts: frozenset[str] = frozenset()
    may_follow: frozenset[str] = frozenset()
    refuses: bool = False


@dataclass
class Line:
    """What was seen of one fault. Times are seconds since the part was broken, and since the repair."""

    fault: Fault
    after: dict[str, float] = field(default_factory=dict[str, float])
    healed: float | None = None
    lost: int = 0
    doubled: int = 0
    slowest: float = 0.0
    refused: int = 0

    @property
    def short(self) -> list[str]:
        """Where it falls short."""
        wrong = self.after.keys() - self.fault.alerts - self.fault.may_follow
        return [
            *(f"{alert} did not fire in time" for alert in sorted(self.fault.alerts - self.after.keys())),
            *(f"{alert} fired wrongly" for alert in sorted(wrong)),
            *(["it did not heal"] if self.healed is None else []),
            *([f"{self.lost} calls lost"] if self.lost else []),
            *([f"{self.doubled} calls ran twice"] if self.doubled else []),
            *([f"a chat stalled for {self.slowest:.1f} s"] if self.slowest > STALL_SECONDS else []),
        ]

    def __str__(self) -> str:
        alerts = ", ".join(f"{alert} {seconds:.0f} s" for alert, seconds in self.after.items()) or "none"
        healed = "no" if self.healed is None else f"{self.healed:.0f} s"
        return (
            f"| {self.fault.what} | {alerts} | {self.fault.step} | {healed} | {self.lost}, {self.doubled} |"
            f" {self.slowest:.1f} s, {self.refused} refused | {'; '.join(self.short) or 'held'} |"
        )


class Drill:
    """One stack with a Prometheus, and the faults on it."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.stack = stack
        self.folder = folder
        self._prometheus = Prometheus(f"http://127.0.0.1:{stack.env['PROMETHEUS_PORT']}")

    def docker(self, *argv: str) -> str:
        """Run a command of Docker; returns its output."""
        return subprocess.run(["docker", *argv], capture_output=True, text=True, check=True, timeout=120).stdout

    def named(self, service: str, count: int | None = None) -> list[str]:
        """So many containers of a service."""
        return self.stack.names(service)[:count]

    def rows(self, query: str) -> list[str]:
        """What the store answers."""
        psql = ["psql", "--username=callstream", "--tuples-only", "--no-align", f"--command={query}"]
        return self.stack.compose("exec", "--no-TTY", "postgres", *psql).stdout.split()

    def run(self, fault: Fault) -> Line:
        """Break a part, wait for its alerts, repair it, and wait until all is as it was."""
        line = Line(fault)
        load = Load(self.stack)
        with load.running():
            wait_until_blocking(lambda: load.first_tokens, 60, what="the load")
            began = time.monotonic()
            load.first_tokens.clear()
            fault.breaks(self)
            while time.monotonic() - began < ALERT_SECONDS and not (fault.alerts and fault.alerts <= line.after.keys()):
                self._look(line, began)
            repaired = time.monotonic()
            fault.repair(self)
            while time.monotonic() - repaired < HEALED_SECONDS:
                if not self._look(line, began) and self._answers():
                    line.healed = time.monotonic() - repaired
                    break
        # A call of a turn that ended has its outcome when the turn has ended.
        with suppress(TimeoutError):
            wait_until_blocking(lambda: not self.rows("SELECT turn_id FROM turns WHERE status = 'running'"), 90)
        line.lost = len(load.unfinished) + len(self.rows("SELECT correlation_id FROM tool_calls WHERE outcome IS NULL"))
        line.doubled = sum(count > 1 for count in self._effects().values())
        line.slowest = 0.0 if fault.refuses else max(load.first_tokens, default=0.0)
        line.refused = load.refused
        return line

    def _look(self, line: Line, began: float) -> set[str]:
        time.sleep(2)
        try:
            firing = self._prometheus.firing() - ALWAYS
        except OSError:
            return {"Prometheus does not answer"}
        for alert in firing - line.after.keys():
            line.after[alert] = time.monotonic() - began
        return firing

    def _answers(self) -> bool:
        try:
            events = self.stack.chat("What is 17 * 23?")
        except (OSError, AssertionError):
            return False
        return any("391" in str(data.get("content")) for kind, data in events if kind == "message")

    def _effects(self) -> Counter[str]:
        log = self.stack.compose("exec", "--no-TTY", "demo-server", "cat", "/tmp/demo-effects.log", check=False).stdout
        return Counter(token for line in log.splitlines() if (token := json.loads(line).get("token")))


def killed(**services: int) -> Callable[[Drill], object]:
    """Kill so many containers of each service."""
    return lambda drill: (
        drill.docker("kill", *(name for service, count in services.items() for name in drill.named(service, count)))
        and None
    )


def docker(command: str, service: str) -> Callable[[Drill], object]:
    """Run a command of Docker on the containers of a service."""
    return lambda drill: drill.docker(command, *drill.named(service))


def started(*services: str) -> Callable[[Drill], object]:
    """`docker compose start`."""
    return lambda drill: drill.stack.compose("start", *services)


def restarted(drill: Drill) -> None:
    """Workers first, then engines, one at a time."""
    for service in ("worker", "engine"):
        for name in drill.named(service):
            drill.docker("restart", "--time", "60", name)
            wait_until_blocking(
                lambda name=name: "healthy" in drill.docker("inspect", "--format", "{{.State.Health.Status}}", name),
                120,
            )


def poisoned(drill: Drill) -> None:
    """An entry that is no request."""
    drill.docker("exec", drill.named("worker")[0], "python", "-c", POISON)


def discarded(drill: Drill) -> None:
    """`plugins-mcp dead discard`."""
    drill.docker("exec", drill.named("worker")[0], "plugins-mcp", "dead", "discard", "--all", "--yes")


def restored(drill: Drill) -> None:
    """`make backup`, and the restore of it."""
    file = drill.folder / "drill.dump"
    drill.stack.make("backup", f"FILE={file}")
    drill.stack.make("restore", f"FILE={file}")


def nothing(_: Drill) -> None:
    """It repairs itself."""


FAULTS = {
    "workers": Fault("all workers killed", killed(worker=4), "`docker compose start worker`", started("worker"),
                     frozenset({"NoWorker"}), frozenset({"WorkerDown", "CallsTakenOver", *WAITING})),
    "some": Fault("3 of 4 workers and 1 of 3 engines killed", killed(worker=3, engine=1),
                  "`docker compose start worker engine`", started("worker", "engine"),
                  frozenset({"WorkerDown", "EngineDown"}), frozenset({"CallsTakenOver"})),
    "redis-stopped": Fault("Redis stopped", docker("stop", "redis"), "`docker compose start redis`", started("redis"),
                           frozenset({"RedisDown"}), frozenset(WAITING)),
    "redis-frozen": Fault("Redis frozen", docker("pause", "redis"), "`docker unpause`", docker("unpause", "redis"),
                          frozenset({"RedisDown"}), frozenset({"LeasesLost", "NoWorker", *WAITING})),
    "postgresql": Fault("PostgreSQL stopped", docker("stop", "postgres"), "`docker compose start postgres`",
                        started("postgres"), frozenset({"StoreDown"}),
                        frozenset({"EngineLeaseNotRenewed", "TurnErrors", "TurnErrorsSlow", "TurnsLost"}),
                        refuses=True),
    "server-hung": Fault("an MCP server hung", docker("pause", "demo-server"), "`docker unpause`",
                         docker("unpause", "demo-server"), frozenset({"McpServerBreakerOpen"}),
                         frozenset({"McpServerDown", "McpServerFailing", *WAITING})),
    "server-dead": Fault("an MCP server dead", killed(**{"demo-server": 1}), "`docker compose start demo-server`",
                         started("demo-server"), frozenset({"McpServerDown"}),
                         frozenset({"McpServerBreakerOpen", "McpServerFailing", *WAITING})),
    "poison": Fault("an entry that is no request", poisoned, "`plugins-mcp dead discard`", discarded,
                    frozenset({"ProducerMistakes"})),
    "rolling": Fault("a restart of every worker and engine, one at a time", restarted, "nothing", nothing),
    "restore": Fault("a restore", restored, "nothing", nothing, frozenset(), frozenset({"NoWorker", "NoEngine"}),
                     refuses=True),
}  # fmt: skip


def run(names: Iterable[str]) -> int:
    """These faults, one after the other. The exit code."""
    env = {
        "API_KEYS": f"tester:{KEY}",
        "ACCEPT_FIRST_LISTINGS": "true",
        "POSTGRES_PASSWORD": uuid.uuid4().hex,
        "PROMETHEUS_PORT": str(free_port()),
    } | UNUSED_IMAGES
    stack = Stack(f"callstream-drill-{uuid.uuid4().hex[:8]}", free_port(), env, ("scale", "observe"))
    short = 0
    with (
        TemporaryDirectory() as folder,
        stack.running("--scale", "engine=3", "--scale", "worker=4", *WITHOUT_EXPORTERS),
    ):
        print(HEAD)
        for name in names:
            line = Drill(stack, Path(folder)).run(FAULTS[name])
            short += bool(line.short)
            print(line, flush=True)
    return min(short, 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.drill_compose", description=__doc__)
    parser.add_argument("faults", nargs="*", metavar="fault", help=f"one or more of: {', '.join(FAULTS)}")
    wanted = parser.parse_args().faults or FAULTS
    if unknown := set(wanted) - FAULTS.keys():
        parser.error(f"no such fault: {', '.join(sorted(unknown))}; there are: {', '.join(FAULTS)}")
    sys.exit(run(wanted))
