"""Builds the engine, owns its parts, and shuts them down."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from functools import cache, partial

from fastapi import APIRouter, FastAPI

from callstream_runtime.loops import kept_running
from callstream_runtime.version import __version__
from dialog_engine.chat.ports import Credentials
from dialog_engine.chat.read_resources import show
from dialog_engine.chat.requests import run_forgetting
from dialog_engine.facades import large_bodies
from dialog_engine.facades.ai_sdk import routes as ai_sdk
from dialog_engine.facades.chat_completions import routes as chat_completions
from dialog_engine.facades.conversations import routes as conversations
from dialog_engine.facades.openai.errors import with_error
from dialog_engine.facades.openai.objects import PATHS as OPENAI_PATHS
from dialog_engine.facades.responses import routes as responses
from dialog_engine.facades.responses import stored as stored_responses
from dialog_engine.http.app import State, build_routes, create_app, facade
from dialog_engine.http.requests import MAX_BODY_BYTES
from dialog_engine.http.services import Services
from dialog_engine.http.streams import Streams
from dialog_engine.observe.gauges import StoreGauges
from dialog_engine.peers.control import ControlListener
from dialog_engine.personal_data.retention import Retention, run_retention
from dialog_engine.settings import Settings
from dialog_engine.storage.sealed import follow_all_sealed
from dialog_engine.wiring.base import open_base
from dialog_engine.wiring.calls import calls_of
from dialog_engine.wiring.chat import Chat, open_chat
from dialog_engine.wiring.identity import identity_of
from dialog_engine.wiring.services import services_of
from dialog_engine.wiring.times import EngineTimes


def build_app(settings: Settings, closing: asyncio.Event, times: EngineTimes = EngineTimes()) -> FastAPI:
    """The ASGI application, whose lifespan builds and shuts down the engine.

    Set `closing` to shut down: running turns get their grace period, and then event streams end.

    Raises:
        ConfigurationError: a file of keys cannot be used; the text says why.
    """

    identity = identity_of(settings, times.provider_now)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[State]:
        await build_routes(app)
        async with contextlib.AsyncExitStack() as stack:
            if identity.close:
                stack.push_async_callback(identity.close)
            engine = run_engine(settings, closing, identity.credentials, times)
            yield {"services": await stack.enter_async_context(engine)}

    return create_app(
        lifespan,
        identity.admission,
        identity.routers,
        facades=facades(),
        error_forms={ai_sdk.PATH: ai_sdk.as_sentence, **dict.fromkeys(OPENAI_PATHS, with_error)},
        version=__version__,
        loopback_only=not settings.identity.needs_sign_in,
        cors_origins=settings.http.cors_origins,
        # A character is twelve bytes of JSON at most: a pair of \u escapes.
        max_body_bytes=max(MAX_BODY_BYTES, 12 * settings.limits.max_message_chars + 1000),
        larger_bodies=dict.fromkeys(
            (
                chat_completions.PATH,
                ai_sdk.CHAT,
                responses.PATH,
                conversations.PATH,
                f"{conversations.PATH}/",
            ),
            large_bodies.MAX_BYTES,
        ),
    )


@cache
def facades() -> APIRouter:
    """The routes of other protocols: the same objects for every application, as those of its own."""
    return facade(
        ai_sdk.router,
        chat_completions.router,
        responses.router,
        stored_responses.router,
        conversations.router,
    )


@contextlib.asynccontextmanager
async def run_engine(
    settings: Settings, closing: asyncio.Event, credentials: Credentials, times: EngineTimes = EngineTimes()
) -> AsyncGenerator[Services]:
    """A running engine, until `closing` is set.

    Raises:
        ConfigurationError, StorageUnavailableError: it cannot start; the text says why.
    """
    async with contextlib.AsyncExitStack() as stack:
        base = await open_base(stack, settings, times)
        calls = calls_of(base)
        chat = await open_chat(stack, base, calls, credentials)
        turns, pending = chat.turns, chat.pending
        kept = Retention.of(settings.store.retention_rules, settings.store.stateless_ttl)

        def decided() -> None:
            pending.wake()
            chat.questions.wake()

        listener = ControlListener(
            base.connections.control,
            base.keys,
            turns.stop,
            decided,
            turns.queue.wake,
            chat.feed.announce,
            chat.left.asked,
            chat.left.answered,
        )
        loops = [
            calls.watch.run,
            calls.ended.run,
            calls.mailbox.run,
            calls.relay.run,
            calls.blocked.run,
            calls.large_store.run,
        ]
        loops += [
            chat.consumption.run,
            base.subjects.run,
            chat.personal_data.run,
            chat.logs.run,
            chat.feed.run,
            partial(run_forgetting, chat.requests),
            partial(calls.updates.run, partial(show, turns), chat.feed.resource_updated),
            pending.run,
            base.releases.run,
            turns.check_credentials,
            chat.left.run,
            partial(turns.queue.run, turns.begin_next),
            chat.parked.run,
            chat.held.run,
            listener.run,
            base.facts.observe_loop,
            *([calls.catalog.run] if settings.tools.enable_mcp else []),
            base.chain.run,
            *([partial(follow_all_sealed, base.engine.database, base.cipher)] if base.cipher.active else []),
            partial(run_retention, kept, chat.erasures, base.facts.retention_passed),
            *([partial(base.chain.run_retention, days)] if (days := settings.store.audit_retention_days) else []),
        ]
        # After the turns, which leave the last of both.
        stack.push_async_callback(chat.consumption.close)
        stack.push_async_callback(chat.control.close)
        await stack.enter_async_context(kept_running(*loops))
        await calls.watch.ask()
        if calls.watch.available and settings.tools.enable_mcp:
            await calls.catalog.look()

        await chat.ownership.start()
        await stack.enter_async_context(kept_running(chat.ownership.run))
        grace_seconds = settings.http.shutdown_grace_seconds
        await stack.enter_async_context(_left_when(closing, chat, grace_seconds))
        streams = Streams(settings.http.stream_ping_seconds, base.facts.client_dropped, times.streams)
        await stack.enter_async_context(kept_running(streams.check))
        store_gauges = StoreGauges(
            base.outbox, chat.erasures, chat.waiting, chat.parked_store, base.chain, base.metrics
        )
        stack.push_async_callback(store_gauges.close)
        yield services_of(base, calls, chat, credentials, streams, store_gauges)


@contextlib.asynccontextmanager
async def _left_when(closing: asyncio.Event, chat: Chat, grace_seconds: float) -> AsyncGenerator[None]:
    """When `closing` is set, or at the end of the block, turns get their grace period.

    Other engines adopt the rest, and readers must ask there.
    """

    async def leave() -> None:
        await closing.wait()
        chat.ownership.retire()
        await chat.turns.close(grace_seconds)
        await chat.ownership.release()
        chat.logs.release_readers()
        chat.feed.release_readers()
        chat.turns.queue.release_followers()

    leaving = asyncio.create_task(leave(), name="leave")
    try:
        yield
    finally:
        closing.set()
        await leaving
