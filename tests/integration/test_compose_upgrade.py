"""`make upgrade` in Compose, as docs/operations.md says it, under load: no call is lost, on the way there and back."""

import http.client
import json
import os
import subprocess
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deploy.local.ports import free_port
from tests.marks import exhaustive
from tests.support.compose import KEY, Event, Stack, events_with_ids
from tests.support.documents import Shell, blocks, clone
from tests.support.processes import ROOT
from tests.support.servers import docker_missing
from tests.support.waiting import wait_until_blocking

pytestmark = [
    pytest.mark.docker,
    exhaustive("needs Docker, for minutes"),
    pytest.mark.timeout(1500),
    pytest.mark.skipif(docker_missing() is not None, reason=str(docker_missing())),
]

FIRST, EARLIER = "987949f", "119e7254"
"""The first version, and a later commit, from which there is a way back."""
DOCUMENTED = {
    each.setup.split("::")[1]: each.text
    for each in blocks()
    if each.setup.startswith("integration/test_compose_upgrade")
}
"""The commands of docs/operations.md, by the test that runs them."""
ORDER = ["redis", "worker", "worker", "engine", "engine", "proxy"]
"""The services whose containers are replaced, those of `redis` not on the way back."""
CLIENTS = 12
REFUSED_SECONDS = 2.0
COUNT = "Increment the counter, answering after {seconds} seconds, with token {token}"
"""A call that may run only once. Half of them take longer than an engine that stops lets its turns run."""
SECONDS = (1, 12)


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
        while not self.over.is_set():
            turn, last, steps, end = "", "", list[str](), ""
            while not end:
                with self._open(turn, last, SECONDS[client % 2]) as response:
                    turn = response.headers["x-turn-id"] or turn
                    for event_id, (kind, data) in self._events(response):
                        last = event_id or last
                        if kind == "control" and data["type"] == "tool":
                            steps.append(data["status"])
                        if kind == "done":
                            end = f"{data['reason']}, {steps[-1:]}"
            self.ends[end] += 1
            if end != "stop, ['succeeded']":
                self.wrong.append(f"{turn}: {steps} {end}")

    @contextmanager
    def _open(self, turn: str, last: str, seconds: int) -> Generator[http.client.HTTPResponse]:
        """The answer to a request, which is repeated while it is not served: with another token, because one whose
        connection was cut may have been accepted."""
        began = 0.0
        while True:
            if turn:
                request = self.stack.request(f"/v1/turns/{turn}/events", last_event_id=last)
            else:
                message = COUNT.format(seconds=seconds, token=uuid.uuid4().hex)
                request = self.stack.request("/v1/chat", {"message": message})
            try:
                with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
                    self.answers["ok"] += 1
                    if began:
                        self.refused.append(round(time.monotonic() - began, 2))
                    yield response
                    return
            except urllib.error.HTTPError as error:
                if error.code < 500:
                    raise
                self.answers[f"{error.code}{'' if error.headers.get('retry-after') else ' without Retry-After'}"] += 1
            except OSError:
                # Docker accepts connections for a container that does not listen, and closes them.
                self.answers["refused"] += 1
                began = began or time.monotonic()
            threading.Event().wait(0.1)

    def _events(self, response: http.client.HTTPResponse) -> Generator[tuple[str, Event]]:
        """The events that arrived whole: the id of each, its type and data. Ends when the stream ends or is cut."""
        try:
            yield from events_with_ids(line.decode().rstrip("\n") for line in response)
        except (http.client.HTTPException, OSError):
            self.answers["cut"] += 1


@dataclass
class Installation:
    """A clone of the repository in which an earlier version was checked out and started."""

    stack: Stack
    shell: Shell

    def run(self, test: str) -> list[str]:
        """Run the commands of that test; returns the services of the containers that were replaced, in order."""
        output = self.shell.run(DOCUMENTED[test])
        return [line.split("-")[-2] for line in output.splitlines() if line.endswith(" is replaced")]

    def turns(self, column: str) -> Counter[str]:
        """The turns in the store, by a column."""
        return Counter(self.stack.rows(f"SELECT {column} FROM turns"))  # noqa: S608

    @contextmanager
    def without_loss(self) -> Generator[None]:
        """Clients ask meanwhile; what was promised to them is checked at the end."""
        load = Load(self.stack)
        with ThreadPoolExecutor(CLIENTS) as threads:
            clients = [threads.submit(load.run, number) for number in range(CLIENTS)]
            try:
                yield
                before = load.ends.total()
                wait_until_blocking(lambda: load.ends.total() >= before + CLIENTS, 60, what="turns after it")
            finally:
                load.over.set()
            for client in clients:
                client.result(timeout=100)
        log = self.stack.compose("exec", "--no-TTY", "demo-server", "cat", "/tmp/demo-effects.log").stdout
        ran = Counter(json.loads(line)["token"] for line in log.splitlines())
        print(load.ends, load.answers, load.refused, "by epoch", self.turns("epoch"))
        assert load.wrong == []
        assert set(ran.values()) == {1}
        # Also of requests whose answer was cut before it named its turn.
        wait_until_blocking(lambda: set(self.turns("reason")) == {"stop"}, 60, what="the end of all turns")
        assert {answer for answer in load.answers if answer.startswith("5")} <= {"503"}
        assert load.answers["503"] <= load.answers.total() / 100
        assert max(load.refused, default=0) <= REFUSED_SECONDS


@contextmanager
def installed(commit: str, folder: Path, **settings: str) -> Generator[Installation]:
    """Two engines on a PostgreSQL and two workers of a commit. The tag `now` is what is here now."""
    git = ("git", "-c", "user.name=test", "-c", "user.email=test@localhost")
    if subprocess.run([*git, "cat-file", "-e", commit], cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip(f"the history of this clone does not have {commit}")
    now = clone(folder / "now")
    for command in (
        ["clone", "--quiet", "--no-checkout", str(ROOT), "callstream"],
        [f"--git-dir={folder}/callstream/.git", f"--work-tree={now}", "add", "--all"],
        ["-C", "callstream", "commit", "--quiet", "--allow-empty", "--message=now"],
        ["-C", "callstream", "tag", "now"],
        ["-C", "callstream", "checkout", "--quiet", "--force", commit],
    ):
        subprocess.run([*git, *command], cwd=folder, check=True)
    files = folder / "callstream"
    settings |= {"API_KEYS": f"tester:{KEY}", "POSTGRES_PASSWORD": uuid.uuid4().hex, "ACCEPT_FIRST_LISTINGS": "true"}
    (files / ".env").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    stack = Stack(f"callstream-test-{uuid.uuid4().hex[:8]}", free_port(), settings, ("scale",), files)
    env = {name: os.environ[name] for name in os.environ if name in ("PATH", "HOME") or name.startswith("DOCKER_")}
    env |= {"COMPOSE_PROJECT_NAME": stack.project, "PORT": str(stack.port)}
    with stack.running("--scale", "engine=2", "--scale", "worker=2"):
        yield Installation(stack, Shell(files, env, variables={"VERSION": "now", "EARLIER": EARLIER}))


def test_an_upgrade_from_the_first_version_loses_no_call(tmp_path: Path) -> None:
    with installed(FIRST, tmp_path) as installation, installation.without_loss():
        replaced = installation.run("test_an_upgrade_from_the_first_version_loses_no_call")
    assert replaced == ORDER


def test_the_way_back_to_the_version_before_loses_no_call(tmp_path: Path) -> None:
    # Without `approval`: a worker of that commit that has just started refuses calls for which nobody has to be asked.
    servers = json.loads((ROOT / "examples" / "mcp.json").read_text())
    del servers["mcpServers"]["demo"]["callstream"]["approval"]
    (tmp_path / "mcp.json").write_text(json.dumps(servers))
    with installed(EARLIER, tmp_path, MCP_CONFIG=str(tmp_path / "mcp.json")) as installation:
        with installation.without_loss():
            replaced = installation.run("test_an_upgrade_from_the_first_version_loses_no_call")
        assert replaced == ORDER
        assert installation.shell.run("make upgrade").splitlines()[-1:] == ["upgrade: everything is up to date"]
        with installation.without_loss():
            replaced = installation.run("test_the_way_back_to_the_version_before_loses_no_call")
        assert replaced == [*reversed(ORDER[1:])]
