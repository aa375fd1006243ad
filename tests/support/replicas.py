"""Several engines of one stack, which share its PostgreSQL, and a client that goes from one to the other."""

import math
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx2

from deploy.local.ports import free_port
from tests.support.processes import Process
from tests.support.stack import ENGINE, Event, Stack, events_of
from tests.support.transcript import Transcript
from tests.support.waiting import wait_until_blocking

QUICK_ENGINE = (sys.executable, "-m", "tests.support.quick_engine")


def doomed(crash_at: Path) -> tuple[str | Path, ...]:
    """An engine that kills itself at the step that this file names."""
    return (sys.executable, "-m", "tests.chaos.engine", "--crash-at", crash_at, "--lease", "4")


class TryAgainError(Exception):
    """The engine cannot answer now: a client asks again after the time in the answer."""


@dataclass
class Replica:
    """One engine. It keeps its port over all its lives; on SQLite also its file, which no other engine has."""

    stack: Stack
    name: str
    port: int = field(default_factory=free_port)
    program: Sequence[str | Path] = ENGINE
    """What is run as the engine."""

    def __post_init__(self) -> None:
        self.http = httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60, verify=False)
        self.process: Process = self._start()

    def live_again(self) -> None:
        """Start it, if it does not run."""
        if self.process.returncode is not None:
            self.stack.bury(self.process)
            self.process = self._start()
            self.wait_for_tools()

    def wait_for_tools(self) -> None:
        wait_until_blocking(self._offers_tools, 60, what="tools")

    def begin(self, message: str, session_id: str | None = None, **fields: Any) -> tuple[str, str]:
        session = session_id or self.http.post("/v1/sessions").json()["sessionId"]
        answer = self.http.post(f"/v1/sessions/{session}/turns", json={"message": message, **fields})
        assert answer.status_code == 202, answer.text
        return session, answer.json()["turnId"]

    def messages(self, session_id: str) -> list[dict[str, Any]]:
        answer = self.http.get(f"/v1/sessions/{session_id}/messages")
        assert answer.status_code == 200, answer.text
        return answer.json()["messages"]

    def close(self) -> None:
        self.http.close()

    def _start(self) -> Process:
        return self.stack.run_engine(self.port, self.name, self.program)

    def _offers_tools(self) -> bool:
        servers = self.http.get("/v1/tools").json()["servers"]
        return bool(servers) and all(each["tools"] for each in servers if each["state"] == "ready")


@contextmanager
def replica(stack: Stack, name: str, program: Sequence[str | Path] = QUICK_ENGINE) -> Generator[Replica]:
    """An engine that offers its tools, and runs for as long as the block."""
    with closing(Replica(stack, name, program=program)) as engine:
        try:
            engine.wait_for_tools()
            yield engine
        finally:
            stack.bury(engine.process)


def read(
    http: httpx2.Client,
    turn_id: str,
    transcript: Transcript,
    until: Callable[[Event], bool] | None = None,
    give_up_at: float = math.inf,
) -> None:
    """Read on where the transcript ends: to such an event, to the end of this connection, or to that time.

    Raises:
        TryAgainError: the store is away, or Redis is, without which the words of another engine's turn cannot be read.
    """
    headers = {"Last-Event-ID": transcript.last_id} if transcript.last_id else {}
    with http.stream("GET", f"/v1/turns/{turn_id}/events", headers=headers) as response:
        if response.status_code == 503 and response.headers.get("Retry-After"):
            raise TryAgainError(response.read().decode())
        assert response.status_code in (200, 204), response.read()
        # A turn without events keeps its connection, with a comment every few seconds.
        lines = takewhile(lambda _: time.monotonic() < give_up_at, response.iter_lines())
        events: Iterator[Event] = events_of(lines)
        for event in events:
            transcript.take(event.id, event.name, event.data)
            if until is not None and until(event):
                return


def read_to_the_end(http: httpx2.Client, turn_id: str, transcript: Transcript, seconds: float) -> None:
    """Read on, over as many connections as it takes, to `done`. Raises TimeoutError."""
    give_up_at = time.monotonic() + seconds

    def has_ended() -> bool:
        with suppress(httpx2.TransportError, TryAgainError):
            read(http, turn_id, transcript, give_up_at=give_up_at)
        return transcript.done is not None

    wait_until_blocking(has_ended, seconds, what=f"the end of turn {turn_id}")
