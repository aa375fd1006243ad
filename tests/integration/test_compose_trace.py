"""`make trace` on the real stack of Compose: two engines on a PostgreSQL, two workers, and what is stopped of it."""

import re
import subprocess
import uuid
from collections.abc import Generator

import pytest

from deploy.local.ports import free_port
from tests.marks import exhaustive
from tests.support.compose import KEY, Stack
from tests.support.servers import docker_missing

pytestmark = [
    pytest.mark.docker,
    exhaustive("needs Docker"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(docker_missing() is not None, reason=str(docker_missing())),
]


@pytest.fixture(scope="module")
def stack() -> Generator[Stack]:
    env = {"API_KEYS": f"tester:{KEY}", "POSTGRES_PASSWORD": uuid.uuid4().hex, "ACCEPT_FIRST_LISTINGS": "true"}
    env["COMPOSE_FILE"] = "docker-compose.yml:deploy/compose/pool.yml"
    stack = Stack(f"callstream-test-{uuid.uuid4().hex[:8]}", free_port(), env=env, profiles=("scale",))
    with stack.running("--scale", "engine=2", "--scale", "worker=2"):
        yield stack


def traced(stack: Stack, name: str) -> "subprocess.CompletedProcess[str]":
    """What an operator sees who has only the command."""
    return stack.make("--silent", "trace", f"ID={name}", check=False)


def test_a_call_whose_server_another_pool_has_runs_there_and_its_history_says_so(stack: Stack) -> None:
    events = stack.chat('Call clock__get_current_time {"timezone": "Asia/Tokyo"}')
    [call] = {str(data["correlationId"]) for _, data in events if "correlationId" in data}
    assert [data["status"] for _, data in events if data.get("type") == "tool"][-1] == "succeeded"
    done = traced(stack, call)
    assert re.search(r"published as entry \S+ of rpc\.plugins\.requests:(browser|servers-\w+), ", done.stdout), (
        done.stdout
    )
    assert re.search(r"worker-browser-1 .*tool call finished", done.stdout), done.stdout


def test_one_command_tells_the_whole_history_and_names_what_is_stopped(stack: Stack) -> None:
    events = stack.chat("What is 17 * 23?")
    stack.chat("What is 18 * 24?")  # a stranger's
    ids = {str(data["turnId"]) for _, data in events if "turnId" in data}
    [call] = {str(data["correlationId"]) for _, data in events if "correlationId" in data}
    [turn] = ids
    session = str(events[0][1]["sessionId"])
    for name in (call, turn, session, turn.replace("-", "")):
        done = traced(stack, name)
        assert done.returncode == 0, done.stderr
        assert "Not available" not in done.stderr
        sources = {line.split("  ")[1].strip() for line in done.stdout.splitlines()}
        assert {"store", "ledger"} < sources
        assert any(each.startswith("engine-") for each in sources)
        assert any(each.startswith("worker-") for each in sources)
        assert set(re.findall("correlationId=([\\w-]+)", done.stdout)) == {call}
        assert "subject=tester" in done.stdout

    used = stack.compose("run", "--rm", "--no-deps", "--no-TTY", "operator", "dialog-engine", "subjects").stdout
    assert re.search(r"^tester +0 +0 +([23]) +\1 +\d+ +0$", used, re.MULTILINE), used
    assert "2 engines have reported" in used
    used = stack.compose("run", "--rm", "--no-deps", "--no-TTY", "operator", "dialog-engine", "usage", "--csv").stdout
    assert re.search(r"^[\d-]+,tester,,demo,demo__calculate,0,0,0,0,2,,\r?$", used, re.MULTILINE), used

    stack.compose("stop", "redis")
    done = traced(stack, turn)
    assert done.returncode == 0
    assert "Not available: Redis at redis://redis:6379/0: " in done.stderr
    assert "tool call started" in done.stdout
    assert "was committed" in done.stdout

    stack.compose("stop", "postgres", "engine")
    done = traced(stack, turn)
    assert done.returncode == 0
    assert "Not available: the store: DATABASE_URL" in done.stderr
    assert "tool call started" in done.stdout
    assert "was committed" not in done.stdout


def test_the_login_of_operators_reads_what_is_in_redis_and_there_are_no_dead_letters(stack: Stack) -> None:
    stack.compose("start", "redis")
    letters = stack.compose("run", "--rm", "--no-deps", "--no-TTY", "dead-letters", "list", check=False)
    assert letters.returncode == 1, letters.stderr
