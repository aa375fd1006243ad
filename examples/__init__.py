"""Two programs to try Callstream with, offline and without a key: a scripted model and an MCP server of demo tools."""

import contextlib
import socket
import sys

import uvicorn
from starlette.types import ASGIApp


def serve(app: ASGIApp, *, host: str, port: int, path: str, label: str) -> None:
    """Serve `app` until a signal ends the process; `port` 0 takes a free one.

    The socket listens before the line with its URL is printed, so a reader of that line can connect at once.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        sys.exit(f"{label}: cannot listen on {host}:{port}: {error.strerror or error}")
    shown_host = f"[{host}]" if family is socket.AF_INET6 else host
    print(f"{label} on http://{shown_host}:{listener.getsockname()[1]}{path}", flush=True)
    # A demo that is stopped must not wait for streams that run for minutes.
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
