"""Measures how long the event loop of a process works between two of its turns.

Python imports this module at its start, in every process that has this folder in PYTHONPATH. It measures the processor
time of the loop's thread, because by the clock a test would fail beside busy neighbours. Not counted are what the tests
themselves do in a loop that they share with the product, garbage collections, because the heap of a test run is not
that of a service, and the start of a service, which serves nobody before its end. A turn of more than MOST_SECONDS
becomes a line of the file of this process in LOOP_PROBE. On a slow machine it may be longer by as much as a fixed piece
of work takes longer there, which is measured directly after the turn.
"""

import asyncio
import gc
import os
import sys
import time
from pathlib import Path
from typing import Any, cast

MOST_SECONDS = 0.05
WORK_SECONDS = 0.005
"""The processor time of `_work` where MOST_SECONDS holds."""
OF_TESTS = ("/tests/", "/anyio/", "/_pytest/", "/playwright/", "/benchmarks/", "/httpx2/_client.py")
"""Tests gather requests of a client: such a task begins in the client itself."""
STARTS = ("LifespanOn.main", "serve")


class _Turn:
    spent = 0.0
    collected = 0.0
    longest = 0.0
    what = ""


def install(folder: str) -> None:
    """Measure the asyncio loops of this process, and write long turns to `folder`."""
    handle, loop = cast("Any", asyncio.Handle), cast("Any", asyncio.BaseEventLoop)
    run, run_once = handle._run, loop._run_once
    turn, began_collecting = _Turn(), 0.0

    def collecting(phase: str, _: object) -> None:
        nonlocal began_collecting
        if phase == "start":
            began_collecting = time.thread_time()
        else:
            turn.collected += time.thread_time() - began_collecting

    def measured_run(self: Any) -> None:
        began, collected = time.thread_time(), turn.collected
        run(self)
        spent = time.thread_time() - began - (turn.collected - collected)
        if spent > 0.001 and not _is_exempt(self):
            turn.spent += spent
            if spent > turn.longest:
                turn.longest, turn.what = spent, _described(self)

    def measured_run_once(self: Any) -> None:
        turn.spent = turn.longest = 0.0
        run_once(self)
        if turn.spent > MOST_SECONDS and turn.spent > MOST_SECONDS * slowness():
            line = f"{turn.spent:.3f} s, of which {turn.longest:.3f} s in {turn.what}; {' '.join(sys.argv)[:200]}\n"
            with Path(folder, str(os.getpid())).open("a") as file:
                file.write(line)

    gc.callbacks.append(collecting)
    handle._run, loop._run_once = measured_run, measured_run_once


def slowness() -> float:
    """How many times longer than where MOST_SECONDS holds this machine takes for a piece of work now, at least 1."""
    took: list[float] = []
    for _ in range(3):
        began = time.thread_time()
        _work()
        took.append(time.thread_time() - began)
    return max(1.0, min(took) / WORK_SECONDS)


def _work() -> int:
    return sum(len(str(number)) for number in range(60_000))


def _coroutine(handle: Any) -> Any:
    task = getattr(handle._callback, "__self__", None)
    return cast("Any", task).get_coro() if isinstance(task, asyncio.Task) else None


def _is_exempt(handle: Any) -> bool:
    coroutine = _coroutine(handle)
    code = getattr(coroutine, "cr_code", None) or getattr(handle._callback, "__code__", None)
    if getattr(coroutine, "__qualname__", "") in STARTS:
        return True
    return code is not None and any(place in code.co_filename for place in OF_TESTS)


def _described(handle: Any) -> str:
    coroutine = _coroutine(handle)
    task = getattr(handle._callback, "__self__", None)
    name = f"{task.get_name()}, " if isinstance(task, asyncio.Task) else ""
    return f"{name}{getattr(coroutine, '__qualname__', None) or handle._callback!r}"


if folder := os.environ.get("LOOP_PROBE"):
    sys.modules["uvloop"] = cast("Any", None)  # its loop cannot be measured; asyncio's is used in its place
    install(folder)
