"""`python -m tests.chaos.patient_worker`: the quick worker, whose calls wait longer for a server that is started again.

How fast this machine starts a process then plays no part.
"""

from functools import partial

from plugins_mcp.mcp import ConnectionPolicy, server
from tests.support.quick_worker import main

WAIT_SECONDS = 20.0

if __name__ == "__main__":
    patient = partial(ConnectionPolicy, call_wait=WAIT_SECONDS)
    server.ConnectionPolicy = patient  # pyright: ignore[reportAttributeAccessIssue, reportPrivateImportUsage]
    main()
