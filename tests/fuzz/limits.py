"""How much is tried, and what one attempt may take. Every fuzz test runs its attempts with these."""

import asyncio
import logging
import os
import resource
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from random import Random
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, Phase, settings

TIMES = int(os.environ.get("FUZZ_TIMES", "1"))
"""The budget: how many times as many attempts as in `make test`, which tries the same ones each time."""
ATTEMPT_SECONDS = 60.0
"""How long an attempt may take."""
PROCESSOR_SECONDS = 20.0
"""How much processor time an attempt may take. This ends also one that never returns to the event loop."""
MEMORY_MB = 500
"""How much the peak of the process's memory may grow in one test."""

Attempt = Callable[[Random], Awaitable[None]]
"""One attempt: the same seed tries the same inputs. Any exception is a finding."""

HEALTHY = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.nested_given]
FUZZ = settings(deadline=None, database=None, derandomize=TIMES == 1, suppress_health_check=HEALTHY)
CONNECTED = settings(FUZZ, phases=[Phase.generate])
"""For attempts over connections, whose input is made from a seed: a smaller seed would be no smaller input."""


@asynccontextmanager
async def watched() -> AsyncGenerator[None]:
    """An attempt. Raises if it takes too long, or if an exception is logged as unexpected or handled by nothing."""
    with processor_time(), _no_unexpected_error():
        async with asyncio.timeout(ATTEMPT_SECONDS):
            yield


@contextmanager
def processor_time() -> Generator[None]:
    """Raises AssertionError in the block when it has used up its processor time."""

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


def peak_mb() -> int:
    """The most memory that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
