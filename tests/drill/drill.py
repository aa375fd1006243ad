"""Breaks one part of a stack, looks at the alerts, and repairs it by the commands of the documents."""

import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.drill.load import USERS, Load
from tests.support.compose import Stack
from tests.support.dashboards import queries
from tests.support.prometheus import Prometheus
from tests.support.waiting import wait_until_blocking

ALERT_SECONDS = 120.0
QUIET_SECONDS = 45.0
"""How long a fault without an alert is watched: alerts wait for 30 seconds, and are evaluated every 15."""
HEALED_SECONDS = KNOWN_SECONDS = 180.0
STALL_SECONDS = 3.0
"""A chat without tools that waits longer for its first text, or for being refused, stalls."""
UNAVAILABLE_SHARE, UNCONNECTED_SECONDS = 0.01, 2.0
"""What users may notice of what is planned: requests that get 503, and how long they have no connection."""
ALWAYS = {"Watchdog"}
LOOKS_BACK_SECONDS = {
    "EngineLeaseNotRenewed": 120,
    **dict.fromkeys(("TurnErrors", "ToolFailures", "ToolTimeouts", "McpServerFailing", "RequestsLimited"), 300),
    **dict.fromkeys(("ProducerMistakes", "CallsTakenOver", "LeasesLost", "TurnsLost"), 900),
    **dict.fromkeys(("TurnErrorsSlow", "ToolFailuresSlow", "ToolTimeoutsSlow"), 1800),
}
"""For how long after a repair an alert may still begin, and end, on account of what was broken before."""
HEAD = "| broken | alerts, after | healed, after | lost, doubled | slowest chat; refused | |\n" + "|---" * 6 + "|"


@dataclass(frozen=True)
class Fault:
    """What is broken, and what must be seen.

    `alerts` must fire, and `may_follow` may. `panels` show the cause. `steps` are the commands of the documents that
    find and end it, and then `proof` must hold. Beside two users who chat, `callers` call a tool. Without `serves`
    there is no engine meanwhile, and how long a chat waits is not judged. `planned`: hardly a request may be refused.
    `known` is a query that has a result when Prometheus has seen enough to notice the fault.
    """

    what: str
    breaks: Callable[["Drill"], object]
    alerts: frozenset[str] = frozenset()
    panels: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    may_follow: frozenset[str] = frozenset()
    callers: int = 2
    serves: bool = True
    planned: bool = False
    known: str = "vector(1)"
    proof: Callable[["Drill"], bool] = lambda _: True


@dataclass
class Line:
    """What was seen of one fault. Times are seconds since the part was broken, and since the repair."""

    fault: Fault
    old: set[str] = field(default_factory=set[str])
    """What fired before the fault."""
    after: dict[str, float] = field(default_factory=dict[str, float])
    healed: float | None = None
    lost: int = 0
    doubled: int = 0
    slowest: float = 0.0
    refused: int = 0
    requests: int = 0
    unavailable: int = 0
    unconnected: float = 0.0
    failed: int = 0
    """How many commands of the documents failed."""

    @property
    def short(self) -> list[str]:
        """Where it falls short."""
        late = {alert for alert in self.fault.alerts if self.after.get(alert, ALERT_SECONDS + 1) > ALERT_SECONDS}
        wrong = self.after.keys() - self.fault.alerts - self.fault.may_follow
        return [
            *(f"{alert} did not fire in time" for alert in sorted(late)),
            *(f"{alert} fired wrongly" for alert in sorted(wrong)),
            *([f"{self.failed} commands failed"] if self.failed else []),
            *(["it did not heal"] if self.healed is None else []),
            *([f"{self.lost} calls lost"] if self.lost else []),
            *([f"{self.doubled} calls ran twice"] if self.doubled else []),
            *(
                [f"a chat stalled for {self.slowest:.1f} s"]
                if self.fault.serves and self.slowest > STALL_SECONDS
                else []
            ),
            *(self._noticed if self.fault.planned else []),
        ]

    @property
    def _noticed(self) -> list[str]:
        """What users should not have noticed of something planned."""
        often, long = self.unavailable > UNAVAILABLE_SHARE * self.requests, self.unconnected > UNCONNECTED_SECONDS
        return [
            *([f"{self.unavailable} of {self.requests} requests got 503"] if often else []),
            *([f"a user had no connection for {self.unconnected:.1f} s"] if long else []),
        ]

    def __str__(self) -> str:
        alerts = ", ".join(f"`{alert}` {seconds:.0f} s" for alert, seconds in self.after.items()) or "none"
        healed = "no" if self.healed is None else f"{self.healed:.0f} s"
        return (
            f"| {self.fault.what} | {alerts} | {healed} | {self.lost}, {self.doubled} |"
            f" {self.slowest:.1f} s; {self.refused} of {self.requests} | {'; '.join(self.short) or 'held'} |"
        )


class Drill:
    """One stack with a Prometheus, and the faults on it."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        """`folder` is where backups go, and where the demo server logs what its tools did."""
        self.stack = stack
        self.folder = folder
        self.broken = ExitStack()
        """What a fault has started; it ends with the repair."""
        self.in_backup: set[str] | None = None
        """The tokens of the calls in the backup that is restored: models ask again for what it has not."""
        self._prometheus = Prometheus(f"http://127.0.0.1:{stack.env['PROMETHEUS_PORT']}")
        self._old = set[str]()
        """What fires since an earlier fault."""
        self._old_until = dict[str, float]()
        """Until when, on the monotonic clock, an alert that fires is on account of an earlier fault."""

    def docker(self, *argv: str) -> str:
        return subprocess.run(["docker", *argv], capture_output=True, text=True, check=True, timeout=120).stdout

    def named(self, service: str, count: int | None = None) -> list[str]:
        return self.stack.names(service)[:count]

    def run(self, fault: Fault) -> Line:
        """Break a part, wait for its alerts, repair it, and wait until the product works and its alerts have ended.

        What is seen is printed.
        """
        print(f"\n## {fault.what}\n", flush=True)
        with suppress(TimeoutError):
            wait_until_blocking(lambda: not self._prometheus.firing() & fault.alerts, ALERT_SECONDS)
            wait_until_blocking(lambda: self._prometheus.query(fault.known), KNOWN_SECONDS)
        line = Line(fault)
        self._old = line.old = self._prometheus.firing()
        load = Load(self.stack, fault.callers)
        with load.running(), self.broken:
            wait_until_blocking(lambda: load.answers, 60, what="the load")
            began = time.monotonic()
            load.answers.clear()
            fault.breaks(self)
            broken = time.monotonic()
            while not fault.alerts <= line.after.keys() and time.monotonic() - broken < ALERT_SECONDS:
                self._look(line, began)
            self._show(fault.panels)
            repaired = time.monotonic()
            for step in fault.steps:
                done = self.stack.shell(step)
                line.failed += done.returncode != 0
                print(f"\n```\n$ {step}\n{done.stdout.rstrip()}\n```", flush=True)
            self.broken.close()
            healing = time.monotonic()
            while line.healed is None and time.monotonic() - healing < HEALED_SECONDS:
                if not self._look(line, began) and self._answers() and fault.proof(self):
                    line.healed = time.monotonic() - repaired
            while not fault.alerts and time.monotonic() - healing < QUIET_SECONDS:
                self._look(line, began)
            self._look(line, began, whole=True)
        ended = time.monotonic()
        self._old_until |= {
            alert: ended + LOOKS_BACK_SECONDS.get(alert, 0) for alert in fault.alerts | fault.may_follow
        }
        self._count(line, load)
        print(f"\n{HEAD}\n{line}", flush=True)
        return line

    def _look(self, line: Line, began: float, *, whole: bool = False) -> set[str]:
        """What fires on account of this fault; of what looks back, only whether it is new is of interest.

        `whole`: also what began and ended between two looks, such as during a command.
        """
        time.sleep(2)
        now = time.monotonic()
        fired = f'count by (alertname) (count_over_time(ALERTS{{alertstate="firing"}}[{now - began:.0f}s]))'
        try:
            firing = self._prometheus.firing() - ALWAYS
            if whole:
                firing |= {each["metric"]["alertname"] for each in self._prometheus.query(fired)} - line.old - ALWAYS
        except OSError:
            return {"Prometheus does not answer"}
        self._old = self._old & firing
        earlier = self._old | {alert for alert in firing - line.fault.alerts if now < self._old_until.get(alert, 0)}
        for alert in sorted(firing - earlier - line.after.keys()):
            line.after[alert] = now - began
            print(f"- {now - began:.0f} s: `{alert}` fires{self._labels_of(alert)}", flush=True)
        return firing - earlier - LOOKS_BACK_SECONDS.keys()

    def _labels_of(self, alert: str) -> str:
        """What an alert is about: the labels of its samples, without those that all alerts have."""
        with suppress(OSError):
            found = self._prometheus.query(f'ALERTS{{alertname="{alert}",alertstate="firing"}}')
            common = {"__name__", "alertname", "alertstate", "severity"}
            texts = [" ".join(text for name, text in each["metric"].items() if name not in common) for each in found]
            return f": {', '.join(texts)}" if any(texts) else ""
        return ""

    def _show(self, panels: tuple[str, ...]) -> None:
        for query in queries():
            if query.panel in panels and query.source == "prometheus":
                samples = [
                    f"{_labels(sample['metric'])}{float(sample['value'][1]):.3g}"
                    for sample in self._prometheus.query(query.runnable)
                ]
                print(f"- panel *{query.panel}* ({query.dashboard}): {', '.join(samples) or 'no data'}", flush=True)

    def _answers(self) -> bool:
        try:
            events = self.stack.chat("What is 17 * 23?", key=USERS["user0"])
        except (OSError, AssertionError):
            return False
        return any("391" in str(data.get("content")) for kind, data in events if kind == "message")

    def _count(self, line: Line, load: Load) -> None:
        rows = self.stack.rows
        # A call of a turn that ended has its outcome when the turn has ended.
        with suppress(TimeoutError):
            wait_until_blocking(lambda: not rows("SELECT turn_id FROM turns WHERE status = 'running'"), 90)
        line.lost = len(load.unfinished) + len(rows("SELECT correlation_id FROM tool_calls WHERE outcome IS NULL"))
        effects = (self.folder / "effects.log").read_text().splitlines()
        tokens = Counter(token for effect in effects if (token := json.loads(effect).get("token")))
        own = {token for token in tokens if token.startswith(load.name)} & (self.in_backup or tokens.keys())
        line.doubled = sum(tokens[token] > 1 for token in own)
        self.in_backup = None
        line.slowest = max(load.answers, default=0.0)
        line.refused, line.requests, line.unavailable = load.refused, load.requests, load.unavailable
        line.unconnected = max(load.unconnected, default=0.0)


def _labels(metric: dict[str, str]) -> str:
    shown = {name: value for name, value in metric.items() if name not in ("__name__", "job", "stream", "group")}
    return " ".join(shown.values()) + " " if shown else ""
