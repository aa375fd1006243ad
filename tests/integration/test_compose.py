"""The stack of docker-compose.yml, built and run as a stranger would, under a name and a port of its own."""

import json
import os
import subprocess
import urllib.error
import urllib.request
import uuid
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import pytest

from deploy.local.ports import free_port
from dialog_engine.config import Settings as EngineSettings
from plugins_mcp.config import Settings as WorkerSettings
from tests.support.processes import ROOT
from tests.support.servers import docker_missing
from tests.support.waiting import wait_until_blocking

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(300),
    pytest.mark.skipif(docker_missing() is not None, reason=str(docker_missing())),
]

KEY = "a-key-for-tests-only"
OURS = ("engine", "worker", "demo-model", "demo-server")


@dataclass(frozen=True)
class Stack:
    """One compose project. Neither this machine's `.env` nor its settings reach it."""

    project: str
    port: int
    api_keys: str | None = f"tester:{KEY}"

    def compose(self, *args: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        env = {name: os.environ[name] for name in os.environ if name in ("PATH", "HOME") or name.startswith("DOCKER_")}
        env |= {"PORT": str(self.port)} | ({"API_KEYS": self.api_keys} if self.api_keys is not None else {})
        argv = ["docker", "compose", "--env-file", os.devnull, "--project-name", self.project, *args]
        done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280, check=False)
        assert not check or done.returncode == 0, f"{argv}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
        return done

    def config(self) -> dict[str, Any]:
        return json.loads(self.compose("config", "--format", "json").stdout)

    def containers(self, *services: str) -> list[dict[str, Any]]:
        ids = self.compose("ps", "--all", "--quiet", *services).stdout.split()
        done = subprocess.run(["docker", "inspect", *ids], capture_output=True, check=True, timeout=60)
        return json.loads(done.stdout)

    def ask(self, path: str, body: dict[str, Any] | None = None, *, key: str | None = KEY) -> tuple[int, str]:
        """The status and the body of one request."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=json.dumps(body).encode() if body is not None else None,
            headers={"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {}),
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def servers(self) -> dict[str, str]:
        """The MCP servers that the engine knows of, and the state of each."""
        _, tools = self.ask("/v1/tools")
        return {server["server"]: server["state"] for server in json.loads(tools)["servers"]}

    def chat(self, message: str) -> list[tuple[str, dict[str, Any]]]:
        """The events of one turn: each one's type and data."""
        status, text = self.ask("/v1/chat", {"message": message})
        assert status == 200, text
        return [event for block in text.split("\n\n") if (event := _event(block))]


def _event(block: str) -> tuple[str, dict[str, Any]] | None:
    fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
    return (fields["event"], json.loads(fields["data"])) if "event" in fields else None


@pytest.fixture(scope="module")
def stack() -> Generator[Stack]:
    """A running stack with two workers. What it was made of goes with it: containers, volumes and images."""
    stack = Stack(f"callstream-test-{uuid.uuid4().hex[:8]}", free_port())
    try:
        stack.compose("up", "--build", "--detach", "--wait", "--scale", "worker=2")
        wait_until_blocking(lambda: stack.servers() == {"demo": "ready", "time": "ready"}, 60, what="tools")
        yield stack
        print(stack.compose("logs", "--no-color", "--tail", "200", check=False).stdout)
    finally:
        stack.compose("--profile", "observe", "down", "--volumes", "--rmi", "local", "--timeout", "5", check=False)


@pytest.fixture
def file() -> Stack:
    """The compose file as it is read, with nothing running."""
    return Stack("callstream-test-config", 8000)


def test_without_keys_it_says_what_to_set() -> None:
    done = Stack("callstream-test-config", 8000, api_keys=None).compose("config", check=False)

    assert done.returncode != 0
    assert "set API_KEYS=name:key" in done.stderr


@pytest.mark.parametrize(("service", "settings"), [("engine", EngineSettings), ("worker", WorkerSettings)])
def test_every_setting_of_a_service_can_be_set(file: Stack, service: str, settings: Any) -> None:
    fields: dict[str, Any] = settings.model_fields
    names = {name.upper() for name in fields}

    assert names <= set(file.config()["services"][service]["environment"])


def test_workers_get_longer_to_stop_than_they_need_to_drain(file: Stack) -> None:
    grace: str = file.config()["services"]["worker"]["stop_grace_period"]

    assert int(grace.removesuffix("s")) > WorkerSettings.model_fields["drain_seconds"].default


def test_workers_can_be_many(file: Stack) -> None:
    worker = file.config()["services"]["worker"]

    assert not {"container_name", "ports"} & set(worker)


def test_a_question_is_answered_with_two_tool_calls(stack: Stack) -> None:
    events = stack.chat("What time is it in Tokyo and in Paris?")

    steps = [data["status"] for kind, data in events if kind == "control" and data["type"] == "tool"]
    assert steps.count("succeeded") == 2, events
    assert events[-1][0] == "done"
    assert events[-1][1]["reason"] == "stop"
    answer = [data["content"] for kind, data in events if kind == "message"][-1]
    assert "Tokyo" in answer
    assert "Paris" in answer


def test_the_demo_server_is_reached_by_its_name(stack: Stack) -> None:
    events = stack.chat("What is 17 * 23?")

    assert "391" in [data["content"] for kind, data in events if kind == "message"][-1]


def test_the_page_needs_no_key_and_everything_else_does(stack: Stack) -> None:
    assert stack.ask("/", key=None)[0] == 200
    assert stack.ask("/v1/tools", key=None)[0] == 401
    assert stack.ask("/v1/chat", {"message": "hello"}, key="not-the-key")[0] == 401


def test_the_page_says_that_the_model_is_scripted(stack: Stack) -> None:
    _, about = stack.ask("/v1/about")

    assert json.loads(about)["model"]["scripted"] is True


def test_both_workers_report(stack: Stack) -> None:
    def workers() -> int:
        _, readiness = stack.ask("/readyz", key=None)
        return json.loads(readiness)["parts"]["workers"]

    wait_until_blocking(lambda: workers() == 2, 30, what="two workers in /readyz")


def test_our_containers_run_as_nobody_on_a_file_system_they_cannot_write(stack: Stack) -> None:
    for container in stack.containers(*OURS):
        name: str = container["Name"].lstrip("/")
        probe = "import os; print(os.stat('/proc/1').st_uid, os.access('/app', os.W_OK))"
        done = subprocess.run(
            ["docker", "exec", name, "python", "-c", probe], capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stdout.split() == ["10001", "False"], name
        assert container["HostConfig"]["ReadonlyRootfs"], name
        assert container["HostConfig"]["CapDrop"] == ["ALL"], name


def test_a_conversation_outlives_its_containers(stack: Stack) -> None:
    session: str = stack.chat("hello")[0][1]["sessionId"]

    stack.compose("up", "--detach", "--wait", "--no-build", "--force-recreate", "redis", "engine")

    _, messages = stack.ask(f"/v1/sessions/{session}/messages")
    assert [message["role"] for message in json.loads(messages)["messages"]] == ["user", "assistant"]


def test_workers_stop_in_good_order_when_asked(stack: Stack) -> None:
    stack.compose("stop", "worker")

    assert [container["State"]["ExitCode"] for container in stack.containers("worker")] == [0, 0]
