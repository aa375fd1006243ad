"""Load: turns that ask for tool calls, begun one after the other while few enough calls are open."""

import http.client
import json
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from tests.chaos.cluster import Cluster
from tests.chaos.model import Order, calls_of
from tests.chaos.sample import open_calls
from tests.support.store import AWAY, Store
from tests.support.waiting import comes

POLL_SECONDS = 0.05
REQUEST_SECONDS = 20
"""Longer than an engine waits for the store before it refuses."""
NOT_KNOWN = "not known"
"""What a refusal says when the engine could not find out whether its commit was carried out."""


@dataclass(frozen=True, slots=True)
class Work:
    """Turns of `calls_per_turn` parallel calls, each of which works for so many milliseconds.

    A turn is begun while fewer than `open_calls` are open: one that waits for a lost call stops no other.
    """

    calls_per_turn: int = 10
    open_calls: int = 40
    kind: str = "both"
    shortest_ms: int = 50
    longest_ms: int = 500


class Load:
    """Begins turns until `calls` were asked for (None: until it is stopped); runs in a thread for as long as the block.

    Several engines are asked in turn. What really was committed is in the store: requests may fail while things are
    broken on purpose. `accepted` are the turns that an engine has promised to answer: by id, the port of that engine.
    `refused` are the tags of those of which one has said that they were not begun.
    """

    def __init__(self, cluster: Cluster, work: Work, calls: int | None = None) -> None:
        self._cluster = cluster
        self._work = work
        self._turns = None if calls is None else -(-calls // work.calls_per_turn)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._begun = 0
        self._asked = 0
        self.accepted: dict[str, int] = {}
        self.refused: list[str] = []

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
        return comes(lambda: running_turns(self._cluster.store) == 0, seconds)

    def _run(self) -> None:
        while not self._stop.is_set() and (self._turns is None or self._begun < self._turns):
            if self._has_room() and self.begin():
                self._begun += 1
            self._stop.wait(POLL_SECONDS)

    def _has_room(self) -> bool:
        with suppress(*AWAY):
            return len(open_calls(self._cluster.store)) < self._work.open_calls
        return True  # users ask all the same while the store is away

    def begin(self, port: int | None = None) -> bool:
        """Begin a turn at this engine, or at the next one. Whether it was accepted. From any thread."""
        work = self._work
        tag = f"{time.monotonic_ns():x}"
        order = Order(tag, [calls_of(tag, work.calls_per_turn, work.kind, work.shortest_ms, work.longest_ms)])
        if port is None:
            ports = [*self._cluster.running_engines]
            port = ports[self._asked % len(ports)]
            self._asked += 1
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_SECONDS)
        try:
            # The turn goes on without us: its events are not read.
            body = json.dumps({"message": str(order)})
            connection.request("POST", "/v1/chat", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status == 200:
                self.accepted[answer.headers["x-turn-id"]] = port
            elif answer.headers.get("retry-after") and NOT_KNOWN not in answer.read().decode():
                self.refused.append(tag)
            return answer.status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def running_turns(store: Store) -> int:
    """How many turns have not ended. Raises `AWAY`."""
    return store.count("turns WHERE status = 'running'")
