"""What is recorded about a call when it is sent, and about the standard error of a child."""

import os
from typing import Any

import anyio
import pytest

from plugins_mcp.mcp.stdio import ChildDiagnostics
from tests.support.waiting import wait_until


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (b"", ""),
        (b"one\n\ntwo\n", "one | two"),
        (b"x" * 30 + b"\nthe end \xff\n", "the end \ufffd"),
        (b"\x1b]0;title\a\r", r"\x1b]0;title\x07"),
        (b"ghp_abcdefghijkl", "***"),
        ("\u202egnol".encode(), r"\u202egnol"),
    ],
)
async def test_the_end_of_standard_error_is_kept(written: bytes, kept: str) -> None:
    child = ChildDiagnostics(limit=20)
    with child.stderr_file() as file:
        os.write(file.fileno(), written)
    assert child.stderr() == kept


async def test_standard_error_is_drained_while_the_child_writes() -> None:
    child = ChildDiagnostics()
    written: Any = None
    with child.stderr_file() as file:
        written = await anyio.to_thread.run_sync(lambda: sum(os.write(file.fileno(), b"e" * 60_000) for _ in range(20)))
        os.write(file.fileno(), b"\nlast\n")
        await wait_until(lambda: child.stderr().endswith("last"))
    assert written == 1_200_000
