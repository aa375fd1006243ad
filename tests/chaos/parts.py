"""Parts of a scenario on a stack with users, each of whom is a thread that asks, watches what comes, and stops it."""

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from tests.chaos.report import Report
from tests.support.processes import answers
from tests.support.stack import Event, Said, Stack
from tests.support.waiting import wait_until_blocking


@dataclass
class Asked:
    """A turn that a user watches. Times are seconds after the question."""

    stack: Stack
    question: str
    session_id: str | None
    token: str
    """Of its call in the effect log."""
    events: list[tuple[float, Event]] = field(default_factory=list[tuple[float, Event]])
    done: "Future[None] | None" = None

    def watch(self) -> None:
        begun = time.monotonic()
        with self.stack.asking(self.question, self.session_id) as stream:
            for event in stream:
                self.events.append((time.monotonic() - begun, event))

    def end(self) -> Said:
        assert self.done is not None
        self.done.result(60)
        return Said(tuple(event for _, event in self.events))

    def stop(self) -> float:
        """Press Stop once there is a tool call. The seconds until the turn has ended."""
        wait_until_blocking(lambda: any(event.data.get("type") == "tool" for _, event in self.events))
        turn_id = self.events[0][1].data["turnId"]
        return timed(lambda: [self.stack.http.post(f"/v1/turns/{turn_id}/cancel"), self.end()])

    def wait_for_effect(self) -> None:
        self.stack.wait_for_effect(self.token)

    @property
    def effects(self) -> int:
        return len(self.stack.effects(self.token))

    @property
    def seconds(self) -> float:
        """When the turn ended, which is waited for."""
        self.end()
        return self.events[-1][0]

    @property
    def first_text(self) -> float:
        return next((at for at, event in self.events if event.name == "text"), float("inf"))

    @property
    def status(self) -> str:
        """How the last tool call ended; if its steps came out of order, or the turn failed, everything of it."""
        said = self.end()
        statuses = [step.data["status"] for step in said.controls("tool")]
        if said.reason == "stop" and statuses and statuses[-1] not in ("pending", "queued", "running"):
            return str(statuses[-1])
        others = [f"{event.name} {event.data}" for event in said.events if event.name in ("error", "done")]
        return ", ".join([*statuses, *others]) or "no call"


class Part:
    """One part. Whoever runs it makes a report of its figures and findings."""

    def __init__(self, name: str, stack: Stack, pool: ThreadPoolExecutor) -> None:
        self.name = name
        self.stack = stack
        self.figures: dict[str, float | int | str] = {}
        self.findings: list[str] = []
        self._pool = pool

    def run(self) -> None:
        raise NotImplementedError

    def within(self, what: str, seconds: float, limit: float) -> None:
        """Note how long something took, and whether that was too long."""
        self.figures[f"{what}, seconds"] = round(seconds, 2)
        self.expect(seconds <= limit, f"{what}: {seconds:.1f} s, more than {limit:g} s")

    def expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.findings.append(otherwise)

    def ask(self, question: str, session_id: str | None = None, token: str = "") -> Asked:
        asked = Asked(self.stack, question, session_id, token)
        asked.done = self._pool.submit(asked.watch)
        return asked

    def call(self, tool: str, name: str, **arguments: str | float) -> Asked:
        """A question that asks for one call of a tool of the demo server, under a token that no other part uses."""
        token = f"{self.name}-{name}".replace(" ", "-").replace("'", "")
        return self.ask(f"call demo__{tool} {json.dumps({'token': token, **arguments})}", token=token)

    def count(self, name: str, seconds: float = 0) -> Asked:
        """A question that asks for one effect, answered after so many seconds."""
        return self.call("increment_counter", name, answer_after_seconds=seconds)

    def check_call(self, when: str, asked: Asked) -> None:
        """Note the end of a call that was begun then, which must have succeeded with one effect."""
        self.figures[f"a call begun {when} is"] = f"{asked.status} after {asked.seconds:.1f} s"
        self.expect(asked.status == "succeeded", f"a call begun {when} is {asked.status}, though there was time enough")
        self.expect(asked.effects == 1, f"a call begun {when} has {asked.effects} effects")

    def check_healed(self, limit: float) -> None:
        """Note when all are ready again, and that a new call succeeds, both within `limit` seconds from now."""
        asked = self.count("after")
        self.within("all are ready again after", timed(lambda: wait_until_blocking(self.all_ready)), limit)
        self.within("a new tool call takes", asked.seconds, limit)
        self.expect(asked.status == "succeeded", f"a new tool call is {asked.status}")

    def redis_state(self) -> str:
        return self.stack.http.get("/readyz").json()["parts"]["redis"]

    def ready_workers(self) -> int:
        return sum(answers(f"http://127.0.0.1:{port}/readyz") for port in self.stack.workers)

    def all_ready(self) -> bool:
        """Whether the engine and all workers have Redis."""
        return self.redis_state() == "ok" and self.ready_workers() == len(self.stack.workers)


def timed(do: Callable[[], object]) -> float:
    begun = time.monotonic()
    do()
    return time.monotonic() - begun


def merged(scenario: str, parts: Sequence[Part], notes: tuple[str, ...] = ()) -> Report:
    figures = {f"{part.name}: {figure}": value for part in parts for figure, value in part.figures.items()}
    findings = tuple(f"{part.name}: {finding}" for part in parts for finding in part.findings)
    return Report(scenario, figures, findings, notes)
