"""What a server announces by itself: that its lists have changed, and that resources were updated.

Servers of 2026-07-28 and later announce to whom listens; earlier ones announce lists to everybody, and a resource to
whom has subscribed to it. The transports pass on the updates of resources themselves (`TransportListener.updated`).
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from mcp import Client, MCPError
from mcp import types as sdk
from mcp.client.subscriptions import SubscriptionLost
from mcp.types import METHOD_NOT_FOUND
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from plugins_mcp.mcp.watched import Watched

SUBSCRIBE_TIMEOUT_SECONDS = 30.0
RESUBSCRIBE_SECONDS = (1.0, 30.0)
"""The first and the longest pause before a broken subscription is opened again."""
ONE_SECONDS = 5.0
"""How long an earlier server may take to answer one subscription: the others wait for it."""
LOOK_SECONDS = 60.0
"""How often it is looked which resources are not wanted any more."""


async def follow_changes(client: Client, changed: Callable[[], None], watched: Watched) -> None:
    """Call `changed` for each change of a list, and subscribe to the resources that are `watched`. Runs until
    cancelled, and returns when the server takes no subscriptions."""
    resources = client.server_capabilities.resources
    modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
    async with asyncio.TaskGroup() as group:
        if modern:
            group.create_task(_follow_lists(client, changed))
        if resources is not None and resources.subscribe:
            group.create_task(_follow_resources(client, watched, _listened if modern else _subscribed))


async def _follow_lists(client: Client, changed: Callable[[], None]) -> None:
    has = client.server_capabilities
    delay, longest = RESUBSCRIBE_SECONDS
    while True:
        try:
            async with (
                asyncio.timeout(SUBSCRIBE_TIMEOUT_SECONDS) as acknowledgement,
                client.listen(
                    tools_list_changed=True,
                    resources_list_changed=has.resources is not None,
                    prompts_list_changed=has.prompts is not None,
                ) as subscription,
            ):
                acknowledgement.reschedule(None)
                delay = RESUBSCRIBE_SECONDS[0]
                changed()  # a change between the listing and this subscription is not announced
                async for _ in subscription:
                    changed()
        except MCPError as error:
            if error.code == METHOD_NOT_FOUND:
                return
        except (SubscriptionLost, TimeoutError):
            pass
        changed()  # changes during the gap are not replayed, and the server may be gone
        await asyncio.sleep(delay)
        delay = min(delay * 2, longest)


async def _follow_resources(
    client: Client, watched: Watched, keep: Callable[[Client, Watched], Coroutine[Any, Any, None]]
) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(watched.report())
        await keep(client, watched)


async def _listened(client: Client, watched: Watched) -> None:
    """Listen for what is watched. When that changes, the next subscription is open before the last one is closed."""
    delay, longest = RESUBSCRIBE_SECONDS
    anew = True
    last = None
    async with asyncio.TaskGroup() as group:
        while True:
            wanted = watched.begin()
            answered = asyncio.Event()
            listening = group.create_task(_listen(client, wanted, answered))
            await answered.wait()
            if last is not None:
                last.cancel()
            last = listening
            if not listening.done():
                watched.subscribed(wanted, anew=anew)
                anew = False
                await _until_others_are_wanted(watched, wanted, listening)
            if listening.done():
                anew = True
                await asyncio.sleep(delay)
                delay = min(delay * 2, longest)
            else:
                delay = RESUBSCRIBE_SECONDS[0]


async def _listen(client: Client, wanted: frozenset[str], answered: asyncio.Event) -> None:
    """Runs until the subscription ends. `answered` is set once it stands, or there is none."""
    try:
        if not wanted:
            answered.set()
            await asyncio.Future()
        async with (
            asyncio.timeout(SUBSCRIBE_TIMEOUT_SECONDS) as acknowledgement,
            client.listen(resource_subscriptions=sorted(wanted)) as subscription,
        ):
            acknowledgement.reschedule(None)
            answered.set()
            async for _ in subscription:
                pass  # the transport has passed on what there was
    except (MCPError, SubscriptionLost, TimeoutError):
        pass
    finally:
        answered.set()


async def _until_others_are_wanted(watched: Watched, wanted: frozenset[str], listening: asyncio.Task[None]) -> None:
    """Return when other resources are watched, or the subscription has ended."""
    while not listening.done():
        change = asyncio.create_task(watched.changed.wait())
        try:
            await asyncio.wait({listening, change}, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()
        if watched.begin() != wanted:
            return


async def _subscribed(client: Client, watched: Watched) -> None:
    """Subscribe to each resource that is watched, and end the subscriptions to others."""
    held: frozenset[str] | None = None
    while True:
        wanted = watched.begin()
        for uri in (held or frozenset()) - wanted:
            await _ask(client, sdk.UnsubscribeRequest(params=sdk.UnsubscribeRequestParams(uri=uri)))
        for uri in wanted - (held or frozenset()):
            await _ask(client, sdk.SubscribeRequest(params=sdk.SubscribeRequestParams(uri=uri)))
        watched.subscribed(wanted, anew=held is None)
        held = wanted
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await watched.changed.wait()


async def _ask(client: Client, request: sdk.SubscribeRequest | sdk.UnsubscribeRequest) -> None:
    """A resource that cannot be subscribed to is not watched, and is no error: it can be read."""
    with suppress(MCPError, TimeoutError, ValueError):
        async with asyncio.timeout(ONE_SECONDS):
            await client.session.send_request(request, sdk.EmptyResult)
