"""Disks fill up to their last byte: the one of the engine's database, and the one of Redis' append-only file.

The file systems are real. Under SQLite nothing is accepted any more, and what is under way loses nothing that was
committed. Under Redis it is an outage: text goes on, calls wait, results in hand are kept until they can be delivered.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import ResponseError

from plugins_mcp.leases import LeaseTimes
from tests.chaos.parts import Asked, Part, merged, timed
from tests.chaos.report import Report, Size
from tests.chaos.small_disk import SmallDisk, mounting, small_disk
from tests.support.processes import ROOT
from tests.support.quick_worker import QUICK
from tests.support.servers import LocalServer, embedded_binary
from tests.support.stack import Stack
from tests.support.waiting import wait_until_blocking

HEALED_SECONDS = 10.0
NOTICED_SECONDS = 8.0
TEXT_SECONDS = 3.0
STOPPED_SECONDS = 4.0
KEPT = 6
"""Calls that a worker has in its hands when the disk of Redis fills up."""


def run(size: Size, folder: Path) -> Report:
    """The same in a process that may mount disks."""
    argv = mounting([sys.executable, "-m", __name__, size, str(folder)])
    done = subprocess.run(argv, stdout=subprocess.PIPE, cwd=ROOT, check=False)
    output, _, report = done.stdout.decode().rpartition(REPORT)
    print(output)
    if done.returncode:
        raise RuntimeError(f"{argv} ended with {done.returncode}")
    return Report(**json.loads(report))


REPORT = "\nreport: "


def main(size: Size, folder: Path) -> None:
    """All parts; prints what the parts wrote, and then the report."""
    times = QUICK if size is Size.SHORT else LeaseTimes()
    servers = {"valkey": embedded_binary()}
    if size is Size.FULL and (other := shutil.which("redis-server")):
        servers["redis-server"] = Path(other)
    parts: list[Part] = []
    for kind, binary in servers.items():
        with _running(folder / kind, binary, quick=size is Size.SHORT) as disks, ThreadPoolExecutor(20) as pool:
            stack, database_disk, redis_disk = disks
            parts += [
                DatabaseFull(f"SQLite beside {kind}", stack, pool, database_disk),
                RedisFull(f"{kind}, for a moment", stack, pool, redis_disk, times, 0.6 * times.give_up),
                RedisFull(f"{kind}, longer than a lease", stack, pool, redis_disk, times, 1.4 * times.lease),
            ]
            for part in parts[-3:]:
                part.run()
    notes = ("With appendfsync always, Redis 7.0 and Valkey 9 end themselves when the disk is full.",)
    report = merged("disk_full", parts, notes)
    print(REPORT + json.dumps(asdict(report)))


@contextmanager
def _running(folder: Path, binary: Path, *, quick: bool) -> Generator[tuple[Stack, SmallDisk, SmallDisk]]:
    folder.mkdir()
    with small_disk(folder / "database", 16) as database_disk, small_disk(folder / "redis") as redis_disk:
        stack = Stack(folder, quick=quick, engine_env={"OUTBOX_PATH": str(database_disk.path / "engine.sqlite3")})
        stack.redis = LocalServer(binary, redis_disk.path)
        try:
            stack.start(workers=2)
            yield stack, database_disk, redis_disk
        finally:
            stack.close()


class DatabaseFull(Part):
    def __init__(self, name: str, stack: Stack, pool: ThreadPoolExecutor, disk: SmallDisk) -> None:
        super().__init__(name, stack, pool)
        self._disk = disk

    def run(self) -> None:
        running = self.count("running", 2)
        running.wait_for_effect()
        before = self._sessions()
        self._disk.fill()
        # The file has a little room inside: what still fits is accepted, and then it is kept.
        accepted, refusal = 0, self._post()
        while refusal.status_code == 200:
            accepted, refusal = accepted + 1, self._post()
        self.figures["questions accepted before it is noticed"] = accepted
        self.expect(
            (refusal.status_code, refusal.headers["content-type"]) == (503, "application/problem+json")
            and refusal.headers.get("retry-after", "").isdigit(),
            f"a question is answered {refusal.status_code} {refusal.headers}",
        )
        self.expect(self.stack.http.get("/readyz").status_code == 503, "the engine says that it is ready")
        self.expect(self._sessions() == before + accepted, "a question that was refused has left a session")
        self.figures["the turn that was under way ends as"] = running.end().reason
        self._disk.free()
        self._heal(running)

    def _heal(self, running: Asked) -> None:
        turn = running.events[0][1].data
        healed = timed(lambda: wait_until_blocking(lambda: self._post().status_code == 200))
        self.within("questions are accepted again after", healed, HEALED_SECONDS)
        path = f"/v1/turns/{turn['turnId']}"
        ended = timed(lambda: wait_until_blocking(lambda: self.stack.http.get(path).json()["status"] != "running"))
        self.within("the turn's end is written after", ended, HEALED_SECONDS)
        session = self.stack.http.get(f"/v1/sessions/{turn['sessionId']}/messages").json()
        calls = [call["status"] for message in session["messages"] for call in message["toolCalls"]]
        self.figures["its call is"] = ", ".join(calls)
        self.expect(calls == ["succeeded"], f"a call that had succeeded is remembered as {calls}")
        self.expect(running.effects == 1, f"its call has {running.effects} effects")
        again = self.stack.ask("What is 17 * 23?", turn["sessionId"])
        self.expect("391" in again.text, f"the session cannot go on: {again.text!r}")

    def _post(self) -> Any:
        return self.stack.http.post("/v1/chat", json={"message": "Hello"})

    def _sessions(self) -> int:
        return len(self.stack.http.get("/v1/sessions").json()["sessions"])


class RedisFull(Part):
    """The disk of Redis is full for so many seconds."""

    def __init__(
        self, name: str, stack: Stack, pool: ThreadPoolExecutor, disk: SmallDisk, times: LeaseTimes, seconds: float
    ) -> None:
        super().__init__(name, stack, pool)
        self._disk = disk
        self._times = times
        self._seconds = seconds

    def run(self) -> None:
        brief = self._seconds < self._times.give_up
        # Either their leases outlive the outage, or their results are in hand before the leases would have run out.
        seconds = self._seconds + 1 if brief else self._times.give_up / 3
        kept = [self.count(f"kept-{n}", seconds + n / 20) for n in range(KEPT)]
        for asked in kept:
            asked.wait_for_effect()
        taken_over = self._taken_over()
        self._disk.fill()
        began = time.monotonic()
        with Redis.from_url(self.stack.redis.url) as redis:
            wait_until_blocking(lambda: _refuses_writes(redis), 10, what="the full disk")
        waiting = self.count("waiting")
        if not brief:
            self._check_outage()
        time.sleep(max(0.0, began + self._seconds - time.monotonic()))
        self._disk.free()
        self.check_healed(HEALED_SECONDS)
        for asked in kept:
            self.check_call("before", asked)
        self.check_call("meanwhile", waiting)
        self.figures["entries taken over"] = self._taken_over() - taken_over
        self.expect(self._taken_over() == taken_over, "a call was taken over from a worker that lives")

    def _check_outage(self) -> None:
        chat = self.ask("Hello, who are you?")
        engine = timed(lambda: wait_until_blocking(lambda: self.redis_state() != "ok"))
        self.within("the engine notices it after", engine, NOTICED_SECONDS)
        workers = timed(lambda: wait_until_blocking(lambda: not self.ready_workers()))
        self.within("the workers notice it after", workers, NOTICED_SECONDS)
        self.within("a new turn without tools takes", chat.seconds, TEXT_SECONDS)
        self.within("a stop takes", self.count("stopped").stop(), STOPPED_SECONDS)

    def _taken_over(self) -> int:
        return sum(worker.output().count("tool call is delivered again") for worker in self.stack.workers.values())


def _refuses_writes(redis: "Redis") -> bool:
    try:
        redis.set("probe", "x" * 1000, ex=60)
    except ResponseError as error:
        return str(error).startswith("MISCONF")
    return False


if __name__ == "__main__":
    main(Size(sys.argv[1]), Path(sys.argv[2]))
