"""How the engine is served: what Uvicorn must be told about streams that last, and about clients that do not read."""

import asyncio
import logging
import socket
import struct
from collections.abc import Mapping
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dialog_engine.http.sse import Afterwards

log = logging.getLogger(__name__)

FROZEN_SECONDS = 20.0
"""How long a client may leave what is sent to it unread before it is dropped. It can come back and go on."""
UNSENT_BYTES = 8_192
"""How much may wait to be sent to a client, in this process and once more in the kernel, before writers wait."""
CUT_SECONDS = 5.0
"""How long streams may take to end when all turns have ended or were left; then they are cut."""
_AT_ONCE = struct.pack("ii", 1, 0)


class Connection(HttpToolsProtocol):
    """A client's connection. One whose other end does not read costs little, and is dropped after a while."""

    _frozen: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, app_state: Mapping[str, Any], **kwargs: Any) -> None:
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Each request's state has it. A stream that waited for `http.disconnect` would need a task for that.
        super().__init__(*args, app_state={**app_state, "client_gone": self._gone}, **kwargs)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Bound what waits for this client."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=UNSENT_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended, in whatever way."""
        self._gone.set_result(None)
        self._thawed()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not read as fast as it is written to."""
        super().pause_writing()
        self._frozen = self._frozen or self.loop.call_later(FROZEN_SECONDS, self.drop)

    def resume_writing(self) -> None:
        """It has read."""
        self._thawed()
        super().resume_writing()

    def _thawed(self) -> None:
        if self._frozen is not None:
            self._frozen.cancel()
            self._frozen = None

    def drop(self) -> None:
        """Give the client up: nothing is kept for it any more."""
        log.info("a client that read nothing for %g s is dropped: %s", FROZEN_SECONDS, self.client)
        self.app_state["services"].streams.on_drop()
        # Closed in good order, what waits for the client would stay: here, and then in the kernel.
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self.transport.abort()


class Server(uvicorn.Server):
    """Sets `closing` when it is asked to end, before it waits for connections: what ends streams waits for that."""

    def __init__(self, config: uvicorn.Config, closing: asyncio.Event) -> None:
        super().__init__(config)
        self._closing = closing

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. What is set for a listening socket holds for its connections."""
        for listener in sockets or []:
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """No new connections; those that are there end by themselves, in time."""
        self._closing.set()
        await super().shutdown(sockets)


class _Config(uvicorn.Config):
    def load(self) -> None:
        super().load()
        self.loaded_app = Afterwards(self.loaded_app)  # around what Uvicorn itself puts around the application, too


def server_of(app: ASGIApp, closing: asyncio.Event, *, grace_seconds: float) -> Server:
    """A server for `app`. When it shuts down turns may go on for `grace_seconds`, and their streams a little longer."""
    config = _Config(
        app,
        http=Connection,
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=int(grace_seconds + CUT_SECONDS),
    )
    return Server(config, closing)
