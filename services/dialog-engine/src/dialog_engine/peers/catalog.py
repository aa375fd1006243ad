"""The catalog of tools, as workers publish it in Redis. The engine itself never talks to an MCP server."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from callstream_runtime.clock import Clock
from callstream_runtime.loops import follow
from callstream_runtime.redis_errors import RedisUnavailable
from dialog_engine.tool_calls.exposure.descriptions import suggestion
from dialog_engine.tool_calls.ports import ServerView, ToolDirectory
from plugins_contract.catalog import (
    HEARTBEAT_SECONDS,
    ServerCatalog,
    ServerState,
    ToolEntry,
    decode_catalog,
)
from plugins_contract.errors import ErrorCode
from plugins_contract.keys import Keys
from plugins_contract.messages import NOT_READABLE
from plugins_contract.outcomes import ToolError
from plugins_contract.sessions import SessionMode
from plugins_contract.signing import RequestKeys
from plugins_contract.trust import CatalogTrust, Judgement, digest_of
from plugins_contract.updates import ResourcesUpdated, decode_update

log = logging.getLogger(__name__)

LARGE_BYTES = 128 * 1024
"""A larger catalog is decoded in a thread."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A catalog as it was stored, and decoded."""

    data: bytes
    digest: str
    catalog: ServerCatalog


class CatalogReader(ToolDirectory):
    """Keeps a copy of the catalog. While Redis or all workers are unavailable the last copy is used: calls wait."""

    def __init__(
        self,
        redis: Redis,
        announcements: Redis,
        keys: Keys,
        clock: Clock,
        trust: CatalogTrust | None = None,
        *,
        updated: Callable[[ResourcesUpdated | None], None] = lambda update: None,
    ) -> None:
        """What `trust` does not believe is not used. Without it everything is believed. `updated` gets the updates of
        resources, which come by the same channel; None when some may have been missed."""
        self._updated = updated
        self._redis = redis
        self._announcements = announcements
        self._keys = keys
        self._clock = clock
        self._trust = trust or CatalogTrust(RequestKeys())
        self._names: list[str] = []
        self._read: dict[str, _Read] = {}
        """The last catalog of each server that was believed."""
        self._refused: dict[str, str] = {}
        self._reading = asyncio.Lock()
        self._servers: tuple[ServerView, ...] = ()
        self._tools: dict[str, ToolEntry] = {}
        self._instructions: Mapping[str, str] = {}
        self._has_resources = False
        self._changed = asyncio.Event()

    @property
    def servers(self) -> tuple[ServerView, ...]:
        return self._servers

    @property
    def workers(self) -> int:
        return max((server.workers for server in self._servers), default=0)

    @property
    def refused(self) -> int:
        """The number of servers whose entry, or a part of it, is not believed."""
        return len(self._refused)

    def tools(self) -> tuple[ToolEntry, ...]:
        return tuple(self._tools.values())

    def find(self, name: str) -> ToolEntry | ToolError:
        tool = self._tools.get(name)
        if tool is not None:
            return tool
        there = suggestion(name, sorted(self._tools), "Tools")
        return ToolError(ErrorCode.TOOL_NOT_FOUND, f"there is no tool {name[:100]!r}. {there}")

    def has_resources(self) -> bool:
        return self._has_resources

    def keeps_state(self, server: str) -> bool:
        """Whether a server keeps state for subjects or conversations, as far as it is known."""
        return any(
            each.catalog.server == server and each.catalog.session != SessionMode.SHARED for each in self._servers
        )

    def instructions(self) -> Mapping[str, str]:
        return self._instructions

    async def run(self) -> None:
        """Read the catalog at every announced change and every HEARTBEAT_SECONDS, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(
                follow(self._announcements, self._keys.control, self._receive), name="catalog announcements"
            )
            tasks.create_task(self._refresh_often(), name="catalog")

    async def look(self) -> None:
        """Read the catalog now. When it cannot be read, the last copy stays in use."""
        try:
            await self.refresh()
        except RedisUnavailable:
            pass  # `workers` and the metrics show it
        except ResponseError:
            log.exception("the catalog cannot be read")  # somebody wrote a value of another type in its place

    async def refresh(self) -> None:
        """Read the catalog now. An entry that this release cannot read is logged and left out.

        Raises:
            RedisUnavailable: Redis cannot be asked now.
        """
        async with self._reading:
            await self._refresh()

    async def _refresh(self) -> None:
        stored = await self._stored()
        if not stored:
            # Redis has lost it. Workers restore it with their next heartbeat; until then the tools stay offered.
            self._servers = tuple(_unreported(view.catalog) for view in self._servers)
            return
        views: list[ServerView] = []
        for name, fields in stored.items():
            try:
                if isinstance(fields, Exception):
                    raise fields
                if view := await self._view(name, fields):
                    views.append(view)
            except RedisUnavailable:
                raise
            except (*NOT_READABLE, ResponseError) as error:
                log.error("the catalog entry of server %r is left out: %s", name, error)  # noqa: TRY400 -- said it all
        if any(view.workers for view in views):
            # Servers that no worker reports were removed from the configuration.
            views = [view for view in views if view.workers]
        self._servers = tuple(views)
        self._read = {name: known for name, known in self._read.items() if name in stored}
        self._refused = {name: why for name, why in self._refused.items() if name in stored}
        usable = [view.catalog for view in views if view.state is not ServerState.DISABLED]
        self._has_resources = any(catalog.resources for catalog in usable)
        self._instructions = {catalog.server: catalog.instructions for catalog in usable if catalog.instructions}
        self._tools = {tool.name: tool for catalog in usable for tool in catalog.tools if tool.for_model}

    async def _stored(self) -> dict[str, dict[bytes, bytes] | Exception]:
        """The stored entry of each server, by name in order, or the error of reading it.

        Names and entries are read in one transaction: of a worker that just appears, all servers are seen or none.
        """
        names = self._names
        while True:
            pipeline = self._redis.pipeline(transaction=True)
            pipeline.smembers(self._keys.catalog)
            for name in names:
                pipeline.hgetall(self._keys.catalog_of(name))
            members, *hashes = await pipeline.execute(raise_on_error=False)
            if isinstance(members, Exception):
                raise members
            read, names = names, sorted(name for member in members if (name := _name(member)) is not None)
            if read == names:
                self._names = names
                return dict(zip(names, hashes, strict=True))

    async def _view(self, name: str, fields: dict[bytes, bytes]) -> ServerView | None:
        judged = self._trust.judge(name, fields, self._clock.now_ms())
        catalog, refused = await self._catalog(name, fields.get(b"catalog"), judged)
        self._note_refused(name, judged.refused or refused)
        if catalog is None:
            return None
        # The best state that any worker reports, and of equal ones the latest.
        known = (ServerState.READY, ServerState.FAILED)
        best = max(judged.beats, key=lambda beat: (*(beat.state is state for state in known), beat.at), default=None)
        if best is None:
            return _unreported(catalog)
        return ServerView(catalog, best.state, best.error, len(judged.beats), best.breaker, best.retry_at)

    async def _catalog(self, name: str, data: bytes | None, judged: Judgement) -> tuple[ServerCatalog | None, str]:
        """The last catalog that was believed, decoded only when it has changed; and why the stored one is not."""
        known = self._read.get(name)
        if data is not None and (known is None or known.data != data):
            read = await asyncio.to_thread(_read, data, judged) if len(data) > LARGE_BYTES else _read(data, judged)
            if read is not None:
                self._read[name] = known = read
        attested = known is not None and known.data == data and judged.attests(known.digest)
        if known is None:
            # Without a worker it is only old, and nothing says which servers are configured.
            return ServerCatalog(server=name) if judged.beats else None, judged.unattested
        return known.catalog, "" if attested else judged.unattested

    def _note_refused(self, name: str, why: str) -> None:
        if why and self._refused.get(name) != why:
            log.warning("the catalog entry of server %r in Redis is not believed: %s", name, why)
        self._refused.pop(name, None)
        if why:
            self._refused[name] = why

    async def _refresh_often(self) -> None:
        while True:
            self._changed.clear()  # first: a change that is announced during the read causes another one
            await self.look()
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                pass  # nothing was announced, or the announcement was lost

    def _receive(self, data: bytes | None) -> None:
        if data is None or b'"catalog"' in data:
            self._changed.set()
        if data is None:
            self._updated(None)
        elif update := decode_update(data):
            self._updated(update)


class DisabledTools(ToolDirectory):
    """ENABLE_MCP=false: no tool is offered, and every call is answered with DISABLED."""

    @property
    def servers(self) -> tuple[ServerView, ...]:
        return ()

    @property
    def workers(self) -> int:
        return 0

    def tools(self) -> tuple[ToolEntry, ...]:
        return ()

    def find(self, name: str) -> ToolEntry | ToolError:
        return ToolError(ErrorCode.DISABLED, "tools are switched off here (ENABLE_MCP=false)")


def _read(data: bytes, judged: Judgement) -> _Read | None:
    digest = digest_of(data)
    return _Read(data, digest, decode_catalog(data)) if judged.attests(digest) else None


def _unreported(catalog: ServerCatalog) -> ServerView:
    return ServerView(catalog, ServerState.FAILED, "no worker reports", 0)


def _name(member: bytes) -> str | None:
    """The name of a server; None, which is logged, when it is not UTF-8: no worker of ours wrote it."""
    try:
        return member.decode()
    except UnicodeDecodeError:
        log.error("the server %r in the catalog is left out: its name is not UTF-8", member)  # noqa: TRY400 -- said it all
        return None
