"""What HTTP is served by: the parts of a running engine as its routes see them."""

from callstream_runtime.version import __version__
from dialog_engine.chat.approvals import Approvals
from dialog_engine.chat.client_calls import ClientCalls
from dialog_engine.chat.ports import Credentials
from dialog_engine.chat.questions import Questions
from dialog_engine.consumption.usage import NO_PRICES
from dialog_engine.http.bodies import LeavingRule
from dialog_engine.http.services import About, Choices, CompletionOptions, Services
from dialog_engine.http.streams import Streams
from dialog_engine.llm.routing import TOOL_MODES
from dialog_engine.observe.gauges import Gauges, StoreGauges
from dialog_engine.observe.status import EngineStatus, StartGate
from dialog_engine.settings import Settings
from dialog_engine.storage.usage import SqlUsage
from dialog_engine.wiring.base import Base
from dialog_engine.wiring.calls import Calls
from dialog_engine.wiring.chat import Chat


def services_of(
    base: Base, calls: Calls, chat: Chat, credentials: Credentials, streams: Streams, store_gauges: StoreGauges
) -> Services:
    """The services of a running engine."""
    settings = base.settings
    status = EngineStatus(
        database=base.engine.database,
        outbox=base.outbox,
        watch=calls.watch,
        tools=calls.tools,
        has_workers=settings.tools.enable_mcp,
        gate=StartGate(settings.tools.tools_wait_seconds),
    )
    gauges = Gauges(
        base.metrics,
        store_gauges,
        calls.relay,
        streams,
        chat.feed,
        calls.watch,
        calls.tools,
        calls.catalog,
        base.connections.commands,
        base.keys,
        calls.pools,
        settings.tools.accept_unsigned_catalogs,
    )
    return Services(
        about=_about(settings),
        choices=_choices(settings),
        leaving=_leaving(settings, base.times.leaving.grace),
        readers=chat.readers,
        turns=chat.turns,
        parked=chat.parked,
        sessions=chat.sessions,
        pending_approvals=chat.approvals.pending,
        pending_client_calls=chat.approvals.client_calls,
        feed=chat.feed,
        archive=chat.archive,
        requests=chat.requests,
        consumption=chat.consumption,
        audit=chat.audit,
        personal_data=chat.personal_data,
        approvals=Approvals(chat.archive, chat.pending, chat.turns, chat.parked, chat.control, credentials),
        client_calls=ClientCalls(
            chat.archive,
            chat.approvals,
            chat.pending,
            chat.turns,
            chat.parked,
            chat.control,
            credentials,
            now_ms=base.clock.now_ms,
            result_max_chars=settings.tools.result_max_chars,
        ),
        client_tools=lambda: base.releases.may_ask.allowed,
        pending_questions=chat.questions.store.pending,
        questions=Questions(chat.questions, chat.turns, chat.parked, chat.control, credentials),
        frames=chat.logs,
        streams=streams,
        tools=calls.tools,
        exposure=chat.exposure,
        readiness=status.readiness,
        metrics=gauges.scrape,
        max_message_chars=settings.limits.max_message_chars,
        subjects=base.subjects,
        usage=SqlUsage(base.engine.database),
        large_results=calls.large_results,
        reads=calls.reads,
        prices=lambda: base.prices.content if base.prices else NO_PRICES,
        resent=chat.resent,
        responses=chat.responses,
        conversations=chat.conversations,
        completions=CompletionOptions(
            settings.facades.chat_tool_steps, settings.facades.chat_tasks_prefix, settings.identity.public_url or ""
        ),
        on_refused=base.facts.request_refused,
    )


def _about(settings: Settings) -> About:
    model = settings.models.default_model.partition(":")[2]
    return About(
        __version__,
        model,
        settings.models.options.model_label or model,
        settings.models.options.model_scripted,
        settings.tools.enable_mcp,
    )


def _choices(settings: Settings) -> Choices:
    return Choices(
        default=settings.models.default_model,
        models=settings.models.choosable_models,
        tool_modes=TOOL_MODES if settings.tools.allow_tool_mode else (),
        default_label=settings.models.options.model_label,
    )


def _leaving(settings: Settings, seconds: float) -> LeavingRule:
    setting = settings.http.on_disconnect
    return LeavingRule(None if setting == "protocol" else setting, seconds)
