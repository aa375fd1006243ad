"""The console script `dialog-engine`."""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, NoReturn

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from callstream_runtime.environment import hide_environment
from callstream_runtime.garbage import tune_gc
from callstream_runtime.listening import listeners
from dialog_engine.errors import ConfigurationError, EngineError

if TYPE_CHECKING:
    from dialog_engine.config.http import HttpSettings
    from dialog_engine.wiring.times import EngineTimes

log = logging.getLogger("dialog_engine")

CANNOT_START = 2
"""Exit code for a start that needs an operator: a wrong setting, or a file or port that cannot be used."""


def main() -> None:
    """Run the command of the command line; without one, the engine."""
    if argv := sys.argv[1:]:
        from dialog_engine.operators.commands import run  # noqa: PLC0415 -- the engine does not need it

        sys.exit(run(argv))
    serve()


def serve(times: "EngineTimes | None" = None) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP. Exits with 2 and the reason on stderr when it cannot start."""
    hide_environment()  # from MCP servers of the same user
    # Importing the engine makes many objects and hardly any garbage: collections would take a seventh of the start.
    gc.disable()
    from callstream_runtime.connection_limits import ConnectionLimits  # noqa: PLC0415 -- see above
    from callstream_runtime.logs import set_up_logging  # noqa: PLC0415 -- see above
    from callstream_runtime.settings_sources import readable_by_all  # noqa: PLC0415 -- see above
    from callstream_runtime.tracing import TracingError, exported_spans  # noqa: PLC0415 -- see above
    from dialog_engine.http.app import server_of  # noqa: PLC0415 -- see above
    from dialog_engine.settings import load_settings  # noqa: PLC0415 -- see above
    from dialog_engine.wiring.engine import build_app  # noqa: PLC0415 -- see above
    from dialog_engine.wiring.times import EngineTimes  # noqa: PLC0415 -- see above

    times = times or EngineTimes()
    os.umask(0o077)  # conversations are readable by the engine's own account only
    tune_gc()
    try:
        settings = load_settings()
        # First: when another engine has the port, this one must not have touched its turns.
        sockets = [*bind(settings.http), *bind_operations(settings.http)]
        app = build_app(settings, closing := asyncio.Event(), times)
    except EngineError as error:
        _give_up(error)
    service = settings.service
    set_up_logging(service.log_level, service.log_format, subject_as=service.subject_as_logged)
    for warning in readable_by_all(settings):
        log.warning("%s", warning)
    for library in ("aiohttp", "aiosqlite", "sse_starlette"):
        logging.getLogger(library).setLevel(logging.WARNING)
    if settings.proxy_warning:
        log.warning(settings.proxy_warning)
    start = PlainStart(app)
    with ExitStack() as stack:
        for listener in sockets:
            stack.enter_context(listener)
            host, port = listener.getsockname()[:2]
            log.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)
        limits = ConnectionLimits(settings.http.max_connections, settings.http.max_connections_per_address)
        server = server_of(
            start,
            closing,
            grace_seconds=settings.http.shutdown_grace_seconds,
            limits=limits,
            forwarded_allow_ips=settings.http.forwarded_allow_ips,
            cors_origins=settings.http.cors_origins,
            times=times.streams,
        )
        # Uvicorn handles the other two. A terminal that is closed ends the engine as a supervisor does.
        signal.signal(signal.SIGHUP, _terminate)
        try:
            with exported_spans("dialog-engine"):
                server.run(sockets=sockets)
        except TracingError as error:
            _give_up(ConfigurationError(str(error)))
        except SystemExit:
            if start.failure is None:
                raise
            _give_up(start.failure)


def bind(settings: "HttpSettings") -> list[socket.socket]:
    """The sockets to listen on.

    Raises:
        ConfigurationError: the address cannot be used.
    """
    return _listeners("HOST", settings.host, "PORT", settings.port)


def bind_operations(settings: "HttpSettings") -> list[socket.socket]:
    """The sockets of OPERATIONS_PORT, if it is set. Raises ConfigurationError as `bind` does."""
    if settings.operations_port is None:
        return []
    return _listeners("OPERATIONS_HOST", settings.operations_host, "OPERATIONS_PORT", settings.operations_port)


def _listeners(host_setting: str, host: str, port_setting: str, port: int) -> list[socket.socket]:
    try:
        return listeners(host, port)
    except OSError as error:
        raise ConfigurationError(
            f"{host_setting} {host}, {port_setting} {port} cannot be listened on: {error}"
        ) from None


class PlainStart:
    """ASGI middleware: a start that fails with an EngineError logs no traceback; `failure` is the error."""

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


def _terminate(*_: object) -> None:
    signal.raise_signal(signal.SIGTERM)


def _give_up(error: EngineError) -> NoReturn:
    sys.stderr.write(f"dialog-engine cannot start:\n{error}\n")
    sys.exit(CANNOT_START)
