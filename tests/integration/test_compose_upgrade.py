"""`make upgrade` in Compose, under load, from released commits to this one: no call is lost."""

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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from deploy.local.ports import free_port
from tests.support.compose import KEY, Stack, events_of
from tests.support.processes import ROOT
from tests.support.servers import docker_missing

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(docker_missing() is not None, reason=str(docker_missing())),
]

COMMITS = ("987949f", "119e7254")
CLIENTS = 8
REFUSED_SECONDS = 2.0
BUSY = (502, 503, 504)


@dataclass
class Load:
    """Clients that ask for a tool call again and again, and connect again until each turn has ended."""

    stack: Stack
    requests: Counter[str] = field(default_factory=Counter[str])
    refused: list[float] = field(default_factory=list[float])
    """For how many seconds in a row connections were refused."""
    lost: list[str] = field(default_factory=list[str])
    ended: threading.Event = field(default_factory=threading.Event)
    turns: int = 0

    def run(self, number: int) -> None:
        """One client, until `ended` is set."""
        while not self.ended.is_set():
            message = f"Run a slow job for 1 second, with token {number}-{uuid.uuid4().hex}"
            session, _ = self._ask("/v1/sessions", {}, "")
            turn, _ = self._ask(f"/v1/sessions/{json.loads(session)['sessionId']}/turns", {"message": message}, "")
            turn_id, last, steps, reason = json.loads(turn)["turnId"], "", list[str](), ""
            while not reason:
                text, ids = self._ask(f"/v1/turns/{turn_id}/events", None, last)
                last = ids or last
                for kind, data in events_of(text):
                    if kind == "control" and data["type"] == "tool":
                        steps.append(data["status"])
                    reason = data["reason"] if kind == "done" else reason
            self.turns += 1
            if reason != "stop" or steps[-1:] != ["succeeded"]:
                self.lost.append(f"{turn_id}: {steps[-3:]}, {reason}")

    def _ask(self, path: str, body: dict[str, str] | None, last: str) -> tuple[str, str]:
        """The text of an answer, repeated while it is refused, and the last id of an event in it."""
        began = 0.0
        while True:
            text = ""
            try:
                request = self.stack.request(path, body, last_event_id=last)
                with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
                    if began:
                        self.refused.append(round(time.monotonic() - began, 2))
                        began = 0.0
                    for line in response:
                        text += line.decode()
                self.requests["ok"] += 1
            except urllib.error.HTTPError as error:
                self.requests[f"{error.code}{'' if error.headers.get('retry-after') else ' without Retry-After'}"] += 1
                if error.code not in BUSY:
                    raise
                self.ended.wait(0.2)
                continue
            except (urllib.error.URLError, http.client.RemoteDisconnected, ConnectionResetError):
                # Docker accepts connections for a container that does not listen, and closes them.
                if text:
                    return self._known(text, last)
                began = began or time.monotonic()
                self.requests["refused"] += 1
                self.ended.wait(0.1)
                continue
            except (http.client.HTTPException, OSError):
                self.requests["cut"] += 1
                if body is not None:
                    continue
            return self._known(text, last)

    @staticmethod
    def _known(text: str, last: str) -> tuple[str, str]:
        """What has arrived of an answer, with the last id of an event in it."""
        return text, ([last] + [line[4:] for line in text.splitlines() if line.startswith("id: ")])[-1]


def release(commit: str, folder: Path) -> Path:
    """The files of a commit."""
    done = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"the history of this clone does not have {commit}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize("commit", COMMITS)
def test_an_upgrade_under_load_loses_no_call_and_refuses_hardly_a_request(commit: str, tmp_path: Path) -> None:
    env = {"API_KEYS": f"tester:{KEY}", "POSTGRES_PASSWORD": uuid.uuid4().hex, "ACCEPT_FIRST_LISTINGS": "true"}
    old = Stack(f"callstream-test-{uuid.uuid4().hex[:8]}", free_port(), env, ("scale",), release(commit, tmp_path))
    with old.running("--scale", "engine=2", "--scale", "worker=2"), ThreadPoolExecutor(CLIENTS) as threads:
        load = Load(replace(old, folder=ROOT))
        clients = [threads.submit(load.run, number) for number in range(CLIENTS)]
        try:
            command = [sys.executable, "-m", "deploy.upgrade", "--", *load.stack.options]
            done = subprocess.run(
                command, cwd=ROOT, env=load.stack.variables, capture_output=True, text=True, timeout=900, check=False
            )
            load.ended.wait(5)
        finally:
            load.ended.set()
        for client in clients:
            client.result(timeout=100)
        print(done.stdout, done.stderr[-2000:], load.turns, load.requests, load.refused)

        assert done.returncode == 0
        replaced = [line.split()[1].split("-")[-2] for line in done.stdout.splitlines() if f" {old.project}-" in line]
        assert replaced == ["worker", "worker", "engine", "engine"]
        assert load.lost == []
        assert load.turns > CLIENTS
        assert load.requests["502"] + load.requests["503 without Retry-After"] == 0
        assert load.requests["503"] <= sum(load.requests.values()) / 100
        assert max(load.refused, default=0) <= REFUSED_SECONDS
