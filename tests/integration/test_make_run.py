"""`make run`: one command to a product that answers, one key to end all of it, and nothing for others to read."""

import ast
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from callstream_runtime.connections import command_client
from deploy.local.plan import Program, RunError
from deploy.local.ports import free_port
from deploy.local.stack import RESTARTS, run
from plugins_contract.keys import Keys
from plugins_contract.messages import new_id
from tests.marks import exhaustive, promise
from tests.support.processes import ROOT, Process, answers, running
from tests.support.waiting import wait_until

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
KEY = "a-key-of-16-chars-or-more"
CONNECTED = ": connected, protocol"
COMMAND = (sys.executable, "-m", "deploy.local.stack")

SPY = """
import os, pathlib, time
while not os.path.exists("go"):
    time.sleep(0.01)
found = {}
for process in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        block, command = (process / "environ").read_bytes(), (process / "cmdline").read_bytes()
    except OSError:
        continue
    if b"hunter" in block and b"{folder}" in os.readlink(process / "cwd").encode():
        found[process.name] = command.replace(b"\\0", b" ").decode()
pathlib.Path("found.tmp").write_text(repr((sorted(os.environ), found)))
os.rename("found.tmp", "found")
"""
"""A stdio server that reads the environment of every process in the folder, once the stack runs."""

ONCE_READY = """
import http.server, os, sys
class Ok(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"ready")
first, mark = not os.path.exists("started"), open("started", "a")
mark.write("x")
mark.close()
if first:
    with http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Ok) as server:
        server.handle_request()
print("no licence", flush=True)
sys.exit(3)
"""
"""Answers one request, and exits; each later start of it exits at once."""


@pytest.fixture
def folder() -> Generator[Path]:
    """A working copy without data: what the stack needs of the repository, and a `.data` of its own.

    Its path is short: that of a socket has 107 bytes at most.
    """
    with tempfile.TemporaryDirectory() as path:
        for name in ("deploy", "examples"):
            (Path(path) / name).symlink_to(ROOT / name)
        yield Path(path)


@asynccontextmanager
async def stack(folder: Path, port: int, **settings: str) -> AsyncGenerator[Process]:
    """The stack, once it says that it is running."""
    env = UNSET | {"PORT": str(port)} | settings
    async with running(COMMAND, env=env, cwd=folder, ready_line="Ctrl-C ends everything", timeout=60) as process:
        yield process


def children_of(process: Process, name: str = "") -> list[int]:
    command = ["pgrep", "-P", str(process.pid), "-f", name]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(word) for word in found.stdout.split()]


def gone(pids: list[int]) -> bool:
    """Whether none of them runs; what was killed and not yet collected by init does not."""
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return all(each.status() == psutil.STATUS_ZOMBIE for each in left)


def listening_ports(pids: list[int]) -> list[int]:
    """The TCP ports on which these processes listen."""
    found = [each for pid in pids for each in psutil.Process(pid).net_connections("tcp")]
    return [each.laddr.port for each in found if each.status == psutil.CONN_LISTEN]


async def run_unsigned(redis: Any) -> bytes:
    """The reply to a request that somebody without the key puts on the stream."""
    call_id, keys = new_id(), Keys()
    request = {
        "eventType": "PluginToolCallRequested",
        "correlationId": call_id,
        "sessionId": "s",
        "turn": 1,
        "toolCallId": "c",
        "toolName": "demo__add_note",
        "arguments": {"note": "x"},
        "responseChannel": keys.response(call_id),
    }
    await redis.xadd(keys.requests, {"event": json.dumps(request)})

    async def reply() -> bytes:
        rows = await redis.xrange(keys.response(call_id))
        return rows[-1][1][b"reply"] if rows else b""

    return await wait_until(reply, 20, what="the reply to the unsigned request")


def call(port: int, path: str, credential: str = "", body: dict[str, Any] | None = None) -> str:
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


async def get(port: int, path: str, credential: str = "") -> Any:
    return json.loads(await anyio.to_thread.run_sync(call, port, path, credential))


async def ask(port: int, credential: str = "") -> str:
    """The answer to a question that needs two tool calls."""
    text = await anyio.to_thread.run_sync(call, port, "/v1/chat", credential, {"message": QUESTION})
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    steps: dict[str, list[str]] = {}
    for event in events:
        if event.get("type") == "tool":
            steps.setdefault(event["correlationId"], []).append(event["status"])
    assert [(path[0], path[-1]) for path in steps.values()] == [("pending", "succeeded")] * 2
    assert events[-1]["reason"] == "stop"
    return events[-2]["content"]


@exhaustive("a dozen processes: the other tests of this file have each of the promises with fewer")
@promise("make run answers those who have a key or a token where the environment names a way to sign in")
@promise("make run starts a program again that ended")
@promise("Ctrl-C on make run ends every process it started")
@promise("a second make run finds the data of the first")
@pytest.mark.timeout(240)
async def test_it_answers_starts_again_what_ended_ends_with_ctrl_c_and_finds_its_data_the_next_time(
    folder: Path,
) -> None:
    port, settings = free_port(), {"API_KEYS": f"alice:{KEY}"}
    (folder / ".data").mkdir(0o755)
    async with stack(folder, port, WORKERS="2", **settings) as process:
        assert '-H "authorization: Bearer $KEY"' in process.output()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            call(port, "/v1/me")
        assert (await get(port, "/v1/me", KEY))["subject"] == "alice"
        answer = await ask(port, KEY)
        assert "Tokyo" in answer
        assert "Paris" in answer
        assert len(children_of(process)) == 6

        log = folder / ".data/logs/plugins-mcp.log"
        connected, lines = log.read_text().count(CONNECTED), list[str]()
        for name in ("valkey", "plugins-mcp", "dialog-engine"):
            os.kill(children_of(process, name)[0], signal.SIGKILL)
            lines.append(f"{name} ended (exit code -9), see .data/logs/{name}.log. It is started again.")
        await wait_until(lambda: all(line in process.output() for line in lines), 20, what=str(lines))
        ready = f"http://127.0.0.1:{port}/readyz"
        await wait_until(lambda: answers(ready), 40, what="an engine that is ready again")
        # The other worker has both servers all the time.
        again = "a worker with both its servers again"
        await wait_until(lambda: log.read_text().count(CONNECTED) >= connected + 2, 40, what=again)
        await ask(port, KEY)
        before = await get(port, "/v1/sessions", KEY)
        assert len(before["sessions"]) == 2

        children = children_of(process)
        process.send(signal.SIGINT)
        assert await process.ended(30) == 0
        assert gone(children)
    files = [folder / ".data", *(folder / ".data").rglob("*")]
    assert {file.name for file in files} >= {"dialog-engine.sqlite3", "dialog-engine.log", "appendonlydir"}
    assert not [file for file in files if file.stat().st_mode & 0o077], "files that other users can read"

    async with stack(folder, port, **settings) as first, running(COMMAND, env=UNSET, cwd=folder) as second:
        assert await get(port, "/v1/sessions", KEY) == before
        assert await second.ended() == 1
        assert f"running in this folder already (process {first.pid})" in second.output()
        first.send(signal.SIGHUP)  # as the terminal does when it is closed
        assert await first.ended(30) == 0


@promise("Ctrl-C on make run ends every process it started")
@promise("a second make run finds the data of the first")
@promise("a question that comes the moment the engine is ready finds every tool")
@promise("make run needs no key, no Docker and no root, and a question is answered through two tool calls")
@promise("make run keeps Redis private and secrets out of the environment of stdio servers")
async def test_it_is_running_when_every_server_was_listed_or_failed_and_no_server_finds_a_secret(folder: Path) -> None:
    port, gate = free_port(), folder / "go"
    slow = f"""
import os, sys, time
while not os.path.exists({str(gate)!r}): time.sleep(0.01)
os.execv(sys.executable, [sys.executable, "-m", "mcp_server_time"])
"""
    spy = SPY.replace("{folder}", str(folder))
    servers = {
        "time": {"command": sys.executable, "args": ["-c", slow]},
        "never": {"command": sys.executable, "args": ["-c", "raise SystemExit('no licence')"]},
        "spy": {"command": sys.executable, "args": ["-c", spy], "env": {"GIVEN": "${GIT_TOKEN}"}},
    }
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    env = UNSET | {
        "PORT": str(port),
        "MCP_CONFIG": "mcp.json",
        "GIT_TOKEN": "for the spy",
        "OPENAI_CUSTOM_HEADERS": "x-key: hunter-of-the-engine",
        "MCP_API_KEY": "hunter-of-the-worker",
        "SOME_TOKEN": "hunter-of-the-shell",
    }
    async with running(COMMAND, env=env, cwd=folder) as process:
        starting = {"time": "connecting", "never": "failed", "spy": "connecting"}
        await wait_until(lambda: not_ready(port) == starting, 40)
        assert "Callstream is running" not in process.output()

        gate.touch()
        await wait_until(lambda: "Callstream is running" in process.output(), 40, what="the end of the start")
        offered = (await get(port, "/v1/tools"))["servers"]
        assert {each["server"]: bool(each["tools"]) for each in offered} == {"never": False, "spy": False, "time": True}
        await wait_until(lambda: "not ready: never (failed), spy (failed)." in process.output())
        await ask(port)
        if sys.platform == "linux":  # /proc, and the addresses of the environment
            variables, found = ast.literal_eval((folder / "found").read_text())
            assert found == {}
            assert "GIVEN" in variables
            assert not {"OPENAI_CUSTOM_HEADERS", "MCP_API_KEY", "SOME_TOKEN", "REDIS_URL"} & set(variables)
            assert listening_ports(children_of(process, "valkey-server")) == []

        path = folder / ".data/valkey/valkey.sock"
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / ".data/request.keys").stat().st_mode) == 0o600
        redis = command_client(f"unix://{path}")
        assert b"PERMISSION_DENIED" in await run_unsigned(redis)
        await redis.aclose()

        before, children = await get(port, "/v1/sessions"), children_of(process)
        process.send(signal.SIGINT)
        assert await process.ended(30) == 0
        assert gone(children)
    (folder / "mcp.json").write_text('{"mcpServers": {}}')
    async with running(COMMAND, env=env, cwd=folder) as process:
        await wait_until(lambda: answers(f"http://127.0.0.1:{port}/healthz"), 40, what="the engine")
        assert await get(port, "/v1/sessions") == before


@promise("make run starts a program again that ended")
@promise("make run says which of its programs ended and why")
def test_when_a_program_ends_too_often_it_is_named_and_the_others_end_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    (folder / ".data/logs").mkdir(parents=True)
    port, other = free_port(), free_port()
    url, others = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{other}"
    programs = (
        Program("other", (sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(other)), {}, others),
        Program("fragile", (sys.executable, "-c", ONCE_READY, str(port)), {}, url, 1),
    )
    with (folder / "lock").open("w") as lock:
        again = r"(?s)fragile ended \(exit code 3\), again and again\. The end of .*no licence"
        with pytest.raises(RunError, match=again):
            run(programs, "It runs.", os.environ, lock.fileno())

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", other))
    assert (folder / "started").read_text() == "x" * (RESTARTS + 1)
    assert (folder / ".data/logs/fragile.log").read_text().count("no licence") == RESTARTS + 1
    output = capfd.readouterr().out
    assert output.count("fragile ended (exit code 3), see .data/logs/fragile.log. It is started again.") == RESTARTS


@exhaustive("starts the product: the test above has the same promise with two small programs")
@promise("make run says which of its programs ended and why")
async def test_a_taken_port_is_named(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with running(COMMAND, env=UNSET | {"PORT": str(port)}, cwd=folder) as process:
            assert await process.ended(60) == 1
            assert f"HOST 127.0.0.1, PORT {port} cannot be listened on: " in process.output()
