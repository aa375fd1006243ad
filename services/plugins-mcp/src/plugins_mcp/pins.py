"""Holds back the tools of trusted servers that are new or changed since they were accepted."""

import logging

import msgspec

from callstream_runtime.clock import Clock
from plugins_contract.catalog import Quarantined, ServerCatalog
from plugins_contract.pins import PinnedTool, Pins, PinStore, pinned
from plugins_mcp.mcp import McpServers, without_trust

log = logging.getLogger(__name__)

HELD = "{} since this server was trusted: an operator accepts it with `plugins-mcp tools accept {} {}`"

NOT_PINNED = (
    "MCP server %r is trusted, and Redis has no signed record of its tools: until an operator accepts its %d tools with"
    " `plugins-mcp tools accept %s`, it is treated as a server that is not trusted"
)


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
    """Reviews the listings of trusted servers. Until its first review such a server offers and runs no tool.

    With request keys a server without any valid pin is treated as one that is not trusted: it cannot be known whether
    it is new, or somebody deleted its pins. With `accept_first_listings`, and without keys, its listing is accepted.
    """

    def __init__(
        self, store: PinStore, servers: McpServers, clock: Clock, *, accept_first_listings: bool = False
    ) -> None:
        self._store = store
        self._servers = servers
        self._clock = clock
        self._accepts_first = accept_first_listings or not store.signs
        self._seen: dict[str, dict[str, tuple[int, PinnedTool]]] = {}
        """The newest signed pins that this worker has seen, by server and tool."""

    async def review_all(self) -> None:
        """Review what is listed now. Raises `RedisUnavailable`."""
        for server in self._servers.trusted():
            listed = server.listed
            if listed is None:
                continue
            pins = await self._pins(listed.server)
            if not pins.accepted and self._accepts_first:
                accepted = {tool.tool: pinned(tool) for tool in listed.tools}
                await self._store.accept(listed.server, accepted, self._clock.now_ms())
                pins = await self._pins(listed.server)
            server.review(listed, review(listed, pins) if pins.accepted else without_trust(server.spec, listed))
            await self._record(listed, pins)

    async def _pins(self, server: str) -> Pins:
        """The pins of a server. One that is older than what was seen, or gone, is replaced by what was seen."""
        pins = await self._store.read(server)
        if not self._store.signs:
            return pins
        seen = self._seen.setdefault(server, {})
        for name, tool in pins.accepted.items():
            if pins.at_ms[name] >= seen.get(name, (0,))[0]:
                seen[name] = pins.at_ms[name], tool
        for name, (at_ms, tool) in seen.items():
            if pins.accepted.get(name) != tool:
                log.warning("MCP server %r: the accepted form of %r in Redis was replaced or deleted", server, name)
                await self._store.accept(server, {name: tool}, at_ms)
        return Pins({name: tool for name, (_, tool) in seen.items()}, pins.held, {})

    async def _record(self, listed: ServerCatalog, pins: Pins) -> None:
        now = {tool.tool: pinned(tool) for tool in listed.tools}
        held = {name: tool for name, tool in now.items() if pins.accepted.get(name) != tool}
        if held == pins.held:
            return
        no_longer = frozenset(pins.held.keys() - held.keys())
        await self._store.hold(listed.server, held, self._clock.now_ms(), no_longer=no_longer)
        if held and not pins.accepted:
            log.warning(NOT_PINNED, listed.server, len(held), listed.server)
            return
        for name in held:
            log.warning("MCP server %r: the tool %r is held back: it is new or changed", listed.server, name)
