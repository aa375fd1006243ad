"""The event loop of both services: uvloop where it is installed, with lookups of names that do not share threads."""

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING, Any

from callstream_runtime.lookups import Addresses, Lookups, Query, is_address

if TYPE_CHECKING:
    from asyncio import SelectorEventLoop as _Loop
else:
    try:
        from uvloop import Loop as _Loop
    except ImportError:  # it is not available on every platform
        from asyncio import SelectorEventLoop as _Loop


class EventLoop(_Loop):
    """Every library that connects on this loop looks names up through `Lookups`."""

    def __init__(self) -> None:
        super().__init__()
        self._lookups = Lookups(self)

    async def getaddrinfo(
        self,
        host: str | bytes | None,
        port: str | bytes | int | None,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002
        proto: int = 0,
        flags: int = 0,
    ) -> Addresses:
        """As `AbstractEventLoop.getaddrinfo`. Raises socket.gaierror, whose text has the name."""
        return await self._lookups.addresses(Query(host, port, family, type, proto, flags))

    async def create_connection(  # pyright: ignore[reportIncompatibleMethodOverride] -- asyncio has overloads
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> tuple[asyncio.Transport, Any]:
        """As `AbstractEventLoop.create_connection`. uvloop would look the name up in threads that all peers share.

        Raises:
            OSError: no address of the host can be connected to; the error is that of the last one.
        """
        if options.get("sock") is not None or is_address(host):
            return await super().create_connection(protocol_factory, host, port, **options)
        wanted = {name: options.pop(name, 0) for name in ("family", "proto", "flags")}
        if options.get("ssl") and options.get("server_hostname") is None:
            options["server_hostname"] = host
        last: OSError = socket.gaierror(socket.EAI_NONAME, f"the name {host!r} has no address")
        for *_, address in await self.getaddrinfo(host, port, type=socket.SOCK_STREAM, **wanted):
            try:
                return await super().create_connection(protocol_factory, *address[:2], **options)
            except ssl.SSLError:
                raise
            except OSError as error:
                last = error
        raise last
