"""Child processes that never outlive their supervisor."""

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from deploy.local.plan import Program

PR_SET_PDEATHSIG = 1
_libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None


class Child:
    """One program of the plan as a process, its output in a file.

    It is the leader of a session of its own: Ctrl-C in the terminal reaches the supervisor alone, which ends the
    programs in order. On Linux the kernel ends it when the supervisor is killed; elsewhere that is left to the user.
    `kept_open` is a file descriptor that the child holds for as long as it lives.
    """

    def __init__(self, program: Program, environment: dict[str, str], log: Path, *, kept_open: int) -> None:
        self.program = program
        self.log = log
        supervisor = os.getpid()

        def die_with_supervisor() -> None:
            if _libc is not None:
                _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != supervisor:
                os._exit(1)

        with log.open("wb") as output:
            self._process = subprocess.Popen(
                program.argv,
                env={**environment, **program.env, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(kept_open,),
                preexec_fn=die_with_supervisor,  # noqa: PLW1509 - the supervisor has one thread
            )

    @property
    def returncode(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def ask_to_end(self) -> None:
        """SIGTERM."""
        if self.returncode is None:
            self._process.terminate()

    def kill(self) -> None:
        """SIGKILL, to it and whatever it started in its session, and collect it."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def last_lines(self, count: int = 15) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="replace").splitlines()[-count:]
        return "\n".join(f"  {line}" for line in lines) or "  (it wrote nothing)"
