"""Turns, and what they need besides tool calls."""

import contextlib
from dataclasses import dataclass
from functools import partial

from dialog_engine.chat.audit import AuditAction, AuditEvent, AuditLog
from dialog_engine.chat.events import Readers
from dialog_engine.chat.held_questions import HeldQuestions
from dialog_engine.chat.history import Memory
from dialog_engine.chat.leaving import LeftTurns
from dialog_engine.chat.outbox import DEFAULT_ROUTES, EVENT_TYPES, TOOL_CALL_FINISHED, TURN_FINISHED
from dialog_engine.chat.ownership import Ownership
from dialog_engine.chat.parked import ParkedTurns
from dialog_engine.chat.ports import Credentials
from dialog_engine.chat.service import ChatService
from dialog_engine.chat.session_changes import SessionFeed
from dialog_engine.chat.turns import RunningTurns
from dialog_engine.chat.waiting_queue import WaitingQueue
from dialog_engine.config.tools import ToolSettings
from dialog_engine.consumption.limits import Consumption, SubjectLimits
from dialog_engine.event_log.stored_logs import LogStore
from dialog_engine.event_log.turn_logs import RedisTurnLogs
from dialog_engine.llm.opening import Wrap, open_llm, rooms_of
from dialog_engine.llm.routing import guarded, in_tool_modes
from dialog_engine.model import Turn
from dialog_engine.observe.observed import ObservedLogs, ObservedModel, log_refused_call
from dialog_engine.observe.ownership import ObservedOwnership
from dialog_engine.peers.control import ControlPublisher
from dialog_engine.peers.held_calls import RedisHeldCalls
from dialog_engine.personal_data.redis_eraser import RedisEraser
from dialog_engine.personal_data.service import PersonalData
from dialog_engine.relay.routes import check_routes
from dialog_engine.settings import Settings
from dialog_engine.storage.approvals import SqlApprovals
from dialog_engine.storage.archive import SqlArchive
from dialog_engine.storage.calls import SqlCalls
from dialog_engine.storage.conversations import SqlConversations
from dialog_engine.storage.engines import SqlEngines
from dialog_engine.storage.erasures import SqlErasures
from dialog_engine.storage.open_calls import SqlOpenCalls
from dialog_engine.storage.parked import SqlParked
from dialog_engine.storage.questions import SqlQuestions
from dialog_engine.storage.requests import SqlRequests
from dialog_engine.storage.resent import SqlResent
from dialog_engine.storage.responses import SqlAskedResponses
from dialog_engine.storage.results import SqlResults
from dialog_engine.storage.session_changes import SqlSessionChanges
from dialog_engine.storage.sessions import SqlSessions
from dialog_engine.storage.store import Store
from dialog_engine.storage.turns import SqlTurns
from dialog_engine.storage.waiting import SqlWaiting
from dialog_engine.tool_calls.approvals.pending import PendingApprovals
from dialog_engine.tool_calls.execution import Rounds
from dialog_engine.tool_calls.exposure.exposure import Exposure, ExposureMode
from dialog_engine.tool_calls.exposure.quarantine import Quarantine
from dialog_engine.tool_calls.pipeline import EnhancedChat, enhance
from dialog_engine.tool_calls.planning import CallLimits
from dialog_engine.tool_calls.ports import OpenChat
from dialog_engine.tool_calls.processors import standard_pipeline
from dialog_engine.tool_calls.questions.pending import PendingQuestions
from dialog_engine.tool_calls.resource_tools import ListResources, ReadResource
from dialog_engine.tool_calls.results.read_result import ReadResult
from dialog_engine.wiring.base import Base
from dialog_engine.wiring.calls import Calls


@dataclass(frozen=True, slots=True)
class Chat:
    """Turns, and what they need besides tool calls."""

    turns: RunningTurns
    readers: Readers
    left: LeftTurns
    waiting: SqlWaiting
    parked: ParkedTurns
    parked_store: SqlParked
    ownership: Ownership
    pending: PendingApprovals
    questions: PendingQuestions
    held: HeldQuestions
    approvals: SqlApprovals
    archive: SqlArchive
    requests: SqlRequests
    logs: RedisTurnLogs
    control: ControlPublisher
    exposure: Exposure
    consumption: Consumption
    audit: AuditLog
    sessions: SqlSessions
    responses: SqlAskedResponses
    conversations: SqlConversations
    feed: SessionFeed
    erasures: SqlErasures
    personal_data: PersonalData
    resent: SqlResent


async def open_chat(stack: contextlib.AsyncExitStack, base: Base, calls: Calls, credentials: Credentials) -> Chat:
    """Build the parts; the models are open until the stack is closed.

    Raises:
        ConfigurationError: a setting of a model or a route of the outbox cannot be used.
    """
    settings, metrics = base.settings, base.metrics
    check_routes(EVENT_TYPES | await base.outbox.event_types(), DEFAULT_ROUTES | settings.store.outbox_routes)
    control = ControlPublisher(base.connections.commands, base.keys)
    store = Store(base.engine, base.trail, calls.relay, control)
    call_store, approval_store = SqlCalls(store), SqlApprovals(store)
    turn_store = SqlTurns(store, facts_with_text=settings.store.facts_with_text)
    archive = SqlArchive(store, SqlOpenCalls(store))
    pending = PendingApprovals(
        approval_store,
        calls.tools,
        calls.executor,
        now_ms=base.clock.now_ms,
        timeout_seconds=settings.tools.approval_timeout_seconds,
        client_timeout_seconds=settings.tools.client_tool_timeout_seconds,
        note=base.facts.approval_decided,
    )
    questions = PendingQuestions(
        SqlQuestions(store),
        calls.tools,
        cipher=base.cipher,
        now_ms=base.clock.now_ms,
        timeout_seconds=settings.tools.question_timeout_seconds,
        call_timeout_ms=calls.timeout_ms,
        gone_seconds=base.times.gone,
        note=base.facts.question_changed,
    )
    rounds = Rounds(call_store, calls.executor, pending, questions, settings.tools.result_max_chars, log_refused_call)
    offers = settings.tools
    exposure = Exposure(
        ExposureMode(offers.tool_exposure), offers.tool_budget_tokens, offers.server_instructions_tokens
    )
    around = _around_each(settings.tools, calls.quarantine)
    llm = await stack.enter_async_context(open_llm(settings.models, around, partial(ObservedModel, metrics)))
    reader = ReadResult(SqlResults(store), settings.tools.result_max_chars)
    service = ChatService(
        _llm_with_tools(llm, calls, exposure, rounds, reader, settings, store),
        turns=turn_store,
        history=archive,
        approvals=approval_store,
        rounds=rounds,
        memory=Memory(
            settings.models.options.history_max_messages,
            settings.models.options.history_max_tokens or max(rooms_of(settings.models).values()),
        ),
    )
    times = base.times
    logs = RedisTurnLogs(LogStore(base.connections.commands, base.keys, base.cipher), times.logs)
    observed_logs = ObservedLogs(logs, metrics, base.subjects)
    stream_opened = partial(base.subjects.opened, "streams")
    consumption = Consumption(base.connections.commands, base.keys, _subject_limits(settings), stream_opened)
    waiting = SqlWaiting(store)
    queue = WaitingQueue(waiting, credentials, consumption, times.turns.look)
    parked_store = SqlParked(store)
    turns = RunningTurns(
        service, turn_store, observed_logs, control, credentials, queue, times.turns, park=parked_store.park
    )
    parked = ParkedTurns(
        parked_store,
        turns,
        consumption,
        credentials,
        control,
        questions,
        now_ms=base.clock.now_ms,
        may_park=lambda: base.releases.may_ask.allowed,
        look_seconds=times.turns.look,
        note=base.facts.approval_decided,
    )
    readers = Readers()
    responses = SqlAskedResponses(store)
    asks = readers, control, responses.ends_when_left
    left = LeftTurns(turns, *asks, times.leaving, all_answer=lambda: base.releases.may_ask.allowed)
    held_calls = RedisHeldCalls(
        base.connections.commands,
        base.keys,
        calls.pools,
        now_ms=base.clock.now_ms,
        steady_for=calls.watch.steady_for,
    )
    held = HeldQuestions(questions, held_calls, turns, control, parked.resume, look_seconds=times.turns.look)
    engines = SqlEngines(base.engine)
    observer = ObservedOwnership(metrics)
    ownership = Ownership(turns, engines, relay=calls.relay, observer=observer, times=times.ownership)
    sessions, erasures = SqlSessions(store), SqlErasures(store, times.erasures)
    feed = SessionFeed(SqlSessionChanges(store, base.trail), lambda: calls.tools.servers)
    personal_data = PersonalData(sessions, archive, erasures, _traces(base), store, times.erasures.look)
    return Chat(
        turns,
        readers,
        left,
        waiting,
        parked,
        parked_store,
        ownership,
        pending,
        questions,
        held,
        approval_store,
        archive,
        SqlRequests(store),
        logs,
        control,
        exposure,
        consumption,
        store,
        sessions,
        responses,
        SqlConversations(store),
        feed,
        erasures,
        personal_data,
        SqlResent(store, base.trail),
    )


def _around_each(settings: ToolSettings, quarantine: Quarantine) -> Wrap:
    def around(llm: OpenChat, name: str) -> OpenChat:
        return in_tool_modes(
            guarded(llm, name, quarantine), settings.tool_mode, stop=settings.tool_stop_sequence, model=name
        )

    return around


def _llm_with_tools(
    llm: OpenChat,
    calls: Calls,
    exposure: Exposure,
    rounds: Rounds,
    reader: ReadResult,
    settings: Settings,
    audit: AuditLog,
) -> EnhancedChat:
    max_chars = settings.tools.result_max_chars
    refused = partial(_read_refused, audit)
    pipeline = standard_pipeline(
        source=calls.tools,
        exposure=exposure,
        rounds=rounds,
        system_prompt=settings.models.options.system_prompt,
        max_rounds=settings.tools.mcp_max_tool_rounds,
        reader=reader,
        resources=(ListResources(calls.tools, max_chars), ReadResource(calls.tools, calls.reads, max_chars, refused)),
        limits=CallLimits(
            settings.tools.max_calls_per_reply,
            settings.tools.max_calls_per_turn,
            settings.limits.max_reply_bytes,
            settings.tools.max_own_calls_per_turn,
        ),
    )
    return enhance(llm, pipeline)


async def _read_refused(audit: AuditLog, turn: Turn, server: str, name: str) -> None:
    fields = {"key_id": turn.key_id, "session_id": turn.session_id, "turn_id": turn.turn_id}
    await audit.record(AuditEvent(AuditAction.READ_REFUSED, turn.subject, server=server, tool=name, **fields))


def _subject_limits(settings: Settings) -> SubjectLimits:
    """Without a sign-in there is one subject, the user of this machine, who is not limited."""
    if not settings.identity.needs_sign_in:
        return SubjectLimits()
    return SubjectLimits(
        turns=settings.limits.subject_max_turns,
        streams=settings.limits.subject_max_streams,
        requests=settings.limits.subject_requests_per_minute,
        tokens=settings.limits.subject_tokens_per_day,
    )


def _traces(base: Base) -> RedisEraser:
    routes = DEFAULT_ROUTES | base.settings.store.outbox_routes
    return RedisEraser(base.connections.commands, base.keys, (routes[TURN_FINISHED], routes[TOOL_CALL_FINISHED]))
