"""A project of docker-compose.yml, built and run as a stranger would, under a name and a port of its own."""

import http.client
import json
import os
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from tests.support.processes import ROOT
from tests.support.stack import events_of as events_in
from tests.support.waiting import wait_until_blocking

KEY = "a-key-for-tests-only"
COMMAND_SECONDS = 900.0
"""`make upgrade` replaces one container after the other, each of which may take minutes on a busy machine."""
Event = tuple[str, dict[str, Any]]


WITHOUT_EXPORTERS = [
    f"--scale={name}=0" for name in ("alertmanager", "alerts", "redis-exporter", "postgres-exporter", "disk-exporter")
]
UNUSED_IMAGES = dict.fromkeys(
    ("ALERTMANAGER_IMAGE", "REDIS_EXPORTER_IMAGE", "POSTGRES_EXPORTER_IMAGE", "NODE_EXPORTER_IMAGE"),
    "prom/prometheus:v2.53.3",
)
"""What of the profile `observe` stays away, and an image for it that is there: Compose pulls those of all services.
`test_notifications.py` runs these programs without containers."""


@dataclass(frozen=True)
class Stack:
    """One compose project. Neither this machine's `.env` nor its settings reach it."""

    project: str
    port: int
    env: dict[str, str] = field(default_factory=lambda: {"API_KEYS": f"tester:{KEY}", "ACCEPT_FIRST_LISTINGS": "true"})
    profiles: tuple[str, ...] = ()
    folder: Path = ROOT
    """Of its docker-compose.yml."""

    @property
    def options(self) -> list[str]:
        profiles = [f"--profile={name}" for name in self.profiles]
        return ["--env-file", os.devnull, "--project-name", self.project, *profiles]

    @property
    def variables(self) -> dict[str, str]:
        own = {name: os.environ[name] for name in os.environ if name in ("PATH", "HOME") or name.startswith("DOCKER_")}
        return own | {"PORT": str(self.port)} | self.env

    def compose(self, *args: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        return self._run(["docker", "compose", *self.options, *args], self.folder, {}, check=check)

    def make(self, *args: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """A target of the Makefile, for this project."""
        return self._run(["make", *args], ROOT, self._named, check=check)

    def shell(self, line: str) -> "subprocess.CompletedProcess[str]":
        """A command line as the documents have it, for this project. Its output has its errors too."""
        own = self._named | {"COMPOSE_PROFILES": ",".join(self.profiles)}
        return self._run(["bash", "-c", f"{{ {line}; }} 2>&1"], self.folder, own, check=False)

    @property
    def _named(self) -> dict[str, str]:
        return {"COMPOSE_PROJECT_NAME": self.project, "COMPOSE_ENV_FILES": os.devnull}

    def _run(
        self, argv: list[str], folder: Path, env: dict[str, str], *, check: bool
    ) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            argv, cwd=folder, env=self.variables | env, capture_output=True, text=True, timeout=COMMAND_SECONDS,
            check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{argv}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
        return done

    @contextmanager
    def running(self, *options: str, logs: TextIO | None = None) -> Generator[None]:
        """What it was made of goes with it: containers, volumes and images. Its logs are printed, or are in `logs`."""
        try:
            self.compose("up", "--build", "--detach", "--wait", *options)
            wait_until_blocking(lambda: set(self.servers().values()) == {"ready"}, 180, what="tools")
            yield
        finally:
            print(self.compose("logs", "--no-color", "--tail", "200", check=False).stdout, file=logs)
            self.compose("--profile=*", "down", "--volumes", "--rmi", "local", "--timeout", "5", check=False)

    def config(self) -> dict[str, Any]:
        return json.loads(self.compose("config", "--format", "json").stdout)

    def containers(self, *services: str) -> list[dict[str, Any]]:
        ids = self.compose("ps", "--all", "--quiet", *services).stdout.split()
        done = subprocess.run(["docker", "inspect", *ids], capture_output=True, check=True, timeout=60)
        return json.loads(done.stdout)

    def names(self, service: str) -> list[str]:
        return sorted(container["Name"].lstrip("/") for container in self.containers(service))

    def fetch(self, container: str, url: str) -> str:
        """What a container is answered by an HTTP server beside it."""
        get = f"import urllib.request as r; print(r.urlopen({url!r}, timeout=10).read().decode())"
        return self.python(container, get)

    def python(self, container: str, program: str) -> str:
        argv = ["docker", "exec", container, "python", "-c", program]
        return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout

    def rows(self, query: str) -> list[str]:
        """The rows of a query to PostgreSQL, with | between their columns."""
        psql = ["psql", "--username=callstream", "--tuples-only", "--no-align", f"--command={query}"]
        return self.compose("exec", "--no-TTY", "postgres", *psql).stdout.splitlines()

    def request(
        self, path: str, body: dict[str, Any] | None = None, *, key: str | None = KEY, **headers: str
    ) -> urllib.request.Request:
        return urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=json.dumps(body).encode() if body is not None else None,
            headers={"content-type": "application/json"}
            | ({"authorization": f"Bearer {key}"} if key else {})
            | {name.replace("_", "-"): value for name, value in headers.items() if value},
        )

    def ask(self, path: str, body: dict[str, Any] | None = None, *, key: str | None = KEY) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.request(path, body, key=key), timeout=60) as response:  # noqa: S310
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def servers(self) -> dict[str, str]:
        status, tools = self.ask("/v1/tools")
        return {server["server"]: server["state"] for server in json.loads(tools)["servers"]} if status == 200 else {}

    def chat(self, message: str, *, key: str | None = KEY) -> list[Event]:
        status, text = self.ask("/v1/chat", {"message": message}, key=key)
        assert status == 200, text
        return events_of(text)

    def chat_through_failures(self, message: str, *, key: str | None = KEY) -> list[Event]:
        """The events of one turn for a client that reconnects, as the chat page does, until the turn is done."""
        seen: list[Event] = []
        turn, last = "", ""
        while not seen or seen[-1][0] != "done":
            if turn:
                request = self.request(f"/v1/turns/{turn}/events", key=key, last_event_id=last)
            else:
                request = self.request("/v1/chat", {"message": message}, key=key)
            try:
                with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
                    turn = response.headers["x-turn-id"] or turn
                    for last, event in events_with_ids(line.decode().rstrip("\n") for line in response):  # noqa: B007
                        seen.append(event)
            except urllib.error.HTTPError as error:
                if not turn or error.code not in {502, 503, 504}:
                    raise  # without a turn: as below
                threading.Event().wait(float(error.headers["Retry-After"] or 0.5))
            except (http.client.HTTPException, OSError):
                if not turn:  # the message may have been accepted: a repetition would be a second turn
                    raise
        return seen


def events_of(text: str) -> list[Event]:
    return [event for _, event in events_with_ids(iter(text.split("\n")))]


def events_with_ids(lines: Iterator[str]) -> Iterator[tuple[str, Event]]:
    """The id of each event, its type and its data."""
    return ((event.id, (event.name, event.data)) for event in events_in(lines))
