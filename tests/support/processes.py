"""Real processes: started, awaited, stopped by their own id, their output kept and shown when a test fails."""

import os
import pwd
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from tests.support.forked import Forked, ForkedChild
from tests.support.waiting import wait_until, wait_until_blocking

ROOT = Path(__file__).resolve().parents[2]
"""The root of the repository."""
STOP_SECONDS = 10.0


def answers(url: str) -> bool:
    """Whether a GET of `url` is answered with a 2xx."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310 - tests ask their own servers
            return 200 <= response.status < 300
    except (urllib.error.URLError, OSError):
        return False


class Process:
    """One child process. Its standard output and error go to one file, so that it never blocks on a full pipe."""

    def __init__(
        self,
        argv: Sequence[str | Path] | Forked,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        user: str | None = None,
    ) -> None:
        """`user` is the account that it runs as; only root may name one."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        whole_env = {**os.environ, **(env or {})}
        if isinstance(argv, Forked):
            self.argv = [argv.module, *argv.arguments]
            self._child = ForkedChild(argv, log=self._log, cwd=cwd, env=whole_env)
            return
        self.argv = [str(part) for part in argv]
        self._child = subprocess.Popen(
            self.argv,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=whole_env,
            user=user,
            group=pwd.getpwnam(user).pw_gid if user else None,
            extra_groups=[] if user else None,
        )

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._child.poll()

    def output(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def freeze(self) -> None:
        """Stop it (SIGSTOP), and return when none of its threads moves any more."""
        self.send(signal.SIGSTOP)
        if self.returncode is None:
            os.waitpid(self.pid, os.WUNTRACED)

    def kill(self) -> None:
        """End it as `kill -9` does, and collect it."""
        self.send(signal.SIGKILL)
        self._child.wait()

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        """Ask it to end (SIGTERM), insist after `seconds`; its exit code. Blocking."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        try:
            return self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._child.wait()

    async def ended(self, timeout: float = STOP_SECONDS) -> int:
        await wait_until(lambda: self.returncode is not None, timeout, what=f"the end of {self.argv}")
        return self._child.wait()

    def ready(self, condition: Callable[[], bool]) -> bool:
        """Whether `condition` holds.

        Raises:
            RuntimeError: the process has ended instead.
        """
        if self.returncode is not None:
            raise RuntimeError(f"{self.argv} ended with {self.returncode} before it was ready:\n{self.output()}")
        return condition()

    def wait_ready(self, condition: Callable[[], bool], timeout: float = 60.0) -> None:
        """Wait until `condition` holds. Blocking."""
        wait_until_blocking(lambda: self.ready(condition), timeout, what=f"readiness of {self.argv}")

    def close(self) -> None:
        """Stop it, and show what it wrote: pytest prints that when the test failed."""
        code = self.stop()
        print(f"--- {' '.join(self.argv)} (exit {code})\n{self.output()[-20_000:]}")
        self._log.close()


@asynccontextmanager
async def running(
    argv: Sequence[str | Path] | Forked,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    ready_url: str | None = None,
    ready_line: str | None = None,
    timeout: float = 60.0,
) -> AsyncGenerator[Process]:
    """A process that runs for as long as the block, entered once `ready_url` answers or `ready_line` was written."""
    process = Process(argv, env=env, cwd=cwd)
    try:
        if ready_line is not None:
            line = ready_line
            await wait_until(lambda: process.ready(lambda: line in process.output()), timeout, what=f"{line!r}")
        if ready_url is not None:
            url = ready_url
            await wait_until(lambda: _ready_at(process, url), timeout, what=f"an answer of {url}")
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(process.close)


async def _ready_at(process: Process, url: str) -> bool:
    return process.ready(lambda: True) and await anyio.to_thread.run_sync(answers, url)
