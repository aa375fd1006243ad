"""Opens the connection to a server by its transport."""

import asyncio
from contextlib import AbstractAsyncContextManager
from importlib import import_module

from plugins_mcp.mcp.dispatcher import Connection, TransportListener
from plugins_mcp.mcp.spec import ServerSpec
from plugins_mcp.mcp.stdio import ChildDiagnostics, open_child
from plugins_mcp.mcp.transport_options import Stdio

NOISY_LOGGERS = ("httpx2", "mcp")
"""Below WARNING these loggers write addresses with their keys, session ids and contents: `main` sets WARNING."""


async def transport_to(
    spec: ServerSpec, child: ChildDiagnostics, listener: TransportListener
) -> AbstractAsyncContextManager[Connection]:
    """The connection to a server, which the context opens and closes. `child` takes what is known of a child process.

    The context raises OSError when a child process cannot be started. Other failures come with the first request.
    """
    target = spec.transport
    if isinstance(target, Stdio):
        return open_child(target, child, spec, listener)
    # The imports for HTTP take 100 ms.
    http = await asyncio.to_thread(import_module, "plugins_mcp.mcp.http_streams")
    return http.open_http(target, listener)
