"""`make drill`: the product in containers, one part of it broken after the other (docs/drill.md).

Each fault has the alerts that must fire within two minutes, the alerts that may follow from it, and the commands of the
documents that find and end it. Meanwhile users chat, with calls that may run only once and without calls. At the end
there is a line for each. The exit code is 1 where one falls short: an alert was late or wrong, a call was lost or ran
twice, a chat without tools stalled, or the fault did not heal.
"""

import argparse
import sys
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from deploy.local.ports import free_port
from tests.drill.drill import HEAD, Drill
from tests.drill.faults import FAULTS
from tests.drill.load import FLOODER, USERS
from tests.support.compose import KEY, Stack
from tests.support.processes import ROOT

LOGS = ROOT / "test-artifacts" / "drill.log"


def stack_in(folder: Path) -> Stack:
    """Three engines, four workers, and who watches them. The demo server logs its effects in the folder."""
    keys = {"tester": KEY, **USERS, **FLOODER}
    env = {
        "API_KEYS": ",".join(f"{name}:{key}" for name, key in keys.items()),
        "ACCEPT_FIRST_LISTINGS": "true",
        "POSTGRES_PASSWORD": uuid.uuid4().hex,
        "PROMETHEUS_PORT": str(free_port()),
        "ALERTMANAGER_PORT": str(free_port()),
        "REDIS_MAXMEMORY": "64mb",
        "SUBJECT_REQUESTS_PER_MINUTE": "300",
        "COMPOSE_FILE": f"docker-compose.yml:{Path(__file__).with_name('compose.yml')}",
        "DRILL_FOLDER": str(folder),
    }
    return Stack(f"callstream-drill-{uuid.uuid4().hex[:8]}", free_port(), env, ("scale", "observe"))


def run(names: Iterable[str]) -> int:
    """These faults, one after the other. The exit code."""
    began = time.monotonic()
    LOGS.parent.mkdir(exist_ok=True)
    with TemporaryDirectory() as name, LOGS.open("w") as logs:
        folder = Path(name)
        folder.chmod(0o777)
        stack = stack_in(folder)
        with stack.running("--scale", "engine=3", "--scale", "worker=4", logs=logs):
            drill = Drill(stack, folder)
            lines = [drill.run(FAULTS[name]) for name in names]
    short = sum(bool(line.short) for line in lines)
    print(f"\n# In all\n\n{HEAD}", *lines, sep="\n")
    print(f"\n{len(lines) - short} of {len(lines)} held, in {(time.monotonic() - began) / 60:.0f} minutes.")
    return min(short, 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.drill", description=__doc__)
    parser.add_argument("faults", nargs="*", metavar="fault", help=f"one or more of: {', '.join(FAULTS)}")
    wanted = parser.parse_args().faults or FAULTS
    if unknown := set(wanted) - FAULTS.keys():
        parser.error(f"no such fault: {', '.join(sorted(unknown))}; there are: {', '.join(FAULTS)}")
    sys.exit(run(wanted))
