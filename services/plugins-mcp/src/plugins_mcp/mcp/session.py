"""One MCP session with one server, from the handshake to its end."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from importlib import import_module
from typing import Any, Protocol, TypeVar, cast

from mcp import Client, ClientSession, MCPError
from mcp import types as sdk
from mcp.client import IncomingMessage
from mcp.shared.dispatcher import ProgressFnT
from mcp.types import METHOD_NOT_FOUND, RequestParamsMeta
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from plugins_contract.catalog import Quarantined
from plugins_contract.outcomes import CallProgress
from plugins_contract.questions import NextRound
from plugins_mcp.mcp.calls import (
    Answered,
    CallResult,
    Rejected,
    SendState,
    call_in_rounds,
    current_call,
    valid_progress,
)
from plugins_mcp.mcp.content import bound_blocks
from plugins_mcp.mcp.dialogue import OwnQuestions
from plugins_mcp.mcp.dispatcher import Connection, direct_session
from plugins_mcp.mcp.error_classification import classify_error, describe_error
from plugins_mcp.mcp.listing import (
    BOUNDED,
    LEFT_OUT,
    LISTS,
    MAX_CATALOG_BYTES,
    Listing,
    bound_introduction,
    bound_page,
    remove_malformed_tools,
)
from plugins_mcp.mcp.questions import asked, cannot_be_asked, input_responses, not_visited
from plugins_mcp.mcp.reads import read
from plugins_mcp.mcp.spec import ServerSpec
from plugins_mcp.mcp.stdio import ChildDiagnostics, open_child
from plugins_mcp.mcp.subscriptions import follow_changes
from plugins_mcp.mcp.transport_options import Stdio
from plugins_mcp.mcp.watched import Watched

log = logging.getLogger(__name__)

NOISY_LOGGERS = ("httpx2", "mcp")
"""Below WARNING these loggers write addresses with their keys, session ids and contents: `main` sets WARNING."""
MAX_PAGES = 100

_CLIENT_INFO = sdk.Implementation(name="callstream", version="1")
_LIST_CHANGES = (
    sdk.ToolListChangedNotification,
    sdk.ResourceListChangedNotification,
    sdk.PromptListChangedNotification,
)


class _Page(Protocol):
    @property
    def next_cursor(self) -> str | None: ...


P = TypeVar("P", bound=_Page)


class Session:
    """One session. The owner opens and closes it; in between any task may call tools.

    `changed` is called when the server announces another listing. `ended` is set once the session is lost: the owner
    must then close it. Both happen while messages are read. `idle` is set while no call is in progress. `watched` are
    the resources whose updates are wanted.
    """

    client: Client
    """The SDK's client, once the session is open."""

    def __init__(
        self, spec: ServerSpec, mode: str, child: ChildDiagnostics, changed: Callable[[], None], watched: Watched
    ) -> None:
        self.ended = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self._direct: ClientSession | None = None
        """Takes the listings and calls in place of `client`, unless the server is remote and keeps sessions."""
        self._spec = spec
        self._mode = mode
        self._child = child
        self._changed = changed
        self._watched = watched
        self._questions = OwnQuestions(spec)
        self._malformed: list[Quarantined] = []
        self._listed = 0
        """About how many characters all pages of all listings had."""

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        """Connect, negotiate, and close at the end of the context."""
        async with AsyncExitStack() as stack:
            connection = await stack.enter_async_context(await self._transport())
            client = Client(
                nullcontext(connection.streams),
                mode=self._mode,
                cache=None,
                message_handler=self._on_message,
                elicitation_callback=self._questions.ask if self._spec.asks else None,
                client_info=_CLIENT_INFO,
            )
            self.client = await stack.enter_async_context(client)
            negotiated = client.session.discover_result or client.session.initialize_result
            if negotiated is not None and (dispatcher := connection.direct(negotiated)) is not None:
                direct = direct_session(dispatcher, negotiated, _CLIENT_INFO)
                self._direct = await stack.enter_async_context(direct)
            stack.enter_context(self._watched.in_session(client.server_capabilities.resources))
            yield

    async def _transport(self) -> AbstractAsyncContextManager[Connection]:
        target = self._spec.transport
        if isinstance(target, Stdio):
            return open_child(target, self._child, self._spec, self)
        # The imports for HTTP take 100 ms.
        http = await asyncio.to_thread(import_module, "plugins_mcp.mcp.http_streams")
        return http.open_http(target, self)

    def lost(self) -> None:
        """The session has ended."""
        self.ended.set()

    async def result(self, result: dict[str, Any]) -> None:
        """Remove what is not used, malformed, or beyond a limit, before the SDK makes objects of it."""
        bound_blocks(result)
        if not result.keys() & BOUNDED:
            return  # the answer of a call
        bound_introduction(result)
        self._listed += await asyncio.to_thread(bound_page, result) if result.keys() & LISTS else 0
        if "tools" in result:
            self._malformed += await asyncio.to_thread(remove_malformed_tools, result)

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        send_state: SendState,
        on_progress: Callable[[CallProgress], None],
        meta: dict[str, Any] | None,
    ) -> CallResult:
        """Call a tool once. `send_state` is filled in also when this is cancelled."""
        finished = False

        async def report(progress: float, total: float | None, message: str | None) -> None:
            if not finished and (valid := valid_progress(progress, total, message)):
                on_progress(valid)

        modern = self.client.protocol_version in MODERN_PROTOCOL_VERSIONS
        if not modern and (refused := not_visited(send_state.next_round)):
            return refused
        token = current_call.set(send_state)
        self._questions.calls.add(send_state)
        self.idle.clear()
        try:
            fields = cast("RequestParamsMeta | None", meta)
            if send_state.kind:
                result = await read(
                    self._direct or self.client.session, send_state.kind, tool, arguments, fields, self._watched
                )
            else:
                brings = send_state.next_round if modern else None
                result = await self._call_tool(tool, arguments, report, fields, brings)
            if isinstance(result, sdk.CallToolResult):
                return _unless_asked_in_vain(Answered(result), send_state)
            return asked(result, send_state, self._spec.options.addresses)
        except (MCPError, ValidationError) as error:
            if not modern and (wanted := self._questions.wanted_first(error, send_state)) is not None:
                return wanted
            return _unless_asked_in_vain(classify_error(error, send_state, lost=self.ended.is_set()), send_state)
        except Exception as error:
            log.exception("MCP server %r: internal error in a call of %r", self._spec.name, tool)
            return classify_error(error, send_state, lost=self.ended.is_set())
        finally:
            finished = True
            current_call.reset(token)
            self._questions.calls.discard(send_state)
            if not self._questions.calls:
                self.idle.set()

    async def _call_tool(
        self,
        tool: str,
        arguments: dict[str, Any],
        report: ProgressFnT,
        meta: RequestParamsMeta | None,
        brings: NextRound | None,
    ) -> sdk.CallToolResult | sdk.InputRequiredResult:
        """The result of a call. Raises the errors of the SDK."""
        if self._direct is None:
            return await self.client.call_tool(tool, arguments, progress_callback=report, meta=meta)
        direct, again = self._direct, self._tools
        if brings is None:
            return await call_in_rounds(direct, tool, arguments, report, meta, list_again=again)
        responses = input_responses(brings.responses)
        return await call_in_rounds(
            direct, tool, arguments, report, meta, list_again=again, state=brings.state, responses=responses
        )

    async def list_all(self) -> Listing:
        """List the server's tools, resources and prompts.

        Raises:
            MCPError, ValidationError: the tools cannot be listed. Resources or prompts that cannot are left empty.
        """
        client, has = self.client, self.client.server_capabilities
        self._malformed = []
        tools = await self._tools()
        resources: list[sdk.ListResourcesResult] = []
        templates: list[sdk.ListResourceTemplatesResult] = []
        prompts: list[sdk.ListPromptsResult] = []
        if has.resources is not None:
            resources = await self._optional(lambda cursor: client.list_resources(cursor=cursor))
            templates = await self._optional(lambda cursor: client.list_resource_templates(cursor=cursor))
        if has.prompts is not None:
            prompts = await self._optional(lambda cursor: client.list_prompts(cursor=cursor))
        return Listing(
            info=client.server_info,
            instructions=client.instructions,
            tools=tuple(tool for page in tools for tool in page.tools),
            malformed=tuple(self._malformed),
            resources=tuple(item for page in resources for item in page.resources),
            templates=tuple(item for page in templates for item in page.resource_templates),
            prompts=tuple(item for page in prompts for item in page.prompts),
            unread=sum((page.meta or {}).get(LEFT_OUT, 0) for page in (*resources, *templates, *prompts)),
            ttl_ms=min(
                (page.ttl_ms for page in (*tools, *resources, *templates, *prompts) if page.ttl_ms), default=None
            ),
        )

    async def subscribe(self) -> None:
        """Call `changed` for each announced change of a list, and keep the subscriptions to watched resources: see
        `follow_changes`."""
        await follow_changes(self.client, self._changed, self._watched)

    def updated(self, uri: str) -> None:
        """The server says that a resource was updated."""
        self._watched.updated(uri)

    async def _optional(self, fetch: Callable[[str | None], Awaitable[P]]) -> list[P]:
        try:
            return await self._pages(fetch)
        except (MCPError, ValueError) as error:
            log.warning(
                "MCP server %r: resources or prompts cannot be listed: %s",
                self._spec.name,
                self._spec.redact(describe_error(error)),
            )
            return []

    async def _tools(self) -> list[sdk.ListToolsResult]:
        session = self._direct or self.client.session
        try:
            return await self._pages(
                lambda cursor: session.list_tools(params=sdk.PaginatedRequestParams(cursor=cursor))
            )
        except MCPError as error:
            if error.code == METHOD_NOT_FOUND and self.client.server_capabilities.tools is None:
                return []  # a server with resources or prompts only
            raise

    async def _pages(self, fetch: Callable[[str | None], Awaitable[P]]) -> list[P]:
        most, pages = self._listed + MAX_CATALOG_BYTES, [await fetch(None)]
        seen: set[str] = set()
        # A server that repeats a cursor would otherwise be listed without end.
        while (cursor := pages[-1].next_cursor) is not None and cursor not in seen:
            if len(pages) >= MAX_PAGES or self._listed > most:
                reason = f"the server lists too much: only the first {len(pages)} pages were read"
                self._malformed.append(Quarantined(tool="…", reason=reason))
                break
            seen.add(cursor)
            pages.append(await fetch(cursor))
        return pages

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, _LIST_CHANGES):
            self._changed()
        elif isinstance(message, sdk.ElicitCompleteNotification):
            self._questions.visited(message.params.elicitation_id)


def _unless_asked_in_vain(result: CallResult, send_state: SendState) -> CallResult:
    """What a call ended with; a failure after a question that nobody could be asked is explained by that."""
    failed = isinstance(result, Rejected) or (isinstance(result, Answered) and result.result.is_error)
    return cannot_be_asked() if failed and send_state.asked_in_vain else result
