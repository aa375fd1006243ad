"""Builds the engine, owns its parts, and shuts them down."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter, FastAPI
from redis.asyncio import Redis

from callstream_runtime.clock import RedisClock, RedisWatch
from callstream_runtime.connections import blocking_client, command_client
from callstream_runtime.loop_lag import observe_lag
from callstream_runtime.loops import LISTEN_SECONDS, kept_running
from callstream_runtime.pipelined import PipelinedRedis
from callstream_runtime.pool_directory import PoolDirectory
from callstream_runtime.rights_file import watched_rights
from callstream_runtime.settings import RedisAddress
from callstream_runtime.version import __version__, commit
from callstream_runtime.watched_file import WatchedFile
from dialog_engine.calls.executor import CallExecutor
from dialog_engine.calls.mailbox import BLOCK_SECONDS, Mailbox
from dialog_engine.calls.recent_ends import RecentEnds
from dialog_engine.calls.subscriptions import BlockedCalls, Subscriptions
from dialog_engine.chat.approvals import Approvals
from dialog_engine.chat.audit import AuditLog
from dialog_engine.chat.conversation import Memory
from dialog_engine.chat.outbox import DEFAULT_ROUTES, EVENT_TYPES, TOOL_CALL_FINISHED, TURN_FINISHED
from dialog_engine.chat.ownership import Ownership
from dialog_engine.chat.ports import Credentials
from dialog_engine.chat.service import ChatService
from dialog_engine.chat.turns import RunningTurns
from dialog_engine.config import Settings
from dialog_engine.consumption.limits import Consumption, SubjectLimits
from dialog_engine.consumption.subjects import SubjectUse
from dialog_engine.consumption.usage import NO_PRICES, Prices, watched_prices
from dialog_engine.errors import ConfigurationError
from dialog_engine.event_log.turn_logs import RedisTurnLogs
from dialog_engine.http.admission import Admission
from dialog_engine.http.app import State, create_app
from dialog_engine.http.guards import MAX_BODY_BYTES
from dialog_engine.http.services import About, Choices, Services
from dialog_engine.http.sse import Streams
from dialog_engine.identity.api_keys import ApiKeys
from dialog_engine.identity.authenticator import Authenticator, NoCredentials
from dialog_engine.identity.failed_attempts import FailedAttempts
from dialog_engine.llm.providers import Wrap, open_llm, rooms_of
from dialog_engine.observe.metrics import Metrics
from dialog_engine.observe.observed import ObservedCalls, ObservedLogs, ObservedModel, ObservedRounds
from dialog_engine.observe.ownership import ObservedOwnership
from dialog_engine.observe.status import EngineStatus, StartGate, StoreGauges
from dialog_engine.peers.catalog import CatalogReader, DisabledTools
from dialog_engine.peers.control import ControlListener, ControlPublisher
from dialog_engine.personal_data.redis_eraser import RedisEraser
from dialog_engine.personal_data.retention import Retention, run_retention
from dialog_engine.personal_data.service import PersonalData
from dialog_engine.relay.relay import Relay, check_routes
from dialog_engine.storage import schemas
from dialog_engine.storage.approvals import SqlApprovals
from dialog_engine.storage.archive import SqlArchive, SqlSessions
from dialog_engine.storage.audit import AuditTrail, read_digest_key
from dialog_engine.storage.audit_chain import AuditChain
from dialog_engine.storage.calls import SqlCalls, SqlResults
from dialog_engine.storage.database import Database
from dialog_engine.storage.engines import SqlEngines
from dialog_engine.storage.erasures import SqlErasures
from dialog_engine.storage.moves import check_not_moved
from dialog_engine.storage.outbox import SqlOutbox
from dialog_engine.storage.sealed import check_keys, follow_all_sealed
from dialog_engine.storage.sqlite import open_sqlite
from dialog_engine.storage.store import EngineDatabase, Store
from dialog_engine.storage.turns import SqlTurns
from dialog_engine.storage.usage import SqlUsage
from dialog_engine.tool_calls.approvals.pending import PendingApprovals
from dialog_engine.tool_calls.execution import Rounds
from dialog_engine.tool_calls.exposure.allowed import ToolRights
from dialog_engine.tool_calls.exposure.exposure import Exposure, ExposureMode
from dialog_engine.tool_calls.exposure.quarantine import OfferedTools, Quarantine
from dialog_engine.tool_calls.pipeline import EnhancedChat, enhance
from dialog_engine.tool_calls.planning import CallLimits
from dialog_engine.tool_calls.ports import OpenChat, ToolDirectory
from dialog_engine.tool_calls.processors import standard_pipeline
from dialog_engine.tool_calls.prompt_mode.modes import TOOL_MODES, in_tool_modes
from dialog_engine.tool_calls.results.read_result import ReadResult
from plugins_contract.encryption import Cipher
from plugins_contract.keys import Keys
from plugins_contract.ledger import EngineLedger
from plugins_contract.rights import Rights
from plugins_contract.signing import RequestKeys
from plugins_contract.trust import CatalogTrust

log = logging.getLogger(__name__)


def build_app(settings: Settings, closing: asyncio.Event) -> FastAPI:
    """The ASGI application, whose lifespan builds and shuts down the engine.

    Set `closing` to shut down: running turns get their grace period, and then event streams end.

    Raises:
        ConfigurationError: a file of keys cannot be used; the text says why.
    """

    identity = _identity(settings)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[State]:
        async with contextlib.AsyncExitStack() as stack:
            if identity.close:
                stack.push_async_callback(identity.close)
            yield {"services": await stack.enter_async_context(run_engine(settings, closing, identity.credentials))}

    return create_app(
        lifespan,
        identity.admission,
        identity.routers,
        version=__version__,
        loopback_only=not settings.needs_sign_in,
        # A character is twelve bytes of JSON at most: a pair of \u escapes.
        max_body_bytes=max(MAX_BODY_BYTES, 12 * settings.max_message_chars + 1000),
    )


@dataclass(frozen=True, slots=True)
class _Base:
    """Settings, connections and the store, which every other part uses."""

    settings: Settings
    keys: Keys
    clock: RedisClock
    metrics: Metrics
    connections: "_Connections"
    engine: EngineDatabase
    outbox: SqlOutbox
    waiting: Subscriptions
    trail: AuditTrail
    chain: AuditChain
    rights: WatchedFile[Rights] | None
    cipher: Cipher
    subjects: SubjectUse
    prices: WatchedFile[Prices] | None


@dataclass(frozen=True, slots=True)
class _Calls:
    """The parts on the way of a tool call from the outbox to its answer."""

    relay: Relay
    mailbox: Mailbox
    executor: CallExecutor
    ended: RecentEnds
    watch: RedisWatch
    blocked: BlockedCalls
    catalog: CatalogReader
    tools: OfferedTools
    quarantine: Quarantine
    pools: PoolDirectory


@dataclass(frozen=True, slots=True)
class _Chat:
    """Turns, and what they need besides tool calls."""

    turns: RunningTurns
    ownership: Ownership
    pending: PendingApprovals
    archive: SqlArchive
    logs: RedisTurnLogs
    control: ControlPublisher
    exposure: Exposure
    consumption: Consumption
    audit: AuditLog
    sessions: SqlSessions
    erasures: SqlErasures
    personal_data: PersonalData


@contextlib.asynccontextmanager
async def run_engine(settings: Settings, closing: asyncio.Event, credentials: Credentials) -> AsyncGenerator[Services]:
    """A running engine, until `closing` is set.

    Raises:
        ConfigurationError, StorageUnavailableError: it cannot start; the text says why.
    """
    async with contextlib.AsyncExitStack() as stack:
        base = await _base(stack, settings)
        calls = _calls(base)
        chat = await _chat(stack, base, calls, credentials)
        turns, pending, kept = chat.turns, chat.pending, Retention.of(settings.retention_rules)
        listener = ControlListener(base.connections.control, base.keys, turns.stop, pending.wake, turns.queue.wake)
        loops = [calls.watch.run, calls.ended.run, calls.mailbox.run, calls.relay.run, calls.blocked.run]
        loops += [
            chat.consumption.run,
            base.subjects.run,
            chat.personal_data.run,
            chat.logs.run,
            pending.run,
            turns.check_credentials,
            listener.run,
            partial(observe_lag, base.metrics.loop_lag),
            *([calls.catalog.run] if settings.enable_mcp else []),
            base.chain.run,
            *([partial(follow_all_sealed, base.engine.database, base.cipher)] if base.cipher.active else []),
            *([partial(run_retention, kept, chat.erasures, base.metrics.retention_passed)] if kept.deletes else []),
            *([partial(base.chain.run_retention, days)] if (days := settings.audit_retention_days) else []),
        ]
        # After the turns, which leave the last of both.
        stack.push_async_callback(chat.consumption.close)
        stack.push_async_callback(chat.control.close)
        await stack.enter_async_context(kept_running(*loops))
        await calls.watch.ask()
        if calls.watch.available and settings.enable_mcp:
            await calls.catalog.look()

        await chat.ownership.start()
        await stack.enter_async_context(kept_running(chat.ownership.run))
        grace_seconds = settings.shutdown_grace_seconds
        await stack.enter_async_context(_left_when(closing, turns, chat.ownership, chat.logs, grace_seconds))
        streams = Streams(on_drop=base.metrics.clients_dropped.inc)
        await stack.enter_async_context(kept_running(streams.check))
        gauges = StoreGauges(base.outbox, chat.erasures, base.chain, base.metrics)
        stack.push_async_callback(gauges.close)
        yield _services(base, calls, chat, credentials, streams, gauges)


async def _base(stack: contextlib.AsyncExitStack, settings: Settings) -> _Base:
    connections = await _connections(stack, settings.redis_address)
    waiting = Subscriptions()
    database = await stack.enter_async_context(_open_store(settings, waiting))
    await check_not_moved(database)
    engine_id = await database.engine_id()
    cipher, keys, clock = settings.cipher, Keys(settings.redis_key_prefix), RedisClock()
    engine = EngineDatabase(database, cipher, engine_id, keys)
    await check_keys(database, cipher)
    audit_key = await read_digest_key(database, cipher)
    trail = AuditTrail(audit_key, stream=settings.audit_stream)
    chain = AuditChain(database, audit_key)
    dialect = "postgres" if settings.database_url else "sqlite"
    schema = f"{dialect}-{schemas.newest(dialect)}"
    build = {"version": __version__, "commit": commit("dialog_engine"), "schema": schema}
    metrics = Metrics(build)
    metrics.unsigned_catalogs.set(settings.accept_unsigned_catalogs)
    try:
        rights = watched_rights(settings.rights_file)
    except ValueError as error:
        raise ConfigurationError(f"RIGHTS_FILE: {error}") from None
    try:
        prices = watched_prices(settings.prices_file)
    except ValueError as error:
        raise ConfigurationError(f"PRICES_FILE: {error}") from None
    return _Base(
        settings,
        keys,
        clock,
        metrics,
        connections,
        engine,
        SqlOutbox(engine),
        waiting,
        trail,
        chain,
        rights,
        cipher,
        SubjectUse(connections.commands, keys),
        prices,
    )


def _calls(base: _Base) -> _Calls:
    settings, keys, outbox, waiting = base.settings, base.keys, base.outbox, base.waiting
    redis = base.connections.commands
    pools = PoolDirectory(redis, keys, base.clock)
    ledger = EngineLedger(redis, keys, settings.request_keys, cipher=base.cipher, pools=pools)
    watch = RedisWatch(redis, keys, base.clock)
    trust = CatalogTrust(_catalog_keys(settings))
    catalog = CatalogReader(redis, base.connections.announcements, keys, base.clock, trust)
    observer = ObservedCalls(base.metrics, base.subjects)
    relay = Relay(
        outbox,
        redis,
        ledger,
        keys,
        DEFAULT_ROUTES | settings.outbox_routes,
        waiting,
        backlog_limit=settings.max_backlog,
        subject_window=settings.subject_window,
        observer=observer,
        cipher=base.cipher,
    )
    mailbox = Mailbox(
        base.connections.mailbox,
        redis,
        keys,
        base.engine.engine_id,
        outbox,
        waiting,
        publisher=relay,
        cipher=base.cipher,
    )
    blocked = BlockedCalls(watch, catalog)
    timeout_ms = settings.mcp_request_timeout_ms
    ended = RecentEnds(ledger, watch)
    executor = CallExecutor(
        ledger,
        waiting,
        mailbox,
        blocked,
        keys,
        base.clock,
        ended,
        default_timeout_ms=timeout_ms,
        observer=observer,
        cipher=base.cipher,
    )
    quarantine = Quarantine(lambda tool, model: base.metrics.tool_refused(tool.name, model))
    rights = ToolRights(base.rights) if base.rights else None
    tools = OfferedTools(catalog if settings.enable_mcp else DisabledTools(), quarantine, rights)
    return _Calls(relay, mailbox, executor, ended, watch, blocked, catalog, tools, quarantine, pools)


def _catalog_keys(settings: Settings) -> RequestKeys:
    if not settings.request_keys_file:
        log.warning("REQUEST_KEYS_FILE is not set: this engine believes what anybody writes to Redis about tools")
    if settings.accept_unsigned_catalogs:
        log.warning("ACCEPT_UNSIGNED_CATALOGS is set: unset it when every worker is of this release")
        return RequestKeys()
    return settings.request_keys


async def _chat(stack: contextlib.AsyncExitStack, base: _Base, calls: _Calls, credentials: Credentials) -> _Chat:
    settings, metrics = base.settings, base.metrics
    check_routes(EVENT_TYPES | await base.outbox.event_types(), DEFAULT_ROUTES | settings.outbox_routes)
    control = ControlPublisher(base.connections.commands, base.keys)
    store = Store(base.engine, base.trail, calls.relay, control)
    call_store, approval_store = SqlCalls(store), SqlApprovals(store)
    turn_store = SqlTurns(store, facts_with_text=settings.facts_with_text)
    archive = SqlArchive(store, call_store)
    pending = PendingApprovals(
        approval_store,
        calls.tools,
        calls.executor,
        now_ms=base.clock.now_ms,
        timeout_seconds=settings.approval_timeout_seconds,
        note=lambda decision: metrics.approvals.labels(decision).inc(),
    )
    rounds = Rounds(ObservedRounds(call_store), calls.executor, pending, settings.result_max_chars)
    exposure = Exposure(ExposureMode(settings.tool_exposure), settings.tool_budget_tokens)
    around = _around_each(settings, calls.quarantine)
    llm = await stack.enter_async_context(open_llm(settings, around, partial(ObservedModel, metrics)))
    reader = ReadResult(SqlResults(store), settings.result_max_chars)
    service = ChatService(
        _llm_with_tools(llm, calls.tools, exposure, rounds, reader, settings),
        turns=turn_store,
        history=archive,
        approvals=approval_store,
        rounds=rounds,
        memory=Memory(settings.history_max_messages, settings.history_max_tokens or max(rooms_of(settings).values())),
    )
    logs = RedisTurnLogs(base.connections.commands, base.keys, base.cipher)
    turns = RunningTurns(service, turn_store, ObservedLogs(logs, metrics, base.subjects), control, credentials)
    engines = SqlEngines(base.engine)
    ownership = Ownership(turns, engines, relay=calls.relay, observer=ObservedOwnership(metrics))
    stream_opened = partial(base.subjects.opened, "streams")
    consumption = Consumption(base.connections.commands, base.keys, _subject_limits(settings), stream_opened)
    sessions, erasures = SqlSessions(store), SqlErasures(store)
    personal_data = PersonalData(sessions, archive, erasures, _traces(base), store)
    return _Chat(
        turns,
        ownership,
        pending,
        archive,
        logs,
        control,
        exposure,
        consumption,
        store,
        sessions,
        erasures,
        personal_data,
    )


def _traces(base: _Base) -> RedisEraser:
    routes = DEFAULT_ROUTES | base.settings.outbox_routes
    return RedisEraser(base.connections.commands, base.keys, (routes[TURN_FINISHED], routes[TOOL_CALL_FINISHED]))


def _services(
    base: _Base, calls: _Calls, chat: _Chat, credentials: Credentials, streams: Streams, gauges: StoreGauges
) -> Services:
    settings, metrics = base.settings, base.metrics
    status = EngineStatus(
        database=base.engine.database,
        outbox=base.outbox,
        store=gauges,
        relay=calls.relay,
        approvals=chat.pending,
        queue=chat.turns.queue,
        streams=streams,
        watch=calls.watch,
        tools=calls.tools,
        catalog=calls.catalog,
        redis=base.connections.commands,
        keys=base.keys,
        pools=calls.pools,
        metrics=metrics,
        has_workers=settings.enable_mcp,
        gate=StartGate(settings.tools_wait_seconds),
    )
    return Services(
        about=_about(settings),
        choices=_choices(settings),
        turns=chat.turns,
        sessions=chat.sessions,
        archive=chat.archive,
        consumption=chat.consumption,
        audit=chat.audit,
        personal_data=chat.personal_data,
        approvals=Approvals(chat.archive, chat.pending, chat.control, credentials),
        frames=chat.logs,
        streams=streams,
        tools=calls.tools,
        exposure=chat.exposure,
        readiness=status.readiness,
        metrics=status.scrape,
        max_message_chars=settings.max_message_chars,
        subjects=base.subjects,
        usage=SqlUsage(base.engine.database),
        prices=lambda: base.prices.content if base.prices else NO_PRICES,
        on_refused=partial(_refused, base),
    )


def _refused(base: _Base, code: str, subject: str) -> None:
    base.metrics.requests_refused.labels(code).inc()
    base.subjects.count("refusals", subject)


def _subject_limits(settings: Settings) -> SubjectLimits:
    """Without a sign-in there is one subject, the user of this machine, who is not limited."""
    if not settings.needs_sign_in:
        return SubjectLimits()
    return SubjectLimits(
        turns=settings.subject_max_turns,
        streams=settings.subject_max_streams,
        requests=settings.subject_requests_per_minute,
        tokens=settings.subject_tokens_per_day,
    )


@dataclass(frozen=True, slots=True)
class _Identity:
    """Who may make requests, if they have to prove who they are; its routes, and how its connections are closed."""

    credentials: Credentials
    admission: Admission | None = None
    routers: Sequence[APIRouter] = ()
    close: Callable[[], Awaitable[None]] | None = None


def _identity(settings: Settings) -> _Identity:
    if not settings.needs_sign_in:
        return _Identity(NoCredentials())
    try:
        keys = ApiKeys(settings.api_keys, settings.api_keys_file)
    except ValueError as error:
        raise ConfigurationError(f"API_KEYS_FILE: {error}") from None
    attempts, port = FailedAttempts(settings.failed_keys_per_minute), settings.operations_port
    if settings.oidc_issuer is None:
        authenticator = Authenticator(keys, attempts)
        return _Identity(authenticator, Admission(authenticator, operations_port=port))
    from dialog_engine.http.sign_in_routes import sign_in_router  # noqa: PLC0415 -- these take a tenth of a second
    from dialog_engine.identity.oidc import open_oidc  # noqa: PLC0415 -- and 9 MB

    oidc = open_oidc(settings, settings.oidc_issuer)
    authenticator = Authenticator(keys, attempts, oidc.tokens)
    admission = Admission(authenticator, oidc.sign_in, operations_port=port)
    routers = [sign_in_router(oidc.sign_in)] if oidc.sign_in else []
    return _Identity(authenticator, admission, routers, oidc.provider.aclose)


def _open_store(settings: Settings, waiting: Subscriptions) -> contextlib.AbstractAsyncContextManager[Database]:
    if settings.database_url is None:
        return open_sqlite(settings.outbox_path, waiting.__len__)
    from dialog_engine.storage.postgres import open_postgres  # noqa: PLC0415 -- psycopg is a tenth of the start

    return open_postgres(settings.database_url.get_secret_value(), settings.database_pool_size)


@contextlib.asynccontextmanager
async def _left_when(
    closing: asyncio.Event, turns: RunningTurns, ownership: Ownership, logs: RedisTurnLogs, grace_seconds: float
) -> AsyncGenerator[None]:
    """When `closing` is set, or at the end of the block, turns get their grace period.

    Other engines adopt the rest, and readers must ask there.
    """

    async def leave() -> None:
        await closing.wait()
        ownership.retire()
        await turns.close(grace_seconds)
        await ownership.release()
        logs.release_readers()

    leaving = asyncio.create_task(leave(), name="leave")
    try:
        yield
    finally:
        closing.set()
        await leaving


def _around_each(settings: Settings, quarantine: Quarantine) -> Wrap:
    def around(llm: OpenChat, name: str) -> OpenChat:
        return in_tool_modes(
            quarantine.guard(llm, name), settings.tool_mode, stop=settings.tool_stop_sequence, model=name
        )

    return around


def _llm_with_tools(
    llm: OpenChat,
    tools: ToolDirectory,
    exposure: Exposure,
    rounds: Rounds,
    reader: ReadResult,
    settings: Settings,
) -> EnhancedChat:
    pipeline = standard_pipeline(
        source=tools,
        exposure=exposure,
        rounds=rounds,
        system_prompt=settings.system_prompt,
        max_rounds=settings.mcp_max_tool_rounds,
        reader=reader,
        limits=CallLimits(
            settings.max_calls_per_reply,
            settings.max_calls_per_turn,
            settings.max_reply_bytes,
            settings.max_own_calls_per_turn,
        ),
    )
    return enhance(llm, pipeline)


@dataclass(frozen=True, slots=True)
class _Connections:
    """A pool for commands, and one connection for each blocking reader."""

    commands: PipelinedRedis
    mailbox: Redis
    announcements: Redis
    control: Redis


async def _connections(stack: contextlib.AsyncExitStack, address: RedisAddress) -> _Connections:
    clients = (
        command_client(address),
        blocking_client(address, block_seconds=BLOCK_SECONDS),
        blocking_client(address, block_seconds=LISTEN_SECONDS),
        blocking_client(address, block_seconds=LISTEN_SECONDS),
    )
    for client in clients:
        stack.push_async_callback(client.aclose)
    return _Connections(*clients)


def _about(settings: Settings) -> About:
    model = settings.default_model.partition(":")[2]
    return About(__version__, model, settings.model_label or model, settings.model_scripted, settings.enable_mcp)


def _choices(settings: Settings) -> Choices:
    return Choices(
        default=settings.default_model,
        models=settings.choosable_models,
        tool_modes=TOOL_MODES if settings.allow_tool_mode else (),
        default_label=settings.model_label,
    )
