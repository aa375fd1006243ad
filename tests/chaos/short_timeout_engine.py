"""`python -m tests.chaos.short_timeout_engine SECONDS`: the engine; it drops clients that read nothing for SECONDS."""

import sys

from dialog_engine.http import app, sse
from dialog_engine.main import serve

if __name__ == "__main__":
    sse.SEND_TIMEOUT_SECONDS = float(sys.argv[1])
    app.UNREAD_SECONDS = sse.SEND_TIMEOUT_SECONDS + 5
    serve()
