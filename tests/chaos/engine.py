"""`python -m tests.chaos.engine …`: the engine, as a scenario needs it: each flag changes one thing."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from callstream_runtime.pool_directory import PoolDirectory
from dialog_engine.chat.ownership import OwnershipTimes
from dialog_engine.chat.ports import SeenEngine
from dialog_engine.http.streams import StreamTimes
from dialog_engine.main import serve
from dialog_engine.model import Turn
from dialog_engine.storage.engines import SqlEngines
from dialog_engine.wiring.times import EngineTimes
from tests.chaos.crash_points import CrashPoint, arm
from tests.chaos.recorded_writes import record


async def _no_engines(self: SqlEngines) -> Sequence[SeenEngine]:
    return []


async def _pool_of_all(self: PoolDirectory, server: str, version: int) -> str:
    return ""


async def _no_turns(self: SqlEngines, turns: Sequence[Turn]) -> Sequence[str]:
    return []


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.engine", description=__doc__)
    parser.add_argument("--crash-at", type=Path, help="the file that names the step at which it kills itself")
    parser.add_argument("--adopt-nothing", action="store_true", help="it adopts no turns")
    parser.add_argument("--lease", type=float, help="the seconds of its lease")
    parser.add_argument("--notes", type=Path, help="where it notes its writes of turns, which only fences stop")
    parser.add_argument(
        "--send-timeout", type=float, help="after how many seconds it drops a client that reads nothing"
    )
    parser.add_argument("--no-pools", action="store_true", help="it puts every call on the stream of all workers")
    options = parser.parse_args()
    if options.crash_at:
        arm(CrashPoint(options.crash_at))
    if options.adopt_nothing:
        SqlEngines.others = _no_engines
    times = EngineTimes()
    if options.lease:
        times = replace(times, ownership=OwnershipTimes(options.lease, options.lease / 4, options.lease / 10))
    if options.notes:
        record(options.notes)
        SqlEngines.fenced = _no_turns  # so that only the fences stop its writes
    if options.no_pools:
        PoolDirectory.find = _pool_of_all
    if options.send_timeout:
        times = replace(times, streams=StreamTimes(unread=options.send_timeout))
    serve(times)


if __name__ == "__main__":
    main()
