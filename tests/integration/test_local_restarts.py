"""How often `make run` starts a program again."""

import os
import socket
import sys
from pathlib import Path

import pytest

from deploy.local.children import Child
from deploy.local.plan import Plan, Program
from deploy.local.ports import free_port
from deploy.local.stack import RESTART_PERIOD_SECONDS, RESTARTS, Stack, StackError
from tests.marks import promise
from tests.support.waiting import wait_until_blocking

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
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".data/logs").mkdir(parents=True)
    return tmp_path


@promise("make run says which of its programs ended and why")
def test_when_a_program_ends_too_often_it_is_named_and_the_others_end_too(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    port, other = free_port(), free_port()
    url, others = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{other}"
    programs = (
        Program("other", (sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(other)), {}, others, 0),
        Program("fragile", (sys.executable, "-c", ONCE_READY, str(port)), {}, url, 1),
    )
    with (folder / "lock").open("w") as lock:
        stack = Stack(Plan(programs, "127.0.0.1", other, others, {}), dict(os.environ), lock.fileno())
        with pytest.raises(StackError, match=r"(?s)fragile ended \(exit code 3\)\. The end of .*no licence"):
            stack.run()

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", other))
    assert (folder / "started").read_text() == "x" * (RESTARTS + 1)
    output = capfd.readouterr().out
    assert output.count("fragile ended (exit code 3), see .data/logs/fragile.log. It is started again.") == RESTARTS
    assert f"more than {RESTARTS} times in {RESTART_PERIOD_SECONDS:.0f} s" in output


def test_the_log_of_a_program_that_is_started_again_keeps_what_was_there(folder: Path) -> None:
    log = folder / ".data/logs/x.log"
    program = Program("x", ("sh", "-c", "echo its last words; exit 1"), {}, "", 0)
    with (folder / "lock").open("w") as lock:
        for _ in range(2):
            child = Child(program, dict(os.environ), log, kept_open=lock.fileno())
            wait_until_blocking(lambda child=child: child.returncode is not None, 10, what="its end")
            child.kill()
    assert log.read_text() == "its last words\n" * 2
