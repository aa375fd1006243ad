"""The console script `dialog-engine`."""

import asyncio
import logging
import socket
import sys
from typing import NoReturn

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dialog_engine.collector import calm_collector
from dialog_engine.config import Settings, load_settings
from dialog_engine.errors import ConfigurationError, EngineError
from dialog_engine.http.app import server_of
from dialog_engine.wiring import build_app

log = logging.getLogger("dialog_engine")

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
CANNOT_START = 2
"""The exit code for a start that a person must see to: a wrong setting, a file or a port that cannot be had."""


def main() -> None:
    """Serve until SIGTERM or SIGINT. Exits with 2 when it cannot start, and says why."""
    calm_collector()
    try:
        settings = load_settings()
        # Before anything else: who finds the port taken must not have touched the turns of the engine that has it.
        listener = bind(settings)
    except EngineError as error:
        _give_up(error)
    logging.basicConfig(level=settings.log_level, format=LOG_FORMAT)
    for chatty in ("aiohttp", "aiosqlite", "sse_starlette"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    closing = asyncio.Event()
    start = PlainStart(build_app(settings, closing))
    with listener:
        server = server_of(start, closing, grace_seconds=settings.shutdown_grace_seconds)
        host, port = listener.getsockname()[:2]
        log.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)
        try:
            server.run(sockets=[listener])
        except SystemExit:
            if start.failure is None:
                raise
            _give_up(start.failure)


def bind(settings: Settings) -> socket.socket:
    """The socket to listen on.

    Raises:
        ConfigurationError: the address cannot be had.
    """
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM
        )
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ConfigurationError(f"HOST {settings.host}, PORT {settings.port} cannot be listened on: {error}") from None
    return listener


class PlainStart:
    """ASGI: a start that fails for a reason the engine knows is told in its words, without a traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.failure: EngineError | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve."""
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        refusal: list[Message] = []

        async def held_back(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed":
                refusal.append(message)
            else:
                await send(message)

        try:
            await self._app(scope, receive, held_back)
        except EngineError as error:
            self.failure = error
            await send({"type": "lifespan.startup.failed", "message": ""})
        except BaseException:
            for message in refusal:
                await send(message)
            raise


def _give_up(error: EngineError) -> NoReturn:
    sys.stderr.write(f"dialog-engine cannot start:\n{error}\n")
    sys.exit(CANNOT_START)
