"""Follows the servers file: a changed one is taken over while the worker runs."""

import asyncio
import logging
from collections.abc import Callable

from callstream_runtime.watched_file import CHECK_SECONDS, stamp_of
from plugins_mcp.config import Settings
from plugins_mcp.errors import PluginsMcpError
from plugins_mcp.mcp import McpServers, ServersFile

log = logging.getLogger(__name__)


def report(configured: ServersFile) -> None:
    """Log what of a file is ignored, and which servers are not used."""
    for warning in configured.warnings:
        log.warning("%s", warning)
    for broken in configured.broken:
        level = logging.INFO if broken.disabled else logging.ERROR
        log.log(level, "MCP server %r is not used: %s", broken.name, broken.reason)


class ServersWatch:
    """Takes over each change of the file at MCP_CONFIG. Servers whose entry is unchanged keep sessions and processes.

    A file that cannot be used changes nothing, and neither does one in which the entry of a server in use is wrong:
    that is logged with the server and the field, and what was there before goes on.
    """

    def __init__(
        self,
        settings: Settings,
        read: Callable[[Settings], ServersFile],
        first: ServersFile,
        servers: McpServers,
        changed: Callable[[], None],
        *,
        check_seconds: float = CHECK_SECONDS,
    ) -> None:
        """`read` reads the configuration, whose content was `first`. `changed` is called after a change."""
        self._settings = settings
        self._read = read
        self._configured = first
        self._servers = servers
        self._changed = changed
        self._check_seconds = check_seconds
        self._stamp = self._stamp_now()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(self._check_seconds)
            if (stamp := self._stamp_now()) == self._stamp:
                continue
            self._stamp = stamp
            try:
                configured = await asyncio.to_thread(self._read, self._settings)
            except PluginsMcpError as error:
                log.error("%s. The MCP servers stay as they are", error)  # noqa: TRY400 -- the text says it all
                continue
            self._take_over(configured)

    def _stamp_now(self) -> tuple[int, int, int] | None:
        return stamp_of(self._settings.mcp_config) if self._settings.mcp_config else None

    def _take_over(self, configured: ServersFile) -> None:
        before = self._configured
        used = {spec.name for spec in before.servers}
        if wrong := [each for each in configured.broken if each.name in used and not each.disabled]:
            for each in wrong:
                log.error("MCP server %r: %s. The MCP servers stay as they are", each.name, each.reason)
            return
        if configured == before:
            return
        report(configured)
        self._servers.replace(before.servers, configured.servers, configured.broken)
        self._configured = configured
        self._changed()
        log.info("the servers file has changed: %d MCP servers are in use now", len(self._servers))
