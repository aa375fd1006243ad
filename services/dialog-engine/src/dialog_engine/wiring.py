"""Puts the engine together: builds, owns and unwinds everything, in one place."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from importlib.metadata import version

from fastapi import FastAPI
from redis.asyncio import Redis

from dialog_engine.chat.approvals import OwnDecisions, SharedApprovals
from dialog_engine.chat.facts import DEFAULT_ROUTES, EVENT_TYPES
from dialog_engine.chat.imports import Imports
from dialog_engine.chat.orphans import Orphans
from dialog_engine.chat.service import ChatService, Memory
from dialog_engine.chat.shared_archive import SharedArchive, SharedSessions
from dialog_engine.chat.shared_ends import SharedEnds
from dialog_engine.chat.shared_turns import SharedTurns
from dialog_engine.chat.takeover import Takeover
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
from dialog_engine.readings import Readings
from dialog_engine.storage.approvals import SqliteApprovals
from dialog_engine.storage.archive import SqliteArchive, SqliteSessions
from dialog_engine.storage.calls import SqliteCalls
from dialog_engine.storage.copies import SqliteCopies
from dialog_engine.storage.database import open_database
from dialog_engine.storage.elsewhere import SqliteElsewhere
from dialog_engine.storage.journal import SqliteJournal
from dialog_engine.storage.meta import engine_id
from dialog_engine.storage.outbox import SqliteOutbox
from dialog_engine.storage.results import SqliteResults
from dialog_engine.storage.turns import SqliteTurns
from dialog_engine.streams.answers import LedgerAnswers
from dialog_engine.streams.bell import Bell
from dialog_engine.streams.catalogue import CatalogueReader, DisabledTools
from dialog_engine.streams.executor import CallExecutor
from dialog_engine.streams.handover import RedisHandover
from dialog_engine.streams.holdups import Holdups
from dialog_engine.streams.journal import SharedJournal
from dialog_engine.streams.mailbox import BLOCK_SECONDS, Mailbox
from dialog_engine.streams.relay import Relay
from dialog_engine.streams.reseeding import Reseeding
from dialog_engine.streams.routes import check_routes
from dialog_engine.streams.runs import RedisRuns
from dialog_engine.streams.shared_first import SharedFirstLedger
from dialog_engine.streams.subscriptions import Subscriptions
from dialog_engine.streams.turn_logs import RedisTurnLogs
from dialog_engine.streams.watch import RedisWatch
from dialog_engine.tool_calls.desk import ApprovalDesk
from dialog_engine.tool_calls.directory import ToolDirectory
from dialog_engine.tool_calls.enhance import enhance
from dialog_engine.tool_calls.exposure import Exposure, ExposureMode
from dialog_engine.tool_calls.modes import TOOL_MODES, in_tool_modes
from dialog_engine.tool_calls.pipeline import standard_pipeline
from dialog_engine.tool_calls.ports import ApprovalStore, StreamChat, ToolCalls
from dialog_engine.tool_calls.quarantine import OfferedTools, Quarantine
from dialog_engine.tool_calls.read_result import ReadResult
from dialog_engine.tool_calls.rounds import Rounds
from plugins_contract.announcements import LISTEN_SECONDS
from plugins_contract.clock import Clock, RedisClock
from plugins_contract.connections import blocking_client, command_client
from plugins_contract.keys import Keys
from plugins_contract.ledger import EngineLedger
from plugins_contract.redis_address import RedisAddress

VERSION = version("dialog-engine")
DAY_SECONDS = 24 * 3600


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
        redis, mail, announcements, bells = await _connections(stack, settings.redis_address)
        database = await stack.enter_async_context(open_database(settings.outbox_path))
        outbox = SqliteOutbox(database)
        routes = DEFAULT_ROUTES | settings.outbox_routes
        check_routes(EVENT_TYPES | await outbox.event_types(), routes)

        ledger = EngineLedger(redis, keys)
        this_engine = await engine_id(database)
        watch = RedisWatch(redis, clock)
        copy_seconds = settings.session_copy_days * DAY_SECONDS
        runs = RedisRuns(
            redis,
            keys,
            this_engine,
            ttl_seconds=copy_seconds,
            available=lambda: watch.available,
            patience=watch.patience,
        )
        journal = SharedJournal(SqliteJournal(database), redis, runs, watch.patience)
        catalogue = CatalogueReader(redis, announcements, keys, clock)
        waiting = Subscriptions()
        relay = Relay(
            outbox,
            redis,
            SharedFirstLedger(redis, keys, journal),
            keys,
            routes,
            waiting,
            backlog_limit=settings.max_backlog,
            subject_window=settings.subject_window,
        )
        mailbox = Mailbox(mail, redis, keys, this_engine, outbox, waiting, begun=relay.begun, unmarked=relay.unmarked)
        executor = CallExecutor(
            ledger,
            waiting,
            mailbox,
            (holdups := Holdups(watch, catalogue)),
            keys,
            clock,
            default_timeout_ms=settings.mcp_request_timeout_ms,
        )
        logs = RedisTurnLogs(redis, keys)
        quarantine = Quarantine(lambda tool, model: metrics.tools_refused.labels(tool.name, model).inc())
        tools = OfferedTools(catalogue if settings.enable_mcp else DisabledTools(), quarantine)
        exposure = Exposure(ExposureMode(settings.tool_exposure), settings.tool_budget_tokens)

        calls = SqliteCalls(database, relay.offer, journal.offer)
        turn_store = SqliteTurns(database, relay.offer, journal.offer)
        archive = SqliteArchive(database, calls)
        approvals = SqliteApprovals(database, relay.offer, journal.offer)
        rounds = Rounds(
            calls,
            executor,
            _desk(approvals, tools, executor, clock, settings, metrics),
            settings.result_max_chars,
        )
        llm = await stack.enter_async_context(open_llm(settings, _around_each(settings, metrics, quarantine)))
        service = ChatService(
            _llm_with_tools(
                llm,
                tools,
                exposure,
                rounds,
                ReadResult(SqliteResults(database), LedgerAnswers(ledger), settings.result_max_chars),
                settings,
            ),
            turns=SharedEnds(turn_store, journal),
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
            orphans=Orphans(SqliteElsewhere(database, journal.offer), runs, imports),
            offer=relay.offer,
            steady_for=watch.steady_for,
            note=lambda what: metrics.turns_moved.labels(what).inc(),
        )
        journal.on_moved, journal.on_forgotten = takeover.departures.moved, takeover.departures.forgotten
        shared_turns = SharedTurns(turns, runs, local, journal, imports)
        decisions = OwnDecisions(rounds.desk, journal, takeover.in_doubt)
        handover = RedisHandover(redis, keys, this_engine, decisions, turns.runs, clock)
        loops = [
            watch.run,
            mailbox.run,
            journal.run,
            Reseeding(SqliteJournal(database), redis, keys, runs, ttl_seconds=copy_seconds).run,
            relay.run,
            logs.run,
            takeover.run,
            handover.run,
            Bell(bells, keys, turns.stop, handover.rung, shared_turns.lines.ring).run,
            holdups.run,
        ]
        await stack.enter_async_context(kept_running(*loops, *([catalogue.run] if settings.enable_mcp else [])))
        await watch.ask()
        if watch.available and settings.enable_mcp:
            await catalogue.look()

        leave = _leaving(turns, takeover, logs, settings.shutdown_grace_seconds)
        await stack.enter_async_context(left_when(closing, leave))
        await takeover.resume()
        readings = Readings(
            database=database,
            outbox=outbox,
            relay=relay,
            desk=rounds.desk,
            lines=shared_turns.lines,
            streams=(streams := Streams(on_drop=metrics.clients_dropped.inc)),
            watch=watch,
            tools=tools,
            redis=redis,
            keys=keys,
            metrics=metrics,
            has_workers=settings.enable_mcp,
        )
        yield Services(
            about=_about(settings),
            choices=_choices(settings),
            turns=shared_turns,
            sessions=SharedSessions(SqliteSessions(database, journal.offer), runs, journal),
            archive=(shared := SharedArchive(archive, imports, LedgerAnswers(ledger))),
            approvals=SharedApprovals(shared, decisions, handover),
            frames=logs,
            streams=streams,
            tools=tools,
            exposure=exposure,
            readiness=readings.readiness,
            metrics=readings.scrape,
            max_message_chars=settings.max_message_chars,
        )


def _leaving(
    turns: RunningTurns, takeover: Takeover, logs: RedisTurnLogs, grace_seconds: float
) -> Callable[[], Awaitable[None]]:
    """Turns get their grace; what is left of them is for others, and so are their readers."""

    async def leave() -> None:
        takeover.retire()
        await takeover.release(await turns.close(grace_seconds))
        logs.let_go()

    return leave


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
