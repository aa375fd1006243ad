"""Puts the engine together: builds, owns and unwinds everything, in one place."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from importlib.metadata import version

from fastapi import FastAPI
from redis.asyncio import Redis

from dialog_engine.chat.approvals import OwnDecisions, SharedApprovals
from dialog_engine.chat.facts import DEFAULT_ROUTES, EVENT_TYPES
from dialog_engine.chat.imports import Imports
from dialog_engine.chat.service import ChatService, Memory
from dialog_engine.chat.shared_archive import SharedArchive, SharedSessions
from dialog_engine.chat.shared_turns import SharedTurns
from dialog_engine.chat.takeover import Takeover
from dialog_engine.chat.turns import RunningTurns
from dialog_engine.config import Settings
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.http.app import State, create_app
from dialog_engine.http.auth import Authenticator
from dialog_engine.http.limits import MAX_BODY_BYTES
from dialog_engine.http.services import About, Readiness, Services
from dialog_engine.llm.openai_client import OpenAIChatClient
from dialog_engine.observe.metrics import Metrics
from dialog_engine.observe.observed import ObservedLogs, observed_llm
from dialog_engine.storage.approvals import SqliteApprovals
from dialog_engine.storage.archive import SqliteArchive, SqliteSessions
from dialog_engine.storage.calls import SqliteCalls
from dialog_engine.storage.copies import SqliteCopies
from dialog_engine.storage.database import Database, open_database
from dialog_engine.storage.journal import SqliteJournal
from dialog_engine.storage.meta import engine_id
from dialog_engine.storage.outbox import SqliteOutbox
from dialog_engine.storage.turns import SqliteTurns
from dialog_engine.streams.bell import Bell
from dialog_engine.streams.catalogue import CatalogueReader, DisabledTools
from dialog_engine.streams.executor import CallExecutor
from dialog_engine.streams.handover import RedisHandover
from dialog_engine.streams.journal import SharedJournal
from dialog_engine.streams.mailbox import BLOCK_SECONDS, Mailbox
from dialog_engine.streams.relay import Relay, check_routes
from dialog_engine.streams.runs import RedisRuns
from dialog_engine.streams.shared_first import SharedFirstLedger
from dialog_engine.streams.turn_logs import RedisTurnLogs
from dialog_engine.streams.watch import RedisWatch
from dialog_engine.tool_calls.desk import ApprovalDesk
from dialog_engine.tool_calls.directory import ToolDirectory
from dialog_engine.tool_calls.enhance import enhance
from dialog_engine.tool_calls.pipeline import standard_pipeline
from dialog_engine.tool_calls.ports import ApprovalStore, StreamChat, ToolCalls
from dialog_engine.tool_calls.rounds import Rounds
from plugins_contract.announcements import LISTEN_SECONDS
from plugins_contract.backlog import read_backlog
from plugins_contract.clock import Clock, RedisClock
from plugins_contract.connections import blocking_client, command_client, is_outage
from plugins_contract.keys import GROUP, Keys
from plugins_contract.ledger import EngineLedger

log = logging.getLogger(__name__)

VERSION = version("dialog-engine")
RESTART_SECONDS = 1.0
DAY_SECONDS = 24 * 3600
SCRAPE_SECONDS = 2.0
"""How long a scrape waits for Redis; without it the engine's own numbers are told."""


def build_app(settings: Settings, closing: asyncio.Event) -> FastAPI:
    """The ASGI application; what it needs is built when it starts and unwound when it stops.

    Set `closing` when the engine shall go down: turns get their grace, and streams end.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[State]:
        async with run_engine(settings, closing) as services:
            yield {"services": services}

    return create_app(
        lifespan,
        Authenticator(settings.api_keys),
        version=VERSION,
        loopback_only=not settings.api_keys,
        # A character is twelve bytes of JSON at most: a pair of \u escapes.
        max_body_bytes=max(MAX_BODY_BYTES, 12 * settings.max_message_chars + 1000),
    )


@contextlib.asynccontextmanager
async def run_engine(settings: Settings, closing: asyncio.Event) -> AsyncGenerator[Services]:
    """A running engine, until `closing` is set.

    Raises:
        ConfigurationError, StorageUnavailableError: it cannot start; the text says why.
    """
    async with contextlib.AsyncExitStack() as stack:
        keys = Keys(settings.redis_key_prefix)
        clock = RedisClock()
        metrics = Metrics()
        redis = await _closing(stack, command_client(settings.redis_address))
        mail = await _closing(stack, blocking_client(settings.redis_address, block_seconds=BLOCK_SECONDS))
        announcements = await _closing(stack, blocking_client(settings.redis_address, block_seconds=LISTEN_SECONDS))
        bells = await _closing(stack, blocking_client(settings.redis_address, block_seconds=LISTEN_SECONDS))
        database = await stack.enter_async_context(open_database(settings.outbox_path))
        outbox = SqliteOutbox(database)
        routes = DEFAULT_ROUTES | settings.outbox_routes
        check_routes(EVENT_TYPES | await outbox.event_types(), routes)

        ledger = EngineLedger(redis, keys)
        this_engine = await engine_id(database)
        mailbox = Mailbox(mail, redis, keys, this_engine, outbox)
        watch = RedisWatch(redis, clock)
        copy_seconds = settings.session_copy_days * DAY_SECONDS
        runs = RedisRuns(redis, keys, this_engine, ttl_seconds=copy_seconds, available=lambda: watch.available)
        journal = SharedJournal(SqliteJournal(database), redis, runs)
        executor = CallExecutor(ledger, mailbox, keys, clock, default_timeout_ms=settings.mcp_request_timeout_ms)
        relay = Relay(
            outbox,
            redis,
            SharedFirstLedger(redis, keys, journal),
            keys,
            routes,
            executor.on_enqueued,
            backlog_limit=settings.max_backlog,
            subject_window=settings.subject_window,
        )
        mailbox.on_ring = relay.begun
        logs = RedisTurnLogs(redis, keys)
        catalogue = CatalogueReader(redis, announcements, keys, clock)
        tools: ToolDirectory = catalogue if settings.enable_mcp else DisabledTools()

        calls = SqliteCalls(database, relay.offer, journal.offer)
        turn_store = SqliteTurns(database, relay.offer, journal.offer)
        archive = SqliteArchive(database, calls)
        approvals = SqliteApprovals(database, relay.offer, journal.offer)
        rounds = Rounds(calls, executor, _desk(approvals, tools, executor, clock, settings, metrics))
        client = await stack.enter_async_context(contextlib.aclosing(_llm(settings)))
        service = ChatService(
            _llm_with_tools(observed_llm(client.stream_chat, metrics), tools, rounds, settings),
            turns=turn_store,
            history=archive,
            approvals=approvals,
            rounds=rounds,
            memory=Memory(settings.history_max_messages, settings.history_max_tokens),
        )
        turns = RunningTurns(service, turn_store, ObservedLogs(logs, metrics))
        local = SqliteCopies(database, mailbox.key)
        imports = Imports(runs, runs, local, journal)
        takeover = Takeover(
            turns,
            turn_store,
            engine_id=this_engine,
            runs=runs,
            shared=runs,
            local=local,
            journal=journal,
            imports=imports,
            offer=relay.offer,
            steady_for=watch.steady_for,
            note=lambda what: metrics.turns_moved.labels(what).inc(),
        )
        journal.on_moved, journal.on_forgotten = takeover.moved, takeover.forgotten
        handover = RedisHandover(redis, keys, this_engine, OwnDecisions(rounds.desk, journal), turns.runs)
        loops = [
            watch.run,
            mailbox.run,
            journal.run,
            relay.run,
            logs.run,
            takeover.run,
            handover.run,
            Bell(bells, keys, turns.stop, handover.rung).run,
        ]
        await stack.enter_async_context(_kept_running(*loops, *([catalogue.run] if settings.enable_mcp else [])))
        await watch.ask()
        if watch.available and settings.enable_mcp:
            await catalogue.look()

        async def leave() -> None:
            await takeover.release(await turns.close(settings.shutdown_grace_seconds))
            logs.let_go()

        await stack.enter_async_context(_left_when(closing, leave))
        await takeover.resume()
        yield Services(
            about=_about(settings),
            turns=SharedTurns(turns, runs, local, journal, imports),
            sessions=SharedSessions(SqliteSessions(database, journal.offer), runs, journal),
            archive=(shared := SharedArchive(archive, imports)),
            approvals=SharedApprovals(shared, OwnDecisions(rounds.desk, journal), handover),
            frames=logs,
            tools=tools,
            readiness=lambda: _readiness(database, watch, tools, outbox, settings),
            metrics=lambda: _metrics(metrics, outbox, relay, rounds.desk, watch, redis, keys),
            max_message_chars=settings.max_message_chars,
        )


def _llm(settings: Settings) -> OpenAIChatClient:
    key = settings.openai_api_key.get_secret_value() if settings.openai_api_key else None
    return OpenAIChatClient(
        settings.openai_base_url, key, settings.openai_model, read_timeout_s=settings.model_timeout_seconds
    )


def _desk(
    store: ApprovalStore, tools: ToolDirectory, calls: ToolCalls, clock: Clock, settings: Settings, metrics: Metrics
) -> ApprovalDesk:
    return ApprovalDesk(
        store,
        tools,
        calls,
        now_ms=clock.now_ms,
        timeout_seconds=settings.approval_timeout_seconds,
        note=lambda decision: metrics.approvals.labels(decision).inc(),
    )


def _llm_with_tools(llm: StreamChat, tools: ToolDirectory, rounds: Rounds, settings: Settings) -> StreamChat:
    pipeline = standard_pipeline(
        source=tools, rounds=rounds, system_prompt=settings.system_prompt, max_rounds=settings.mcp_max_tool_rounds
    )
    return enhance(llm, pipeline)


async def _closing(stack: contextlib.AsyncExitStack, redis: Redis) -> Redis:
    stack.push_async_callback(redis.aclose)
    return redis


@contextlib.asynccontextmanager
async def _left_when(closing: asyncio.Event, leave: Callable[[], Awaitable[None]]) -> AsyncGenerator[None]:
    """Call `leave` once: when `closing` is set, or at the end of the block."""

    async def leave_when_told() -> None:
        await closing.wait()
        await leave()

    leaving = asyncio.create_task(leave_when_told(), name="leave")
    try:
        yield
    finally:
        closing.set()
        await leaving


@contextlib.asynccontextmanager
async def _kept_running(*loops: Callable[[], Awaitable[None]]) -> AsyncGenerator[None]:
    """Run loops that never end; one that fails is logged and begun again."""

    async def keep(run: Callable[[], Awaitable[None]], name: str) -> None:
        while True:
            try:
                await run()
            except Exception:
                log.exception("%s failed and is begun again", name)
            await asyncio.sleep(RESTART_SECONDS)

    names = [getattr(run, "__qualname__", repr(run)) for run in loops]
    tasks = [asyncio.create_task(keep(run, name), name=name) for run, name in zip(loops, names, strict=True)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _about(settings: Settings) -> About:
    label = settings.model_label or settings.openai_model
    return About(VERSION, settings.openai_model, label, settings.model_scripted, settings.enable_mcp)


async def _readiness(
    database: Database, watch: RedisWatch, tools: ToolDirectory, outbox: SqliteOutbox, settings: Settings
) -> Readiness:
    try:
        await database.check()
        waiting, oldest_ms = await outbox.backlog()
        storage = "ok"
    except StorageUnavailableError as error:
        waiting, oldest_ms, storage = 0, 0, str(error)
    workers = tools.workers if settings.enable_mcp else None
    parts = {
        "storage": storage,
        "redis": "ok" if watch.available else "unavailable",
        "workers": workers,
        "tools": len(tools.tools()),
        "outbox": {"waiting": waiting, "oldestMs": oldest_ms},
    }
    return Readiness(storage == "ok", not watch.available or workers == 0, parts)


async def _metrics(
    metrics: Metrics,
    outbox: SqliteOutbox,
    relay: Relay,
    desk: ApprovalDesk,
    watch: RedisWatch,
    redis: Redis,
    keys: Keys,
) -> bytes:
    """The metrics, with what is measured at the time of the scrape."""
    with contextlib.suppress(StorageUnavailableError):
        waiting, oldest_ms = await outbox.backlog()
        metrics.outbox_rows.set(waiting)
        metrics.outbox_oldest.set(oldest_ms / 1000)
    metrics.calls_held.set(relay.held)
    metrics.approvals_waiting.set(desk.waiting)
    metrics.redis_up.set(watch.available)
    try:
        async with asyncio.timeout(SCRAPE_SECONDS):
            backlog = await read_backlog(redis, keys)
    except Exception as error:
        if not is_outage(error):
            log.exception("the request stream cannot be measured")
        return metrics.text()
    metrics.lag.labels(keys.requests, GROUP).set(backlog.lag)
    metrics.pending.labels(keys.requests, GROUP).set(backlog.pending)
    metrics.oldest_pending.labels(keys.requests, GROUP).set(backlog.oldest_pending_seconds)
    return metrics.text()
