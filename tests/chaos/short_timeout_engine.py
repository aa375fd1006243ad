"""`python -m tests.chaos.short_timeout_engine SECONDS`: the engine; it drops clients that read nothing for SECONDS."""

import sys

from dialog_engine.http import server
from dialog_engine.main import main

if __name__ == "__main__":
    server.FROZEN_SECONDS = float(sys.argv[1])
    main()
