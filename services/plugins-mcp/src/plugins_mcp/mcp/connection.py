"""One session with one server, from its handshake to its loss."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar, cast

from mcp import Client, MCPError
from mcp import types as sdk
from mcp.client import IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp.types import METHOD_NOT_FOUND, RequestParamsMeta
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from plugins_contract.catalog import Quarantined
from plugins_contract.outcomes import CallProgress
from plugins_mcp.mcp.calls import Answered, CallResult
from plugins_mcp.mcp.flight import Flight, flying
from plugins_mcp.mcp.listing import Offers, set_aside_malformed
from plugins_mcp.mcp.spec import ServerSpec
from plugins_mcp.mcp.stderr import StderrTail
from plugins_mcp.mcp.transports import open_transport
from plugins_mcp.mcp.verdict import verdict

log = logging.getLogger(__name__)

MAX_PAGES = 100
MAX_PROGRESS_CHARS = 2_000
"""Of the message of one progress notification: a channel keeps some hundreds of them for each call."""
LISTEN_ACK_SECONDS = 30.0
LISTEN_AGAIN_SECONDS = (1.0, 30.0)
"""How soon a broken subscription is opened again: at first, and at most."""

_LIST_CHANGES = (
    sdk.ToolListChangedNotification,
    sdk.ResourceListChangedNotification,
    sdk.PromptListChangedNotification,
)


class _Page(Protocol):
    @property
    def next_cursor(self) -> str | None: ...


P = TypeVar("P", bound=_Page)


class Connection:
    """A session. The owner enters and leaves `client`; anybody may call tools in between.

    `changed` is called when the server says that its offer changed. `ended` is set once the session cannot go on:
    `client` must then be left. Both happen in line with the reading of messages.
    """

    def __init__(self, spec: ServerSpec, mode: str, stderr: StderrTail, changed: Callable[[], None]) -> None:
        self.ended = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self.client = Client(
            open_transport(spec, self, stderr),
            mode=mode,
            cache=None,
            message_handler=self._heard,
            client_info=sdk.Implementation(name="callstream", version="1"),
        )
        self._name = spec.name
        self._changed = changed
        self._calls = 0
        self._malformed: list[Quarantined] = []

    def lost(self) -> None:
        """The session cannot go on."""
        self.ended.set()

    def result(self, result: dict[str, Any]) -> None:
        """Look at a result before the SDK does."""
        self._malformed += set_aside_malformed(result)

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        flight: Flight,
        on_progress: Callable[[CallProgress], None],
        meta: dict[str, Any] | None,
    ) -> CallResult:
        """Call a tool once. Facts about the call are in `flight` even when this is cancelled."""
        finished = False

        async def report(progress: float, total: float | None, message: str | None) -> None:
            if not finished and (told := _sane(progress, total, message)):
                on_progress(told)

        token = flying.set(flight)
        self._calls += 1
        self.idle.clear()
        try:
            asked = cast("RequestParamsMeta | None", meta)
            return Answered(await self.client.call_tool(tool, arguments, progress_callback=report, meta=asked))
        except (MCPError, ValidationError) as error:
            return verdict(error, flight, lost=self.ended.is_set())
        except Exception as error:
            log.exception("server %r: a call of %r ended in an unforeseen way", self._name, tool)
            return verdict(error, flight, lost=self.ended.is_set())
        finally:
            finished = True
            flying.reset(token)
            self._calls -= 1
            if not self._calls:
                self.idle.set()

    async def offers(self) -> Offers:
        """List everything that the server offers.

        Raises:
            MCPError, ValidationError: the tools cannot be listed. Without resources or prompts it goes on.
        """
        client, has = self.client, self.client.server_capabilities
        self._malformed = []
        tools = await _tools(client)
        resources: list[sdk.ListResourcesResult] = []
        templates: list[sdk.ListResourceTemplatesResult] = []
        prompts: list[sdk.ListPromptsResult] = []
        if has.resources is not None:
            resources = await self._optional(lambda cursor: client.list_resources(cursor=cursor))
            templates = await self._optional(lambda cursor: client.list_resource_templates(cursor=cursor))
        if has.prompts is not None:
            prompts = await self._optional(lambda cursor: client.list_prompts(cursor=cursor))
        return Offers(
            info=client.server_info,
            instructions=client.instructions,
            tools=tuple(tool for page in tools for tool in page.tools),
            malformed=tuple(self._malformed),
            resources=tuple(item for page in resources for item in page.resources),
            templates=tuple(item for page in templates for item in page.resource_templates),
            prompts=tuple(item for page in prompts for item in page.prompts),
        )

    async def listen(self) -> None:
        """Call `changed` when the server says so, for as long as it takes subscriptions (servers of 2026 and later).

        Older ones notify without being asked.
        """
        if self.client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return
        has = self.client.server_capabilities
        delay, longest = LISTEN_AGAIN_SECONDS
        while True:
            try:
                async with (
                    asyncio.timeout(LISTEN_ACK_SECONDS) as acknowledgement,
                    self.client.listen(
                        tools_list_changed=True,
                        resources_list_changed=has.resources is not None,
                        prompts_list_changed=has.prompts is not None,
                    ) as subscription,
                ):
                    acknowledgement.reschedule(None)
                    delay = LISTEN_AGAIN_SECONDS[0]
                    self._changed()  # what changed since the listing, and before this, is not told
                    async for _ in subscription:
                        self._changed()
            except MCPError as error:
                if error.code == METHOD_NOT_FOUND:
                    return
            except (SubscriptionLost, TimeoutError):
                pass
            self._changed()  # nothing is replayed, and the server may be gone
            await asyncio.sleep(delay)
            delay = min(delay * 2, longest)

    async def _optional(self, fetch: Callable[[str | None], Awaitable[P]]) -> list[P]:
        try:
            return await _pages(fetch)
        except (MCPError, ValueError) as error:
            log.warning("server %r: a listing failed and is left empty: %s", self._name, type(error).__name__)
            return []

    async def _heard(self, message: IncomingMessage) -> None:
        if isinstance(message, _LIST_CHANGES):
            self._changed()


def _sane(progress: float, total: float | None, message: str | None) -> CallProgress | None:
    """What a server says of how far it is, as it can travel; None when that is no number, which JSON has no word for.

    A tool that reports its output as it goes does not fill Redis with it: the message is cut.
    """
    if not math.isfinite(progress):
        return None
    if message is not None and len(message) > MAX_PROGRESS_CHARS:
        message = f"{message[: MAX_PROGRESS_CHARS - 1]}…"
    return CallProgress(progress, total if total is not None and math.isfinite(total) else None, message)


async def _tools(client: Client) -> list[sdk.ListToolsResult]:
    try:
        return await _pages(lambda cursor: client.list_tools(cursor=cursor))
    except MCPError as error:
        if error.code == METHOD_NOT_FOUND and client.server_capabilities.tools is None:
            return []  # a server of resources or prompts only
        raise


async def _pages(fetch: Callable[[str | None], Awaitable[P]]) -> list[P]:
    pages = [await fetch(None)]
    seen: set[str] = set()
    # A server that hands out the same cursor again would keep us for ever.
    while (cursor := pages[-1].next_cursor) is not None and cursor not in seen and len(pages) < MAX_PAGES:
        seen.add(cursor)
        pages.append(await fetch(cursor))
    return pages
