"""Parts of a scenario, each with its own figures and findings, on a stack with users."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.chaos.report import Report
from tests.chaos.users import Asked, last_status, timed
from tests.support.processes import answers
from tests.support.stack import Stack
from tests.support.waiting import wait_until_blocking


class Part:
    """One part. Whoever runs it makes a report of its figures and findings."""

    def __init__(self, name: str, stack: Stack, pool: ThreadPoolExecutor) -> None:
        self.name = name
        self.stack = stack
        self.figures: dict[str, float | int | str] = {}
        self.findings: list[str] = []
        self._pool = pool

    def run(self) -> None:
        """Break something, and look what comes of it."""
        raise NotImplementedError

    def within(self, what: str, seconds: float, limit: float, at_least: float = 0.0) -> None:
        """Note how long something took, and whether that was too long or too short."""
        self.figures[f"{what}, seconds"] = round(seconds, 2)
        self.expect(at_least <= seconds <= limit, f"{what}: {seconds:.1f} s, not {at_least:g} to {limit:g} s")

    def expect(self, holds: bool, otherwise: str) -> None:
        """Note what does not hold."""
        if not holds:
            self.findings.append(otherwise)

    def ask(self, question: str, session_id: str | None = None) -> Asked:
        """A user's question, in a new session or in this one."""
        return Asked(self.stack, question, session_id).begin(self._pool)

    def call(self, tool: str, **arguments: str | float) -> Asked:
        """A question that asks for one call of a tool of the demo server."""
        return self.ask(f"call demo__{tool} {json.dumps(arguments)}")

    def count(self, name: str, seconds: float = 0) -> Asked:
        """A question that asks for one effect under the token of this name, answered after so many seconds."""
        return self.call("increment_counter", token=self.token(name), answer_after_seconds=seconds)

    def check_call(self, when: str, asked: Asked, name: str) -> None:
        """Note the end of a call that was begun then, which must have succeeded with one effect."""
        took = asked.end()
        status, effects = last_status(took.value), len(self.stack.effects(self.token(name)))
        self.figures[f"a call begun {when} is"] = f"{status} after {took.seconds:.1f} s"
        self.expect(status == "succeeded", f"a call begun {when} is {status}, though there was time enough")
        self.expect(effects == 1, f"a call begun {when} has {effects} effects")

    def check_healed(self, ready: Callable[[], bool], limit: float) -> None:
        """Note when all are ready again, and that a new call succeeds, both within `limit` seconds from now."""
        asked = self.count("after")
        after = timed(lambda: wait_until_blocking(ready, 30, what="readiness"))
        self.within("all are ready again after", after.seconds, limit)
        call = asked.end()
        self.within("a new tool call takes", call.seconds, limit)
        self.expect(last_status(call.value) == "succeeded", f"a new tool call is {last_status(call.value)}")

    def token(self, name: str) -> str:
        """A token for the effect log that no other part uses."""
        return f"{self.name}-{name}".replace(" ", "-").replace("'", "")


def ready(port: int) -> bool:
    """Whether the part of the product at this port is ready."""
    return answers(f"http://127.0.0.1:{port}/readyz")


def merged(scenario: str, parts: Sequence[Part], notes: tuple[str, ...] = ()) -> Report:
    """One report of all parts."""
    figures = {f"{part.name}: {figure}": value for part in parts for figure, value in part.figures.items()}
    findings = tuple(f"{part.name}: {finding}" for part in parts for finding in part.findings)
    return Report(scenario, figures, findings, notes)
