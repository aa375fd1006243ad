"""The profiles `scale` and `observe` of Compose: three engines on a PostgreSQL behind nginx, four workers."""

import json
import re
import subprocess
import urllib.request
import uuid
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from deploy.local.ports import free_port
from tests.marks import exhaustive, promise
from tests.support.compose import KEY, UNUSED_IMAGES, WITHOUT_EXPORTERS, Stack
from tests.support.processes import ROOT
from tests.support.servers import docker_missing
from tests.support.waiting import wait_until_blocking

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(600),
    pytest.mark.skipif(docker_missing() is not None, reason=str(docker_missing())),
    exhaustive("needs Docker"),
]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stack]:
    stack = Stack(
        f"callstream-test-{uuid.uuid4().hex[:8]}",
        free_port(),
        env={
            "API_KEYS": f"tester:{KEY}",
            "POSTGRES_PASSWORD": uuid.uuid4().hex,
            "PROMETHEUS_PORT": str(free_port()),
            "MCP_CONFIG": str(servers_file(tmp_path_factory.mktemp("mcp"))),
            "ACCEPT_FIRST_LISTINGS": "true",
        }
        | UNUSED_IMAGES,
        profiles=("scale", "observe"),
    )
    with stack.running("--scale", "engine=3", "--scale", "worker=4", *WITHOUT_EXPORTERS):
        yield stack


def servers_file(folder: Path) -> Path:
    """The demo's, whose slow job may run again after its worker was lost."""
    config = json.loads((ROOT / "examples" / "mcp.json").read_text())
    config["mcpServers"]["demo"]["callstream"]["tools"] = {"slow_job": {"executionClass": "repeatable"}}
    file = folder / "mcp.json"
    file.write_text(json.dumps(config))
    file.chmod(0o644)
    return file


def kill(container: str) -> None:
    subprocess.run(["docker", "kill", container], capture_output=True, check=True, timeout=60)


def calls_run(stack: Stack, worker: str) -> float:
    text = stack.fetch(worker, "http://127.0.0.1:8081/metrics")
    return sum(map(float, re.findall(r"^plugins_calls_total\{.*\} (\S+)$", text, re.MULTILINE)))


def running_turns(stack: Stack, engine: str) -> float:
    text = stack.fetch(engine, "http://127.0.0.1:8001/metrics")
    return float(re.findall(r"^dialog_turns_running (\S+)$", text, re.MULTILINE)[0])


def test_prometheus_scrapes_every_engine_and_every_worker(stack: Stack) -> None:
    def scraped() -> list[str]:
        url = f"http://127.0.0.1:{stack.env['PROMETHEUS_PORT']}/api/v1/targets?state=active"
        with urllib.request.urlopen(url, timeout=10) as response:
            targets: list[dict[str, Any]] = json.load(response)["data"]["activeTargets"]
        return sorted(target["labels"]["job"] for target in targets if target["health"] == "up")

    wait_until_blocking(lambda: scraped() == ["dialog-engine"] * 3 + ["plugins-mcp"] * 4, 60, what="every target")


@promise("in Compose, engines and workers scale and may be killed", only_in_test_all="needs Docker")
def test_a_killed_engine_and_a_killed_worker_lose_nothing(stack: Stack) -> None:
    engines, workers = stack.names("engine"), stack.names("worker")
    assert stack.servers()  # nginx knows the addresses of the engines: requests that wait for them go to one
    with ThreadPoolExecutor(8) as clients:
        turns = [clients.submit(stack.chat_through_failures, "Run a slow job for 8 seconds") for _ in range(8)]
        wait_until_blocking(lambda: sum(running_turns(stack, name) for name in engines) == 8, what="8 running turns")
        assert sum(running_turns(stack, name) > 0 for name in engines) > 1, "one engine had every turn"
        kill(max(engines, key=lambda name: running_turns(stack, name)))
        kill(workers[0])
        ends = [turn.result(timeout=200) for turn in turns]

    for events in ends:
        steps = [data["status"] for kind, data in events if kind == "control" and data["type"] == "tool"]
        assert steps[-1] == "succeeded"
        assert events[-1][1]["reason"] == "stop"


def test_after_that_all_are_started_again_and_the_workers_share_the_load(stack: Stack) -> None:
    stack.compose("up", "--detach", "--wait", "--no-build", "--scale", "engine=3", "--scale", "worker=4")

    workers = stack.names("worker")
    before = [calls_run(stack, name) for name in workers]
    with ThreadPoolExecutor(12) as clients:
        turns = [clients.submit(stack.chat, "Run a slow job for 1 second") for _ in range(24)]
        assert {turn.result(timeout=100)[-1][1]["reason"] for turn in turns} == {"stop"}
    ran = [calls_run(stack, name) - was for name, was in zip(workers, before, strict=True)]
    assert sum(ran) == 24
    assert min(ran) > 0


def rows(stack: Stack, query: str) -> set[str]:
    return set(stack.rows(query))


CONTENTS = "SELECT session_id, number, role, content FROM messages WHERE interrupted = 0"


def test_a_broken_dump_leaves_the_database_as_it_is(stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "backup.dump"
    stack.make("backup", f"FILE={file}")
    before = rows(stack, CONTENTS)
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])

    assert stack.make("restore", f"FILE={file}", check=False).returncode != 0

    assert rows(stack, CONTENTS) == before
    stack.compose("start", "engine", "worker")


def test_an_upgrade_whose_new_worker_does_not_start_says_why_and_leaves_the_old_ones(stack: Stack) -> None:
    before = stack.names("worker")
    stack.env["WORKER_CONCURRENCY"] = "0"
    try:
        failed = stack.make("upgrade", check=False)
    finally:
        del stack.env["WORKER_CONCURRENCY"]
    assert failed.returncode
    assert "WORKER_CONCURRENCY: Input should be greater than" in failed.stdout + failed.stderr
    assert stack.names("worker") == before
    assert stack.make("upgrade").stdout.splitlines()[-1] == "upgrade: everything is up to date"
