"""Hides the environment that a process was started with from the programs that it starts.

A program of the same user can read `/proc/<pid>/environ` of its parent. The kernel serves it from the memory in which
the process was started, so that memory is cleared; what `os.environ` and libraries read are copies.
"""

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

_ENV_START, _ENV_END = 50 - 3, 51 - 3
"""Where /proc/self/stat has the addresses of the environment, counted after the name of the program (proc(5))."""
_PR_SET_DUMPABLE = 4


def hide_environment() -> None:
    """Clear the environment block of this process, and refuse other processes of the user to read its memory.

    `os.environ` is unchanged. Effective on Linux only. Root can still read everything; a debugger needs root too.
    """
    if sys.platform != "linux":
        return
    libc: Any = ctypes.CDLL(None)
    for name, value in os.environb.items():
        os.environb[name] = value  # setenv: the C library copies it out of the block
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    libc.prctl(_PR_SET_DUMPABLE, 0)
    if start:
        ctypes.memset(start, 0, end - start)
