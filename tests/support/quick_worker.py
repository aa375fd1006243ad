"""`python -m tests.support.quick_worker [--patient]`: the worker with leases so short that a test can await their end.

The calls of a patient one wait longer for a server that is started again: how fast a machine does that plays no part.
"""

import asyncio
import logging
import sys

from callstream_runtime.logs import set_up_logging
from plugins_mcp.config import load_settings
from plugins_mcp.leases import LeaseTimes
from plugins_mcp.main import serve
from plugins_mcp.mcp import ConnectionPolicy

PATIENT = ConnectionPolicy(call_wait=20.0)

QUICK = LeaseTimes(
    lease=3.0, renew=0.5, renew_again=0.1, give_up=2.4, loop_alive=1.5, heartbeat=0.1, sweep=0.4, grace=1.5,
    settle=0.5, announce=0.5, catalog=0.5,
)  # fmt: skip


def main() -> None:
    set_up_logging("INFO", "human")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    asyncio.run(serve(load_settings(), QUICK, PATIENT if "--patient" in sys.argv else None))


if __name__ == "__main__":
    main()
