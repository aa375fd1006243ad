"""Which code holds the memory of a running turn: the allocations of an engine by package, from `tracemalloc`.

    python -m benchmarks.relay.memory_profile [--streams 200]

The same turns as in `benchmarks.relay` run in an engine that traces its allocations. The total is less than the
resident memory per turn, which has the gaps of the allocator and the buffers of C libraries too.
"""

import argparse
import os
import signal
import tempfile
import tracemalloc
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import uvloop

from benchmarks.arguments import at_least
from benchmarks.relay.measures import growth
from benchmarks.relay.relays import callstream, provider
from tests.support.processes import ROOT, Process
from tests.support.waiting import wait_until_blocking

# Python imports a module of this name at its start. On SIGUSR2 the engine writes a snapshot.
SITECUSTOMIZE = """
import gc, os, signal, tracemalloc
tracemalloc.start()
def dump(*_):
    gc.collect()
    number = len(os.listdir({folder!r}))
    tracemalloc.take_snapshot().dump({folder!r} + "/unfinished")
    os.rename({folder!r} + "/unfinished", {folder!r} + f"/{{number}}")
signal.signal(signal.SIGUSR2, dump)
"""
SECONDS = 60


async def profile(streams: int, folder: Path) -> None:
    """Print KiB per running turn, by package."""
    (snapshots := folder / "snapshots").mkdir()
    (code := folder / "code").mkdir()
    (code / "sitecustomize.py").write_text(SITECUSTOMIZE.format(folder=str(snapshots)))

    def snapshot(process: Process) -> int:
        next_one = snapshots / str(len([*snapshots.iterdir()]))
        os.kill(process.pid, signal.SIGUSR2)
        wait_until_blocking(next_one.exists, SECONDS, what="a snapshot")
        return 0

    with ExitStack() as stack:
        source = stack.enter_context(provider())
        relay = stack.enter_context(callstream(source.port, folder, PYTHONPATH=str(code)))
        await growth(relay, streams, memory=snapshot)
    before, after = (tracemalloc.Snapshot.load(str(snapshots / number)) for number in "23")
    sizes = Counter[str]()
    for line in after.compare_to(before, "filename"):
        sizes[_package(line.traceback[0].filename)] += line.size_diff
    print(f"Python objects of a running turn with its client: {sizes.total() / streams / 1024:.1f} KiB, of which")
    for package, size in sizes.most_common(12):
        print(f"{package:24}{size / streams / 1024:>8.1f}{size / sizes.total():>8.0%}")


def _package(filename: str) -> str:
    """The library that a file belongs to: ours, Python's, or one by its name."""
    if filename.startswith(str(ROOT / "services")):
        return "Callstream"
    _, found, path = filename.partition("site-packages/")
    return path.partition("/")[0] if found else "Python"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.relay.memory_profile", description="Which code holds the memory of a running turn."
    )
    parser.add_argument("--streams", type=at_least(1), default=200, help="turns")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="profile-") as folder:
        uvloop.run(profile(options.streams, Path(folder)))


if __name__ == "__main__":
    main()
