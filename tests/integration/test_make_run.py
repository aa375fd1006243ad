"""`make run`: one command to a product that answers, and one key to end all of it."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from deploy.local.ports import free_port
from tests.marks import exhaustive, promise
from tests.support.oidc_provider import AUDIENCE, OidcProvider
from tests.support.processes import ROOT, Process, answers, running
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

QUESTION = "What time is it in Tokyo and in Paris?"
UNSET: dict[str, str] = dict.fromkeys(
    (
        "REDIS_URL",
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
        "OPENAI_MODEL",
        "MCP_CONFIG",
        "MCP_SERVER_ENDPOINT",
        "HOST",
        "WORKERS",
    ),
    "",
)
SLOW = exhaustive("slow, and proved by another way to sign in")
WAYS = ["API_KEYS", *(pytest.param(name, marks=SLOW) for name in ("API_KEYS_FILE", "OIDC_ISSUER"))]
COMMAND = (sys.executable, "-m", "deploy.local.stack")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working copy without data: what the stack needs of the repository, and a `.data` of its own."""
    for name in ("deploy", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@asynccontextmanager
async def stack(folder: Path, port: int, **settings: str) -> AsyncGenerator[Process]:
    """The stack, once it says that it is running."""
    env = UNSET | {"PORT": str(port)} | settings
    async with running(COMMAND, env=env, cwd=folder, ready_line="Ctrl-C ends everything", timeout=60) as process:
        yield process


@asynccontextmanager
async def ways_to_sign_in(folder: Path) -> AsyncGenerator[dict[str, tuple[dict[str, str], str]]]:
    """By the setting that each way needs: all its settings, and a credential."""
    key, file = "a-key-of-16-chars-or-more", folder / "api.keys"
    add = [Path(sys.executable).with_name("dialog-engine"), "keys", "add", "alice"]
    made = (await anyio.run_process(add, env={**os.environ, "API_KEYS_FILE": str(file)})).stdout.decode()
    async with OidcProvider().serving() as oidc:
        yield {
            "API_KEYS": ({"API_KEYS": f"alice:{key}"}, key),
            "API_KEYS_FILE": ({"API_KEYS_FILE": str(file)}, made.split()[0]),
            "OIDC_ISSUER": ({"OIDC_ISSUER": oidc.issuer, "OIDC_AUDIENCE": AUDIENCE}, oidc.token(sub="alice")),
        }


def children_of(process: Process, name: str = "") -> list[int]:
    command = ["pgrep", "-P", str(process.pid), "-f", name]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(word) for word in found.stdout.split()]


def gone(pids: list[int]) -> bool:
    """Whether none of them runs; what was killed and not yet collected by init does not."""
    command = ["ps", "-o", "stat=", "-p", ",".join(map(str, pids))]
    states = subprocess.run(command, capture_output=True, text=True, check=False)
    return all(state.startswith("Z") for state in states.stdout.split())


def call(port: int, path: str, body: dict[str, Any] | None = None, credential: str = "") -> str:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=json.dumps(body).encode() if body else None,
        headers={"content-type": "application/json"}
        | ({"authorization": f"Bearer {credential}"} if credential else {}),
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - our own server
        return answer.read().decode()


def not_ready(port: int) -> dict[str, str]:
    """The MCP servers that the engine says are not ready, while it is not ready itself."""
    try:
        call(port, "/readyz")
    except urllib.error.HTTPError as refusal:
        return json.loads(refusal.read())["parts"]["serversNotReady"]
    except OSError:
        pass  # no server listens there yet
    return {}


async def ask(port: int, credential: str = "") -> list[dict[str, Any]]:
    text = await anyio.to_thread.run_sync(call, port, "/v1/chat", {"message": QUESTION}, credential)
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


@promise("make run needs no key, no Docker and no root, and a question is answered through two tool calls")
@promise("Ctrl-C on make run ends every process it started")
@promise("a second make run finds the data of the first")
@pytest.mark.timeout(240)
async def test_a_question_is_answered_ctrl_c_ends_every_process_and_the_next_run_finds_the_conversation(
    folder: Path,
) -> None:
    port = free_port()
    async with stack(folder, port, WORKERS="2") as process:
        events = await ask(port)
        before = json.loads(await anyio.to_thread.run_sync(call, port, "/v1/sessions"))
        workers = json.loads(await anyio.to_thread.run_sync(call, port, "/readyz"))["parts"]["workers"]
        children = children_of(process)
        process.send(signal.SIGINT)
        assert await process.ended(30) == 0

    steps: dict[str, list[str]] = {}
    for event in events:
        if event.get("type") == "tool":
            steps.setdefault(event["correlationId"], []).append(event["status"])
    assert [(path[0], path[-1]) for path in steps.values()] == [("pending", "succeeded")] * 2
    answer = events[-2]["content"]
    assert "Tokyo" in answer
    assert "Paris" in answer
    assert events[-1]["reason"] == "stop"
    assert workers == 2
    assert len(children) == 6
    assert gone(children)

    async with stack(folder, port) as first, running(COMMAND, env=UNSET, cwd=folder) as second:
        assert json.loads(await anyio.to_thread.run_sync(call, port, "/v1/sessions")) == before
        assert len(before["sessions"]) == 1
        assert await second.ended() == 1
        assert f"running in this folder already (process {first.pid})" in second.output()


@promise("make run answers those who have a key or a token where the environment names a way to sign in")
@pytest.mark.parametrize("setting", WAYS)
async def test_with_a_way_to_sign_in_it_runs_and_answers_those_who_have_a_credential(
    folder: Path, setting: str
) -> None:
    port = free_port()
    async with ways_to_sign_in(folder) as ways:
        settings, credential = ways[setting]
        async with stack(folder, port, **settings) as process:
            assert '-H "authorization: Bearer $KEY"' in process.output()
            with pytest.raises(urllib.error.HTTPError, match="401"):
                call(port, "/v1/me")
            assert (
                json.loads(await anyio.to_thread.run_sync(call, port, "/v1/me", None, credential))["subject"] == "alice"
            )
            events = await ask(port, credential)
            assert events[-1]["reason"] == "stop"
            assert [event["status"] for event in events if event.get("type") == "tool"].count("succeeded") == 2
            process.send(signal.SIGHUP)  # as the terminal does when it is closed
            assert await process.ended(30) == 0


@promise("a question that comes the moment the engine is ready finds every tool")
async def test_it_says_that_it_is_running_when_every_server_was_listed_or_failed_and_not_before(folder: Path) -> None:
    port, gate = free_port(), folder / "gate"
    slow = f"""
import os, sys, time
while not os.path.exists({str(gate)!r}): time.sleep(0.01)
os.execv(sys.executable, [sys.executable, "-m", "mcp_server_time"])
"""
    servers = {
        "slow": {"command": sys.executable, "args": ["-c", slow]},
        "never": {"command": sys.executable, "args": ["-c", "raise SystemExit('no licence')"]},
    }
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    env = UNSET | {"PORT": str(port), "MCP_CONFIG": "mcp.json"}
    async with running(COMMAND, env=env, cwd=folder) as process:
        await wait_until(lambda: not_ready(port) == {"slow": "connecting", "never": "failed"}, 40)
        assert "Callstream is running" not in process.output()

        gate.touch()
        await wait_until(lambda: "Callstream is running" in process.output(), 40, what="the end of the start")
        offered = json.loads(await anyio.to_thread.run_sync(call, port, "/v1/tools"))["servers"]
        assert {each["server"]: bool(each["tools"]) for each in offered} == {"never": False, "slow": True}
        await wait_until(lambda: "MCP servers that are not ready: never (failed)." in process.output())


@promise("make run says which of its programs ended and why")
async def test_a_taken_port_is_named(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with running(COMMAND, env=UNSET | {"PORT": str(port)}, cwd=folder) as process:
            assert await process.ended() == 1
            assert f"Cannot listen on 127.0.0.1:{port} (HOST, PORT)" in process.output()


@promise("make run starts a program again that ended")
async def test_a_program_that_ends_is_named_and_started_again(folder: Path) -> None:
    port = free_port()
    (folder / ".data").mkdir(0o755)
    async with stack(folder, port) as process:
        lines: list[str] = []
        for name in ("valkey", "plugins-mcp", "dialog-engine"):
            [first] = children_of(process, name)
            os.kill(first, signal.SIGKILL)
            lines.append(f"{name} ended (exit code -9), see .data/logs/{name}.log. It is started again.")
        await wait_until(lambda: all(line in process.output() for line in lines), 20, what=str(lines))
        await wait_until(lambda: answers(f"http://127.0.0.1:{port}/readyz"), 40, what="an engine that is ready again")
        events = await ask(port)
        assert events[-1]["reason"] == "stop"
        assert [event["status"] for event in events if event.get("type") == "tool"].count("succeeded") == 2
        files = [folder / ".data", *(folder / ".data").rglob("*")]
        assert {file.name for file in files} >= {"dialog-engine.sqlite3", "dialog-engine.log", "appendonlydir"}
        assert not [file for file in files if file.stat().st_mode & 0o077], "files that other users can read"


@promise("Ctrl-C on make run ends every process it started")
@exhaustive("slow, and proved twice")
@pytest.mark.skipif(sys.platform != "linux", reason="only the Linux kernel ends the children of a killed process")
async def test_nothing_outlives_a_killed_supervisor_and_the_next_run_takes_over(folder: Path) -> None:
    port = free_port()
    async with stack(folder, port) as process:
        children = children_of(process)
        process.kill()
        async with stack(folder, port):
            assert gone(children)
        await wait_until(lambda: gone(children), what="the end of the orphans")


@promise("a bad setting is named at the start")
async def test_a_setting_that_a_service_refuses_is_shown(folder: Path) -> None:
    async with running(COMMAND, env=UNSET | {"PORT": str(free_port()), "LOG_LEVEL": "LOUD"}, cwd=folder) as process:
        assert await process.ended(30) == 1
        assert "LOG_LEVEL" in process.output()
