"""`python -m tests.chaos.impatient_engine SECONDS`: the engine, which drops clients that do not read sooner."""

import sys

from dialog_engine.http import server
from dialog_engine.main import main

if __name__ == "__main__":
    server.FROZEN_SECONDS = float(sys.argv[1])
    main()
