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
    """One program of the plan as a process, its output at the end of a file.

    The child leads its own session: Ctrl-C in the terminal reaches only the supervisor, which stops the programs in
    order. It gets those variables of `environment` that its program inherits. On Linux the kernel terminates the child
    when the supervisor is killed; elsewhere the user has to. `kept_open` is a file descriptor that the child inherits
    and keeps open for as long as it lives.
    """

    def __init__(self, program: Program, environment: dict[str, str], log: Path, *, kept_open: int) -> None:
        self.program = program
        self.log = log
        supervisor = os.getpid()
        inherited = {name: value for name, value in environment.items() if program.inherits(name)}

        def die_with_supervisor() -> None:
            if _libc is not None:
                _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != supervisor:
                os._exit(1)

        with log.open("ab") as output:
            self._process = subprocess.Popen(
                program.argv,
                env={**inherited, **program.env, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(kept_open,),
                preexec_fn=die_with_supervisor,  # noqa: PLW1509 - the supervisor has one thread
            )

    @property
    def returncode(self) -> int | None:
        """The exit code, or None while the process runs."""
        return self._process.poll()

    def ask_to_end(self) -> None:
        """Send SIGTERM if the process still runs."""
        if self.returncode is None:
            self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL to the process and everything in its session, and reap it."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def last_lines(self, count: int = 15) -> str:
        """The last lines of the child's log, indented."""
        lines = self.log.read_text(errors="replace").splitlines()[-count:]
        return "\n".join(f"  {line}" for line in lines) or "  (it wrote nothing)"
