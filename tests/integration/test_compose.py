"""The stack of docker-compose.yml as it is without a profile: one engine on a SQLite file."""

import json
import re
import subprocess
import uuid
from collections.abc import Generator
from typing import Any

import pytest

from callstream_runtime.settings_sources import fields_of
from deploy.local.ports import free_port
from dialog_engine.settings import Settings as EngineSettings
from plugins_mcp.config import Settings as WorkerSettings
from tests.marks import exhaustive, promise
from tests.support.compose import Stack
from tests.support.processes import ROOT
from tests.support.servers import docker_missing
from tests.support.waiting import wait_until_blocking

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(400),
    pytest.mark.skipif(docker_missing() is not None, reason=str(docker_missing())),
    exhaustive("needs Docker"),
]

OURS = ("engine", "worker", "proxy", "demo-model", "demo-server")


@pytest.fixture(scope="module")
def stack() -> Generator[Stack]:
    """A running stack with two workers."""
    stack = Stack(f"callstream-test-{uuid.uuid4().hex[:8]}", free_port())
    with stack.running("--scale", "worker=2"):
        yield stack


@pytest.fixture
def file() -> Stack:
    """The compose file as it is read, with nothing running."""
    return Stack("callstream-test-config", 8000)


def test_without_keys_it_says_what_to_set() -> None:
    done = Stack("callstream-test-config", 8000, env={}).compose("config", check=False)

    assert done.returncode != 0
    assert "set API_KEYS=name:key" in done.stderr


@pytest.mark.parametrize(("service", "settings"), [("engine", EngineSettings), ("worker", WorkerSettings)])
def test_every_setting_of_a_service_can_be_set(file: Stack, service: str, settings: Any) -> None:
    names = {name.upper() for name in fields_of(settings)}

    assert names <= set(file.config()["services"][service]["environment"])


def test_workers_get_longer_to_stop_than_they_need_to_drain(file: Stack) -> None:
    grace: str = file.config()["services"]["worker"]["stop_grace_period"]

    assert int(grace.removesuffix("s")) > WorkerSettings.model_fields["drain_seconds"].default


def everything(**env: str) -> dict[str, Any]:
    """The services of all profiles."""
    return Stack("callstream-test-config", 8000, env={"API_KEYS": "a:b"} | env, profiles=("*",)).config()["services"]


def test_nothing_is_published_beyond_this_machine_unless_a_setting_says_so() -> None:
    def addresses(services: dict[str, Any]) -> set[str]:
        return {port["host_ip"] for service in services.values() for port in service.get("ports", [])}

    assert addresses(everything()) == {"127.0.0.1"}
    assert addresses(everything(PUBLISH_ADDRESS="0.0.0.0")) == {"0.0.0.0"}


def test_memory_and_processes_of_every_container_are_limited() -> None:
    unlimited = {name for name, service in everything().items() if not {"mem_limit", "pids_limit"} <= service.keys()}

    assert unlimited == set()


def test_every_image_can_be_pinned_by_its_digest() -> None:
    pins = {name: f"{name.lower()}@sha256:{'0' * 64}" for name in
            ("PYTHON_IMAGE", "REDIS_IMAGE", "POSTGRES_IMAGE", "PROMETHEUS_IMAGE", "GRAFANA_IMAGE", "ALERTMANAGER_IMAGE",
             "REDIS_EXPORTER_IMAGE", "POSTGRES_EXPORTER_IMAGE", "NODE_EXPORTER_IMAGE")}  # fmt: skip
    for name, service in everything(**pins).items():
        image = service["build"]["args"]["PYTHON_IMAGE"] if "build" in service else service["image"]
        assert image in pins.values() or image.startswith("callstream-test-config-"), name  # built here


def test_the_store_is_the_file_until_a_postgresql_is_configured() -> None:
    def store(**env: str) -> str:
        return everything(**env)["engine"]["environment"]["DATABASE_URL"]

    assert store() == ""
    assert store(POSTGRES_PASSWORD="pw") == "postgresql://callstream:pw@postgres/callstream"
    assert store(POSTGRES_PASSWORD="pw", DATABASE_URL="postgresql://mine/db") == "postgresql://mine/db"


@promise("the same product runs in containers", only_in_test_all="needs Docker")
def test_a_question_is_answered_with_two_tool_calls(stack: Stack) -> None:
    events = stack.chat("What time is it in Tokyo and in Paris?")

    steps = [data["status"] for kind, data in events if kind == "control" and data["type"] == "tool"]
    assert steps.count("succeeded") == 2, events
    assert events[-1][0] == "done"
    assert events[-1][1]["reason"] == "stop"
    answer = [data["content"] for kind, data in events if kind == "message"][-1]
    assert "Tokyo" in answer
    assert "Paris" in answer


def test_the_page_needs_no_key_and_everything_else_does(stack: Stack) -> None:
    assert stack.ask("/", key=None)[0] == 200
    assert stack.ask("/v1/tools", key=None)[0] == 401
    assert stack.ask("/v1/chat", {"message": "hello"}, key="not-the-key")[0] == 401


def test_the_proxy_shows_no_metrics_and_no_details_of_the_readiness(stack: Stack) -> None:
    assert stack.ask("/metrics", key=None)[0] == 404
    assert json.loads(stack.ask("/readyz", key=None)[1]).keys() == {"status"}


def test_no_other_container_reaches_the_ports_of_operators(stack: Stack) -> None:
    """The demo server stands for an MCP server: it shares a network with engines and workers."""
    probe = """
import socket
for name, port in (("engine", 8000), ("engine", 8001), ("worker", 8081), ("engine-operations", 8001)):
    try:
        socket.create_connection((name, port), timeout=5).close()
        print("open")
    except OSError as error:
        print(type(error).__name__)
"""
    for service in ("demo-server", "proxy"):
        [container] = stack.names(service)
        said = stack.python(container, probe).split()
        assert said == ["open", "ConnectionRefusedError", "ConnectionRefusedError", "gaierror"], service


def test_our_containers_run_as_nobody_on_a_file_system_they_cannot_write(stack: Stack) -> None:
    for container in stack.containers(*OURS):
        name: str = container["Name"].lstrip("/")
        probe = "import os; print(os.stat('/proc/1').st_uid, os.access('/app', os.W_OK))"
        assert stack.python(name, probe).split() == ["10001", "False"], name
        assert container["HostConfig"]["ReadonlyRootfs"], name
        assert container["HostConfig"]["CapDrop"] == ["ALL"], name


def test_redis_lets_nobody_in_without_a_login(stack: Stack) -> None:
    probe = "import redis; redis.Redis(host='redis').ping()"
    command = ["docker", "exec", stack.names("worker")[0], "python", "-c", probe]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert "AuthenticationError" in done.stderr


def test_the_users_of_redis_have_the_rights_of_the_runbook() -> None:
    script = (ROOT / "deploy" / "compose" / "redis.sh").read_text()
    runbook = (ROOT / "docs" / "runbook.md").read_text()
    for service in ("engine", "worker", "operator"):
        [rights] = re.findall(rf"^ACL SETUSER callstream-{service} on >change-me (.*)$", runbook, re.MULTILINE)
        assert f'user {service} "{rights}"' in script


def test_a_conversation_outlives_its_containers(stack: Stack) -> None:
    session: str = stack.chat("hello")[0][1]["sessionId"]

    stack.compose("up", "--detach", "--wait", "--no-build", "--force-recreate", "redis", "engine")

    wait_until_blocking(lambda: stack.ask("/readyz", key=None)[0] == 200, what="the new engine behind the proxy")
    _, messages = stack.ask(f"/v1/sessions/{session}/messages")
    assert [message["role"] for message in json.loads(messages)["messages"]] == ["user", "assistant"]


@promise("SIGTERM drains a worker")
def test_workers_stop_in_good_order_when_asked(stack: Stack) -> None:
    stack.compose("stop", "worker")

    assert [container["State"]["ExitCode"] for container in stack.containers("worker")] == [0, 0]
