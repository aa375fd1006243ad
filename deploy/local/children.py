"""Child processes that never outlive their supervisor."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from deploy.local.plan import DATA, Program

PR_SET_PDEATHSIG = 1
_libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None


class Child(subprocess.Popen[bytes]):
    """One program of the plan as a process, its output at the end of its log. `restarts` counts its starts before.

    The child leads its own session: Ctrl-C in the terminal reaches only the supervisor, which stops the programs in
    order. It gets those variables of `environment` that its program inherits. On Linux the kernel terminates the child
    when the supervisor is killed; elsewhere the user has to. The child keeps the file descriptor `lock` open.
    """

    def __init__(self, program: Program, environment: Mapping[str, str], lock: int, restarts: int = 0) -> None:
        self.program = program
        self.restarts = restarts
        self.log = DATA / "logs" / f"{program.name}.log"
        self.began_at = time.monotonic()
        supervisor = os.getpid()
        inherited = {name: value for name, value in environment.items() if program.inherits(name)}

        def die_with_supervisor() -> None:
            if _libc is not None:
                _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != supervisor:
                os._exit(1)

        with self.log.open("ab") as output:
            super().__init__(
                program.argv,
                env={**inherited, **program.env, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(lock,),
                preexec_fn=die_with_supervisor,
            )

    def kill_all(self) -> None:
        """Send SIGKILL to the process and everything in its session, and reap it."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def last_lines(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="replace").splitlines()[-15:]
        return "\n  ".join([f"The end of {self.log}:", *(lines or ["(it wrote nothing)"])])
