"""Puts the engine together: builds, owns and unwinds everything, in one place."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from importlib.metadata import version

from fastapi import FastAPI
from redis.asyncio import Redis

from dialog_engine.chat.approvals import Approvals
from dialog_engine.chat.facts import DEFAULT_ROUTES, EVENT_TYPES
from dialog_engine.chat.ownership import Ownership
from dialog_engine.chat.service import ChatService, Memory
from dialog_engine.chat.turns import RunningTurns
from dialog_engine.config import Settings
from dialog_engine.http.app import State, create_app
from dialog_engine.http.auth import Authenticator
from dialog_engine.http.choices import Choices
from dialog_engine.http.limits import MAX_BODY_BYTES
from dialog_engine.http.services import About, Services
from dialog_engine.http.sse import Streams
from dialog_engine.llm.clients import Wrap, open_llm
from dialog_engine.loops import kept_running, left_when
from dialog_engine.observe.metrics import Metrics
from dialog_engine.observe.observed import ObservedLogs, observed_llm
from dialog_engine.readings import Readings, StartGate
from dialog_engine.storage.approvals import SqlApprovals
from dialog_engine.storage.archive import SqlArchive, SqlSessions
from dialog_engine.storage.calls import SqlCalls
from dialog_engine.storage.database import Database
from dialog_engine.storage.engines import SqlEngines
from dialog_engine.storage.outbox import SqlOutbox
from dialog_engine.storage.postgres import open_postgres
from dialog_engine.storage.results import SqlResults
from dialog_engine.storage.sqlite import open_sqlite
from dialog_engine.storage.turns import SqlTurns
from dialog_engine.streams.catalogue import CatalogueReader, DisabledTools
from dialog_engine.streams.control import ControlListener, ControlPublisher
from dialog_engine.streams.executor import CallExecutor
from dialog_engine.streams.holdups import Holdups
from dialog_engine.streams.mailbox import BLOCK_SECONDS, Mailbox
from dialog_engine.streams.relay import Relay
from dialog_engine.streams.routes import check_routes
from dialog_engine.streams.turn_logs import RedisTurnLogs
from dialog_engine.streams.watch import RedisWatch
from dialog_engine.tool_calls.directory import ToolDirectory
from dialog_engine.tool_calls.enhance import enhance
from dialog_engine.tool_calls.exposure import Exposure, ExposureMode
from dialog_engine.tool_calls.modes import TOOL_MODES, in_tool_modes
from dialog_engine.tool_calls.pending_approvals import PendingApprovals
from dialog_engine.tool_calls.pipeline import standard_pipeline
from dialog_engine.tool_calls.ports import StreamChat
from dialog_engine.tool_calls.quarantine import OfferedTools, Quarantine
from dialog_engine.tool_calls.read_result import ReadResult
from dialog_engine.tool_calls.rounds import Rounds
from plugins_contract.announcements import LISTEN_SECONDS
from plugins_contract.clock import RedisClock
from plugins_contract.connections import blocking_client, command_client
from plugins_contract.keys import Keys
from plugins_contract.ledger import EngineLedger
from plugins_contract.redis_address import RedisAddress

VERSION = version("dialog-engine")


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
        keys, clock, metrics = Keys(settings.redis_key_prefix), RedisClock(), Metrics()
        redis, mail, announcements, control_channel = await _connections(stack, settings.redis_address)
        database = await stack.enter_async_context(_open_store(settings))
        this_engine = await database.engine_id()
        outbox = SqlOutbox(database, this_engine)
        routes = DEFAULT_ROUTES | settings.outbox_routes
        check_routes(EVENT_TYPES | await outbox.event_types(), routes)

        ledger = EngineLedger(redis, keys)
        control = ControlPublisher(redis, keys)
        watch = RedisWatch(redis, clock)
        mailbox = Mailbox(mail, redis, keys, this_engine, outbox)
        catalogue = CatalogueReader(redis, announcements, keys, clock)
        executor = CallExecutor(
            ledger,
            mailbox,
            (holdups := Holdups(watch, catalogue)),
            keys,
            clock,
            default_timeout_ms=settings.mcp_request_timeout_ms,
        )
        relay = Relay(
            outbox,
            redis,
            ledger,
            keys,
            routes,
            executor.on_enqueued,
            backlog_limit=settings.max_backlog,
            subject_window=settings.subject_window,
        )
        mailbox.on_ring, mailbox.auditor.unmarked = relay.begun, relay.unmarked
        logs = RedisTurnLogs(redis, keys)
        quarantine = Quarantine(lambda tool, model: metrics.tools_refused.labels(tool.name, model).inc())
        tools = OfferedTools(catalogue if settings.enable_mcp else DisabledTools(), quarantine)
        exposure = Exposure(ExposureMode(settings.tool_exposure), settings.tool_budget_tokens)

        calls = SqlCalls(database, this_engine, relay.offer)
        turn_store = SqlTurns(database, this_engine, relay.offer, control.free)
        archive = SqlArchive(database, calls)
        approval_store = SqlApprovals(database, this_engine, relay.offer, keys.mailbox)
        pending = PendingApprovals(
            approval_store,
            tools,
            executor,
            now_ms=clock.now_ms,
            timeout_seconds=settings.approval_timeout_seconds,
            note=lambda decision: metrics.approvals.labels(decision).inc(),
        )
        rounds = Rounds(calls, executor, pending, settings.result_max_chars)
        llm = await stack.enter_async_context(open_llm(settings, _around_each(settings, metrics, quarantine)))
        reader = ReadResult(SqlResults(database), settings.result_max_chars)
        service = ChatService(
            _llm_with_tools(llm, tools, exposure, rounds, reader, settings),
            turns=turn_store,
            history=archive,
            approvals=approval_store,
            rounds=rounds,
            memory=Memory(settings.history_max_messages, settings.history_max_tokens),
        )
        turns = RunningTurns(service, turn_store, ObservedLogs(logs, metrics), control)
        ownership = Ownership(
            turns,
            SqlEngines(database, this_engine, keys.mailbox),
            offer=relay.offer,
            note=lambda what: metrics.turns_moved.labels(what).inc(),
        )
        listener = ControlListener(control_channel, keys, turns.stop, pending.wake, turns.queue.wake)
        loops = [watch.run, mailbox.run, relay.run, logs.run, pending.run, ownership.run, listener.run, holdups.run]
        await stack.enter_async_context(kept_running(*loops, *([catalogue.run] if settings.enable_mcp else [])))
        await watch.ask()
        if watch.available and settings.enable_mcp:
            await catalogue.look()

        leave = _leaving(turns, ownership, logs, settings.shutdown_grace_seconds)
        await stack.enter_async_context(left_when(closing, leave))
        await ownership.start()
        readings = Readings(
            database=database,
            outbox=outbox,
            relay=relay,
            approvals=pending,
            queue=turns.queue,
            streams=(streams := Streams(on_drop=metrics.clients_dropped.inc)),
            watch=watch,
            tools=tools,
            redis=redis,
            keys=keys,
            metrics=metrics,
            has_workers=settings.enable_mcp,
            gate=StartGate(settings.tools_wait_seconds),
        )
        yield Services(
            about=_about(settings),
            choices=_choices(settings),
            turns=turns,
            sessions=SqlSessions(database),
            archive=archive,
            approvals=Approvals(archive, pending, control),
            frames=logs,
            streams=streams,
            tools=tools,
            exposure=exposure,
            readiness=readings.readiness,
            metrics=readings.scrape,
            max_message_chars=settings.max_message_chars,
        )


def _open_store(settings: Settings) -> contextlib.AbstractAsyncContextManager[Database]:
    if settings.database_url is None:
        return open_sqlite(settings.outbox_path)
    return open_postgres(settings.database_url.get_secret_value(), settings.database_pool_size)


def _leaving(
    turns: RunningTurns, ownership: Ownership, logs: RedisTurnLogs, grace_seconds: float
) -> Callable[[], Awaitable[None]]:
    """Turns get their grace; what is left of them is for others, and so are their readers."""

    async def leave() -> None:
        ownership.retire()
        await turns.close(grace_seconds)
        await ownership.release()
        logs.let_go()

    return leave


def _around_each(settings: Settings, metrics: Metrics, quarantine: Quarantine) -> Wrap:
    def around(llm: StreamChat, name: str) -> StreamChat:
        guarded = quarantine.guard(observed_llm(llm, metrics, name), name)
        return in_tool_modes(guarded, settings.tool_mode, stop=settings.tool_stop_sequence, model=name)

    return around


def _llm_with_tools(
    llm: StreamChat,
    tools: ToolDirectory,
    exposure: Exposure,
    rounds: Rounds,
    reader: ReadResult,
    settings: Settings,
) -> StreamChat:
    pipeline = standard_pipeline(
        source=tools,
        exposure=exposure,
        rounds=rounds,
        system_prompt=settings.system_prompt,
        max_rounds=settings.mcp_max_tool_rounds,
        reader=reader,
    )
    return enhance(llm, pipeline)


async def _connections(stack: contextlib.AsyncExitStack, address: RedisAddress) -> tuple[Redis, Redis, Redis, Redis]:
    """For commands, and one each for what blocks: the mailbox, announcements, and the bells."""
    clients = (
        command_client(address),
        blocking_client(address, block_seconds=BLOCK_SECONDS),
        blocking_client(address, block_seconds=LISTEN_SECONDS),
        blocking_client(address, block_seconds=LISTEN_SECONDS),
    )
    for client in clients:
        stack.push_async_callback(client.aclose)
    return clients


def _about(settings: Settings) -> About:
    model = settings.default_model.partition(":")[2]
    return About(VERSION, model, settings.model_label or model, settings.model_scripted, settings.enable_mcp)


def _choices(settings: Settings) -> Choices:
    return Choices(
        default=settings.default_model,
        models=settings.choosable_models,
        tool_modes=TOOL_MODES if settings.allow_tool_mode else (),
        default_label=settings.model_label,
    )
