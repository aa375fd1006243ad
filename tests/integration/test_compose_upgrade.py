"""`make upgrade` in Compose, under load, from earlier commits to this one and back: no call is lost."""

import http.client
import io
import json
import subprocess
import sys
import tarfile
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from deploy.local.ports import free_port
from tests.support.compose import KEY, Stack
from tests.support.processes import ROOT
from tests.support.servers import docker_missing

pytestmark = [
    pytest.mark.docker,
    pytest.mark.exhaustive,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(docker_missing() is not None, reason=str(docker_missing())),
]

CLIENTS = 8
REFUSED_SECONDS = 2.0
COUNT = "Increment the counter, answering after {seconds} seconds, with token {token}"
"""A call that may run only once. Half of them take longer than an engine that stops lets its turns run."""
SECONDS = (1, 8)


@dataclass
class Load:
    """Clients that ask for a call again and again. Each connects again until its turn has ended."""

    stack: Stack
    answers: Counter[str] = field(default_factory=Counter[str])
    refused: list[float] = field(default_factory=list[float])
    """For how many seconds each request that was refused at first had no connection."""
    ends: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])
    over: threading.Event = field(default_factory=threading.Event)

    def run(self, client: int) -> None:
        """One client, until `over` is set."""
        number = 0
        while not self.over.is_set():
            number += 1
            message = COUNT.format(seconds=SECONDS[client % 2], token=f"c{client}n{number}")
            turn, last, steps, end = "", "", list[str](), ""
            while not end:
                with self._open(turn, last, message) as response:
                    turn = response.headers["x-turn-id"] or turn
                    for last, (kind, data) in self._events(response, last):
                        if kind == "control" and data["type"] == "tool":
                            steps.append(data["status"])
                        if kind == "done":
                            end = f"{data['reason']}, {steps[-1:]}"
            self.ends[end] += 1
            if end != "stop, ['succeeded']":
                self.wrong.append(f"{turn}: {steps} {end}")

    @contextmanager
    def _open(self, turn: str, last: str, message: str) -> Generator[http.client.HTTPResponse]:
        """The answer to a request, which is repeated while it is not served."""
        began = 0.0
        while True:
            if turn:
                request = self.stack.request(f"/v1/turns/{turn}/events", last_event_id=last)
            else:
                request = self.stack.request("/v1/chat", {"message": message})
            try:
                with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
                    self.answers["ok"] += 1
                    if began:
                        self.refused.append(round(time.monotonic() - began, 2))
                    yield response
                    return
            except urllib.error.HTTPError as error:
                self.answers[f"{error.code}{'' if error.headers.get('retry-after') else ' without Retry-After'}"] += 1
            except OSError:
                # Docker accepts connections for a container that does not listen, and closes them.
                self.answers["refused"] += 1
                began = began or time.monotonic()
            time.sleep(0.1)

    def _events(self, response: http.client.HTTPResponse, last: str) -> Generator[tuple[str, tuple[str, Any]]]:
        """The whole events of a stream, each with its id, until it ends or is cut."""
        fields: dict[str, str] = {}
        try:
            for line in response:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name:
                    fields[name] = value
                elif "event" in fields:
                    last = fields.get("id", last)
                    yield last, (fields["event"], json.loads(fields["data"]))
                    fields = {}
        except (http.client.HTTPException, OSError):
            self.answers["cut"] += 1


def release(commit: str, folder: Path) -> Path:
    """The files of a commit."""
    done = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"the history of this clone does not have {commit}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


def rows(stack: Stack, query: str) -> list[str]:
    psql = ["psql", "--username=callstream", "--tuples-only", "--no-align", f"--command={query}"]
    return stack.compose("exec", "--no-TTY", "postgres", *psql).stdout.splitlines()


def run_upgrade(stack: Stack, *options: str) -> list[str]:
    """What the tool prints, which runs for this stack."""
    command = [sys.executable, "-m", "deploy.upgrade", "--folder", str(stack.folder), *options, "--", *stack.options]
    done = subprocess.run(
        command, cwd=ROOT, env=stack.variables, capture_output=True, text=True, timeout=900, check=False
    )
    print(done.stdout, done.stderr[-3000:])
    assert done.returncode == 0
    return [line.split("-")[-2] for line in done.stdout.splitlines() if f" {stack.project}-" in line]


@contextmanager
def without_loss(stack: Stack) -> Generator[None]:
    """Under load; what was promised is checked at the end."""
    load = Load(stack)
    with ThreadPoolExecutor(CLIENTS) as threads:
        clients = [threads.submit(load.run, number) for number in range(CLIENTS)]
        try:
            yield
            time.sleep(5)
        finally:
            load.over.set()
        for client in clients:
            client.result(timeout=100)
    print(load.ends, load.answers, load.refused)
    log = stack.compose("exec", "--no-TTY", "demo-server", "cat", "/tmp/demo-effects.log").stdout
    ran = Counter(json.loads(line).get("token") for line in log.splitlines())
    outcomes = Counter(rows(stack, "SELECT status || ' ' || reason FROM turns"))
    print(outcomes, len(ran), Counter(ran.values()))
    assert load.wrong == []
    assert {name for name in load.answers if name.startswith("5")} <= {"503"}
    assert load.answers["503"] <= sum(load.answers.values()) / 100
    assert max(load.refused, default=0) <= REFUSED_SECONDS
