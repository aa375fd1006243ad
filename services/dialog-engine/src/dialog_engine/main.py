"""The console script `dialog-engine`."""

import logging
import sys

import uvicorn

from dialog_engine.config import load_settings
from dialog_engine.errors import EngineError
from dialog_engine.wiring import build_app

log = logging.getLogger("dialog_engine")

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
GRACEFUL_SECONDS = 5


def main() -> None:
    """Serve until SIGTERM or SIGINT. Exits with 2 when a setting is wrong."""
    try:
        settings = load_settings()
    except EngineError as error:
        sys.stderr.write(f"dialog-engine cannot start:\n{error}\n")
        sys.exit(2)
    logging.basicConfig(level=settings.log_level, format=LOG_FORMAT)
    for chatty in ("httpx2", "httpcore2", "sse_starlette", "openai"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    uvicorn.run(
        build_app(settings),
        host=settings.host,
        port=settings.port,
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=GRACEFUL_SECONDS,
    )
