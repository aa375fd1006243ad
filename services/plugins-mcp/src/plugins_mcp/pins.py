"""Holds back the tools of trusted servers that are new or changed since they were accepted."""

import logging

import msgspec
from redis.asyncio import Redis

from plugins_contract.catalog import Quarantined, ServerCatalog
from plugins_contract.keys import Keys
from plugins_contract.pins import Pins, PinStore, pinned
from plugins_mcp.mcp import McpServers

log = logging.getLogger(__name__)

HELD = "{} since this server was trusted: an operator accepts it with `plugins-mcp tools accept {} {}`"


def review(catalog: ServerCatalog, pins: Pins) -> ServerCatalog:
    """The catalog without the tools that are not accepted as they are; those are quarantined."""
    offered = tuple(tool for tool in catalog.tools if pins.accepted.get(tool.tool) == pinned(tool))
    kept = {tool.tool for tool in offered}
    held = tuple(
        Quarantined(
            tool=tool.tool,
            reason=HELD.format("changed" if tool.tool in pins.accepted else "new", catalog.server, tool.tool),
        )
        for tool in catalog.tools
        if tool.tool not in kept
    )
    return msgspec.structs.replace(catalog, tools=offered, quarantined=(*catalog.quarantined, *held))


class PinKeeper:
    """Reviews the listings of trusted servers. Until its first review such a server offers and runs no tool."""

    def __init__(self, redis: Redis, keys: Keys, servers: McpServers) -> None:
        self._store = PinStore(redis, keys)
        self._servers = servers

    async def review_all(self) -> None:
        """Review what is listed now. Raises the errors of redis."""
        for server in self._servers.trusted():
            listed = server.listed
            if listed is None:
                continue
            pins = await self._store.read(listed.server)
            if not pins.accepted:
                await self._store.accept(
                    listed.server, {tool.tool: pinned(tool) for tool in listed.tools}, replace=False
                )
                pins = await self._store.read(listed.server)
            reviewed = review(listed, pins)
            server.review(listed, reviewed)
            await self._record(listed, reviewed, pins)

    async def _record(self, listed: ServerCatalog, reviewed: ServerCatalog, pins: Pins) -> None:
        offered = {tool.tool for tool in reviewed.tools}
        held = {tool.tool: pinned(tool) for tool in listed.tools if tool.tool not in offered}
        if held == pins.held:
            return
        await self._store.hold(listed.server, held, no_longer=frozenset(pins.held.keys() - held.keys()))
        for name in held:
            log.warning("MCP server %r: the tool %r is held back: it is new or changed", listed.server, name)
