"""Users of a stack, each in a thread: they ask, watch what comes and when, and stop their turns."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tests.support.stack import Event, Said, Stack
from tests.support.waiting import wait_until_blocking

T = TypeVar("T")


@dataclass(frozen=True)
class Timed(Generic[T]):
    """What came of something, and how many seconds it took."""

    seconds: float
    value: T


def timed(do: Callable[[], T]) -> Timed[T]:
    """Do it and take the time."""
    begun = time.monotonic()
    value = do()
    return Timed(time.monotonic() - begun, value)


@dataclass
class Asked:
    """A turn that a user watches. Times are seconds after the question."""

    stack: Stack
    question: str
    session_id: str | None = None
    events: list[tuple[float, Event]] = field(default_factory=list[tuple[float, Event]])
    done: "Future[None] | None" = None

    def begin(self, pool: ThreadPoolExecutor) -> "Asked":
        """Ask."""
        self.done = pool.submit(self._watch)
        return self

    def end(self, seconds: float = 60.0) -> Timed[Said]:
        """Wait for the end of the turn."""
        assert self.done is not None
        self.done.result(seconds)
        return Timed(self.events[-1][0], Said(tuple(event for _, event in self.events)))

    def stop(self) -> Timed[Said]:
        """Press Stop once there is a tool call, and wait until the turn has ended."""
        wait_until_blocking(lambda: self.steps, what="a tool call")
        turn_id = self.events[0][1].data["turnId"]

        def press() -> Said:
            self.stack.http.post(f"/v1/turns/{turn_id}/cancel")
            return self.end().value

        return timed(press)

    @property
    def steps(self) -> list[Event]:
        """The steps of tool calls so far."""
        return [event for _, event in self.events if event.data.get("type") == "tool"]

    @property
    def first_text(self) -> float:
        """When the first text came."""
        return next((at for at, event in self.events if event.name == "text"), float("inf"))

    def _watch(self) -> None:
        begun = time.monotonic()
        with self.stack.asking(self.question, self.session_id) as stream:
            for event in stream:
                self.events.append((time.monotonic() - begun, event))


def last_status(said: Said) -> str:
    """How the turn's last tool call ended; if its steps came out of order, or the turn failed, everything of it."""
    statuses = [step.data["status"] for step in said.controls("tool")]
    if said.reason == "stop" and statuses and statuses[-1] not in ("pending", "queued", "running"):
        return str(statuses[-1])
    others = [f"{event.name} {event.data}" for event in said.events if event.name in ("error", "done")]
    return ", ".join([*statuses, *others]) or "no call"
