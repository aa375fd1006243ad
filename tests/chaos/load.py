"""Load: turns that ask for tool calls, begun one after the other while few enough calls are open."""

import http.client
import json
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.chaos.model_server import Order
from tests.chaos.rig import Rig
from tests.chaos.sample import open_calls
from tests.support.waiting import wait_until_blocking

POLL_SECONDS = 0.05
REQUEST_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Work:
    """Turns of `calls_per_turn` parallel calls, each of which works for so many milliseconds.

    A turn is begun while fewer than `open_calls` are open: one that waits for a lost call keeps nobody from working.
    """

    calls_per_turn: int = 10
    open_calls: int = 40
    kind: str = "both"
    shortest_ms: int = 50
    longest_ms: int = 500


class Load:
    """Begins turns until `calls` were asked for (None: until it is stopped); runs in a thread for as long as the block.

    What really was committed is in the engine's file: requests may fail while things are broken on purpose.
    """

    def __init__(self, rig: Rig, work: Work, calls: int | None = None) -> None:
        self._rig = rig
        self._work = work
        self._turns = None if calls is None else -(-calls // work.calls_per_turn)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._begun = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def begun(self) -> bool:
        """Whether every turn was begun that was wanted."""
        return not self._thread.is_alive()

    def wait(self, seconds: float) -> None:
        """Go on for so long, or until everything was begun."""
        self._thread.join(seconds)

    def finish(self, seconds: float) -> bool:
        """Begin no more turns, and wait for the end of those that run. Whether they ended in time."""
        self._stop.set()
        self._thread.join()
        try:
            wait_until_blocking(lambda: running_turns(self._rig.database) == 0, seconds)
        except TimeoutError:
            return False
        return True

    def _run(self) -> None:
        while not self._stop.is_set() and (self._turns is None or self._begun < self._turns):
            if len(open_calls(self._rig.database)) < self._work.open_calls and self._begin():
                self._begun += 1
            self._stop.wait(POLL_SECONDS)

    def _begin(self) -> bool:
        work = self._work
        tag = f"{time.monotonic_ns():x}"
        order = Order(tag, work.calls_per_turn, work.kind, work.shortest_ms, work.longest_ms)
        connection = http.client.HTTPConnection("127.0.0.1", self._rig.engine_port, timeout=REQUEST_SECONDS)
        try:
            # The turn goes on without us: its events are not read.
            body = json.dumps({"message": str(order)})
            connection.request("POST", "/v1/chat", body, {"Content-Type": "application/json"})
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def running_turns(database: Path) -> int:
    """How many turns have not ended."""
    with closing(sqlite3.connect(database, timeout=10)) as file:
        [(count,)] = file.execute("SELECT count(*) FROM turns WHERE status = 'running'")
    return count
