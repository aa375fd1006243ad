"""Every metric of the engine, declared once. `docs/observability.md` has the same list."""

import platform
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.process_collector import ProcessCollector

from callstream_runtime.loop_lag import lag_histogram
from callstream_runtime.metrics import TOOL_CALL_BUCKETS, StreamMetrics, ToolLabels, begin_at_zero, exposition
from dialog_engine.model import QuestionStatus
from plugins_contract.ledger.replies import Loss

FIRST_TOKEN_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96)
TURN_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600)


class Metrics:
    """The engine's metrics in a registry of their own."""

    def __init__(self, build: Mapping[str, str] = {}) -> None:  # noqa: PLR0915 -- a list
        """`build` says which engine this is."""
        self.registry = registry = CollectorRegistry()
        self.tools = ToolLabels()
        # The streams of requests, the group of the workers, and the dead letters: `callstream_runtime/metrics.py`.
        self.stream = StreamMetrics()
        registry.register(self.stream)
        # CPU time, memory and file descriptors of this process, and how late its event loop is.
        ProcessCollector(registry=registry)
        self.loop_lag = lag_histogram("dialog_loop_lag_seconds", registry)
        self.build = Info("dialog_build", "Which engine this is.", registry=registry)
        self.build.info({**build, "python": platform.python_version()})

        # --- Turns ---
        # Turns, by how they ended: stop, length, max_rounds, cancelled, error, …
        self.turns = Counter("dialog_turns", "Turns that ended.", ["reason"], registry=registry)
        # From the message to `done`. Includes the time for which a turn waits for approvals.
        self.turn_seconds = Histogram(
            "dialog_turn_seconds", "Duration of turns.", registry=registry, buckets=TURN_BUCKETS
        )
        # From the message to its first token, as its user waits for it.
        self.turn_first_token = Histogram(
            "dialog_turn_first_token_seconds",
            "Time from a message to the first token of its answer.",
            registry=registry,
            buckets=FIRST_TOKEN_BUCKETS,
        )
        # Turns that changed their owner: restart (same engine), takeover (from a dead one), lost (to another one).
        self.turns_moved = Counter("dialog_turns_moved", "Turns that changed their owner.", ["how"], registry=registry)
        # Turns that are running.
        self.turns_running = Gauge("dialog_turns_running", "Turns that are running.", registry=registry)
        # Turns that wait for people only, at all engines: no engine runs them.
        self.turns_parked = Gauge("dialog_turns_parked", "Turns that wait for people only.", registry=registry)
        # How long one of them, or the question of a server, has been due: it should have ended when it expired.
        self.turns_overdue = Gauge(
            "dialog_turns_parked_overdue_seconds", "Time since a parked turn should have gone on.", registry=registry
        )
        # Messages that wait for the turns before them, at all engines (`onBusy: queue`).
        self.messages_queued = Gauge(
            "dialog_messages_queued", "Messages that wait for their session.", registry=registry
        )
        # Requests of clients that were answered with a problem document, by its code.
        self.requests_refused = Counter(
            "dialog_requests_refused", "HTTP requests answered with a problem document.", ["code"], registry=registry
        )
        # Open event streams: connections of clients that follow a turn.
        self.event_streams = Gauge("dialog_event_streams", "Open event streams.", registry=registry)
        # Those of them that follow the sessions of their subject, about one for each browser.
        self.session_readers = Gauge("dialog_session_readers", "Open streams of /v1/events.", registry=registry)
        # Clients that were disconnected because they read nothing for 20 seconds while events waited. They reconnect.
        self.clients_dropped = Counter(
            "dialog_clients_dropped", "Clients that were disconnected because they did not read.", registry=registry
        )

        # --- Tool calls ---
        # Tool calls as the user saw them end; the sum over `status` is the number of calls.
        self.tool_calls = Counter("dialog_tool_calls", "Tool calls that ended.", ["tool", "status"], registry=registry)
        # From the commit of a call to its answer, as the user waits for it.
        self.tool_call_seconds = Histogram(
            "dialog_tool_call_seconds",
            "Time from the commit of a tool call to its answer.",
            ["tool"],
            registry=registry,
            buckets=TOOL_CALL_BUCKETS,
        )
        # Calls that were not put on the stream: overloaded (MAX_BACKLOG), conflict, error.
        self.calls_refused = Counter(
            "dialog_calls_refused", "Tool calls that the relay could not enqueue.", ["reason"], registry=registry
        )
        # Calls of which Redis has lost something: see `Loss` in plugins_contract/ledger/replies.py.
        self.calls_lost = Counter("dialog_calls_lost", "Tool calls that Redis has lost.", ["loss"], registry=registry)
        # Tool calls that wait for approval, at all engines.
        self.approvals_waiting = Gauge(
            "dialog_approvals_waiting", "Tool calls that wait for approval.", registry=registry
        )
        # Decisions on those: approved, edited, refused, expired.
        self.approvals = Counter("dialog_approvals", "Decisions on tool calls.", ["decision"], registry=registry)
        # Tool calls whose servers wait for answers of people, at all engines.
        self.questions_open = Gauge(
            "dialog_questions_open", "Tool calls with an open question of their server.", registry=registry
        )
        # Questions that were asked, and how they ended: answered, declined, cancelled, expired, withdrawn.
        self.questions = Counter("dialog_questions", "Questions of servers.", ["status"], registry=registry)
        # Tools that a provider refused by name. They are not offered until they change; /v1/tools has the reason.
        self.tools_refused = Counter(
            "dialog_tools_refused", "Tools that the provider of a model refuses.", ["tool", "model"], registry=registry
        )

        # --- Models ---
        # Requests to each model: ok, abandoned, or the code of the error.
        self.llm_requests = Counter(
            "dialog_llm_requests", "Requests to models.", ["outcome", "model"], registry=registry
        )
        # Requests that the SDKs repeated before an answer began; one request above may have several.
        self.llm_retries = Counter("dialog_llm_retries", "Retries of requests to models.", ["model"], registry=registry)
        # From a request to the model to its first token.
        self.llm_first_token = Histogram(
            "dialog_llm_first_token_seconds",
            "Time to the model's first token.",
            ["model"],
            registry=registry,
            buckets=FIRST_TOKEN_BUCKETS,
        )
        # Tokens as the provider counts them, by direction: input, output.
        self.llm_tokens = Counter("dialog_llm_tokens", "Tokens.", ["direction", "model"], registry=registry)

        # --- Outbox, leases, and what the engine depends on ---
        # Outbox rows that are not published, and how long the oldest has waited: it rises while Redis is away.
        self.outbox_rows = Gauge("dialog_outbox_rows", "Outbox rows not published yet.", registry=registry)
        self.outbox_oldest = Gauge(
            "dialog_outbox_oldest_seconds", "Age of the oldest unpublished outbox row.", registry=registry
        )
        # Of these, calls that are held back by SUBJECT_WINDOW: demand that the lag of the stream does not show.
        # While there are any, the age of the oldest row is their waiting time and says nothing about Redis.
        self.calls_held = Gauge("dialog_calls_held", "Tool calls held back by SUBJECT_WINDOW.", registry=registry)
        # Sessions of which something is still to be erased, on all engines, and the age of the oldest request. It rises
        # while Redis is away, and while a turn of such a session runs.
        # What RETENTION_DAYS and RETENTION_BY_SUBJECT say; left are sessions with a running turn.
        self.retention_erased = Counter(
            "dialog_retention_erased", "Sessions that the retention has erased.", registry=registry
        )
        self.retention_left = Gauge(
            "dialog_retention_left",
            "Sessions beyond their retention that the last pass has left, because a turn ran.",
            registry=registry,
        )
        self.erasures = Gauge("dialog_erasures", "Sessions that are to be erased.", registry=registry)
        self.erasures_oldest = Gauge(
            "dialog_erasures_oldest_seconds", "Age of the oldest request to erase.", registry=registry
        )
        # For how long the oldest event of the audit has waited for its seal, on all engines: about 2 seconds at most.
        self.audit_unsealed = Gauge(
            "dialog_audit_unsealed_seconds", "Age of the oldest event of the audit without a seal.", registry=registry
        )
        # Renewals of this engine's lease: ok, or failed because the store did not answer.
        self.lease_renewals = Counter(
            "dialog_engine_lease_renewals", "Renewals of the engine's lease.", ["outcome"], registry=registry
        )
        # How long the last renewal took that succeeded: a small transaction, which a slow store makes slow.
        self.lease_renewal_seconds = Gauge(
            "dialog_engine_lease_renewal_seconds", "Duration of the last renewal of the lease.", registry=registry
        )
        # Engines that share the store, including this one, as of the last look at their leases.
        self.engines = Gauge("dialog_engines", "Engines that share the store.", registry=registry)
        # Engines that had released their lease when they were shut down, or let it expire because they died or stalled.
        self.engines_adopted = Counter(
            "dialog_engines_adopted", "Engines whose turns this engine adopted.", ["lease"], registry=registry
        )
        # 1 while Redis answers; 1 while the store answers.
        self.redis_up = Gauge("dialog_redis_up", "Whether Redis answers.", registry=registry)
        self.store_up = Gauge("dialog_store_up", "Whether the store answers.", registry=registry)
        # How old the gauges of what is in the store are. It rises while the store needs longer than a scrape waits.
        self.store_age = Gauge(
            "dialog_store_measured_seconds", "Age of the gauges of what is in the store.", registry=registry
        )
        # Workers with a heartbeat. 0: tool calls wait.
        self.workers = Gauge("dialog_workers", "Workers with a heartbeat.", registry=registry)
        # MCP servers whose entry in Redis is not believed, because no worker with a request key has signed it so.
        self.catalogs_refused = Gauge(
            "dialog_catalogs_refused", "MCP servers whose catalog in Redis is not believed.", registry=registry
        )
        # 1 while ACCEPT_UNSIGNED_CATALOGS is set: everything in Redis is believed.
        self.unsigned_catalogs = Gauge(
            "dialog_accepts_unsigned_catalogs", "Whether catalogs without a signature are believed.", registry=registry
        )
        begin_at_zero(self.turns, "stop", "error")
        begin_at_zero(self.engines_adopted, "released", "expired")
        begin_at_zero(self.turns_moved, "restart", "takeover", "lost")
        begin_at_zero(self.calls_refused, "overloaded", "conflict", "error")
        begin_at_zero(self.calls_lost, *Loss)
        begin_at_zero(self.approvals, "approved", "edited", "refused", "expired")
        begin_at_zero(self.questions, *QuestionStatus)
        begin_at_zero(self.lease_renewals, "ok", "failed")

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """All metrics and their content type, in the format that the `Accept` field asks for."""
        return exposition(self.registry, accept)
