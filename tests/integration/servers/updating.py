"""A real MCP server over HTTP, in the test's process, whose resources change when the test says so."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from mcp import MCPError
from mcp import types as sdk
from mcp.server.lowlevel import Server
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated

from deploy.local.ports import free_port
from tests.support.waiting import wait_until

PAGE = 500
"""Resources of one page of its list."""


class UpdatingServer:
    """Its resources are `texts`. Each read and list may be kept for `ttl_ms`, by whom `scope` says."""

    def __init__(self, texts: dict[str, str], *, ttl_ms: int = 0, scope: Any = "private") -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.texts = texts
        self.ttl_ms = ttl_ms
        self.scope = scope
        self.reads: Counter[str] = Counter()
        self.lists = 0
        self.listening: list[set[str]] = []
        """What each open subscription of 2026-07-28 is for."""
        self.subscribed: dict[str, ServerSession] = {}
        """Subscriptions of earlier versions."""
        self.asked: Counter[str] = Counter()
        """How often there was a request for the updates of a resource."""
        self.answers = asyncio.Event()
        """Reads are answered while it is set."""
        self.answers.set()
        self.on_read: Callable[[], None] = lambda: None
        self._bus = InMemorySubscriptionBus()

    @property
    def watched(self) -> set[str]:
        return {*self.subscribed}.union(*self.listening)

    async def update(self, *uris: str) -> None:
        for uri in uris:
            await self._bus.publish(ResourceUpdated(uri=uri))
            if session := self.subscribed.get(uri):
                await session.send_resource_updated(uri)

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator["UpdatingServer"]:
        """For as long as the block."""
        app = self._server().streamable_http_app()
        server = uvicorn.Server(uvicorn.Config(app, port=self.port, log_level="error", timeout_graceful_shutdown=0))
        task = asyncio.create_task(server.serve())
        await wait_until(lambda: server.started, what="the MCP server")
        try:
            yield self
        finally:
            server.should_exit = True
            await task
            self.listening.clear()
            self.subscribed.clear()

    def _server(self) -> Server[Any]:
        handler = ListenHandler(self._bus)

        async def listen(ctx: Any, params: sdk.SubscriptionsListenRequestParams) -> sdk.SubscriptionsListenResult:
            wanted = {*(params.notifications.resource_subscriptions or ())}
            self.asked.update(wanted)
            self.listening.append(wanted)
            try:
                return await handler(ctx, params)
            finally:
                if wanted in self.listening:
                    self.listening.remove(wanted)

        async def subscribe(ctx: Any, params: sdk.SubscribeRequestParams) -> sdk.EmptyResult:
            self.asked[params.uri] += 1
            self.subscribed[params.uri] = ctx.session
            return sdk.EmptyResult()

        async def unsubscribe(_: Any, params: sdk.UnsubscribeRequestParams) -> sdk.EmptyResult:
            self.subscribed.pop(params.uri, None)
            return sdk.EmptyResult()

        async def list_resources(_: Any, params: sdk.PaginatedRequestParams | None) -> sdk.ListResourcesResult:
            self.lists += 1
            start = int((params and params.cursor) or 0)
            end = start + PAGE
            return sdk.ListResourcesResult(
                resources=[sdk.Resource(uri=uri, name=uri) for uri in [*self.texts][start:end]],
                next_cursor=str(end) if end < len(self.texts) else None,
                ttl_ms=self.ttl_ms,
                cache_scope=self.scope,
            )

        async def read(_: Any, params: sdk.ReadResourceRequestParams) -> sdk.ReadResourceResult:
            self.reads[params.uri] += 1
            self.on_read()
            await self.answers.wait()
            if params.uri not in self.texts:
                raise MCPError(sdk.INVALID_PARAMS, "unknown resource")
            content = sdk.TextResourceContents(uri=params.uri, text=self.texts[params.uri])
            return sdk.ReadResourceResult(contents=[content], ttl_ms=self.ttl_ms, cache_scope=self.scope)

        return Server(
            "updating",
            on_list_resources=list_resources,
            on_read_resource=read,
            on_subscribe_resource=subscribe,
            on_unsubscribe_resource=unsubscribe,
            on_subscriptions_listen=listen,
        )
