"""The loop that all fuzzers share: seeded attempts until the time is up, each within limits."""

import asyncio
import logging
import resource
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from random import Random
from types import FrameType
from typing import Any

ATTEMPT_SECONDS = 60.0
"""How long an attempt may take."""
PROCESSOR_SECONDS = 20.0
"""How much processor time an attempt may take. This ends also one that never returns to the event loop."""
MEMORY_MB = 500
"""How much the peak of the process's memory may grow in one run."""

Attempt = Callable[[Random, Counter[str]], Awaitable[None]]
"""One attempt: the same seed tries the same inputs. It counts what it tried. Any exception is a finding."""
Fuzzer = Callable[[], AbstractAsyncContextManager[Attempt]]
"""Starts what is attacked, and ends it."""


@dataclass
class Run:
    """What has been tried, and what was found: seeds, each with what went wrong."""

    counts: Counter[str] = field(default_factory=Counter[str])
    findings: list[str] = field(default_factory=list[str])


async def run(fuzzer: Fuzzer, seconds: float, seed: int, *, most_findings: int = 5) -> Run:
    """Attempts with this seed and those that follow it, for so long or up to so many findings."""
    result = Run()
    before = _peak_mb()
    async with fuzzer() as attempt:
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at and len(result.findings) < most_findings:
            try:
                with _no_unexpected_error(), _bounded_processor_time():
                    async with asyncio.timeout(ATTEMPT_SECONDS):
                        await attempt(Random(seed), result.counts)
            except Exception as finding:  # noqa: BLE001 -- whatever an input can raise is a finding
                result.findings.append(f"seed {seed}: {type(finding).__name__}: {str(finding)[:2000]}")
            result.counts["attempts"] += 1
            seed += 1
    if (grown := _peak_mb() - before) > MEMORY_MB:
        result.findings.append(f"seeds up to {seed}: the process has grown by {grown} MB")
    return result


@contextmanager
def _bounded_processor_time() -> Generator[None]:
    def interrupt(_: int, frame: FrameType | None) -> None:
        raise AssertionError(f"{PROCESSOR_SECONDS:g} s of processor time were not enough: {frame}")

    before = signal.signal(signal.SIGVTALRM, interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, PROCESSOR_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


class _Tracebacks(logging.Handler):
    """Collects what is logged with the traceback of an exception."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        # The MCP SDK logs whatever it cannot read with a traceback; the worker switches that off.
        if record.exc_info and record.exc_info[1] and not record.name.startswith("mcp."):
            self.found.append(f"{record.name}: {record.getMessage()}: {record.exc_info[1]!r}")


@contextmanager
def _no_unexpected_error() -> Generator[None]:
    """Fails if an exception is logged as unexpected, or is raised where nothing handles it."""
    loop, tracebacks = asyncio.get_running_loop(), _Tracebacks()

    def unhandled(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        tracebacks.found.append(f"not handled: {context}")

    before = loop.get_exception_handler()
    loop.set_exception_handler(unhandled)
    logging.getLogger().addHandler(tracebacks)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(tracebacks)
        loop.set_exception_handler(before)
    assert not tracebacks.found, tracebacks.found


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
