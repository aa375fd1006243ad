"""Parts of a scenario, each with its own figures and findings, on a stack with users."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.chaos.report import Report
from tests.chaos.users import Asked
from tests.support.stack import Stack


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

    def token(self, name: str) -> str:
        """A token for the effect log that no other part uses."""
        return f"{self.name}-{name}".replace(" ", "-").replace("'", "")


def merged(scenario: str, parts: Sequence[Part], notes: tuple[str, ...] = ()) -> Report:
    """One report of all parts."""
    figures = {f"{part.name}: {figure}": value for part in parts for figure, value in part.figures.items()}
    findings = tuple(f"{part.name}: {finding}" for part in parts for finding in part.findings)
    return Report(scenario, figures, findings, notes)
