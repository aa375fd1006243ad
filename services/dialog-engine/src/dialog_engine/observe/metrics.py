"""Every metric of the engine, declared once."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

FIRST_TOKEN_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96)
TOOL_CALL_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


class Metrics:
    """The engine's metrics in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        # Turns, by how they ended: stop, length, max_rounds, cancelled, error, …
        self.turns = Counter("dialog_turns", "Turns that ended.", ["reason"], registry=registry)
        # Turns that changed their owner: restart (same engine), takeover (from a dead one), lost (to another one).
        self.turns_moved = Counter("dialog_turns_moved", "Turns that changed their owner.", ["how"], registry=registry)
        # Turns that are running.
        self.turns_running = Gauge("dialog_turns_running", "Turns that are running.", registry=registry)
        # Messages that wait for the running turn of their session (`onBusy: queue`).
        self.messages_queued = Gauge(
            "dialog_messages_queued", "Messages that wait for their session.", registry=registry
        )
        # Open event streams: connections of clients that follow a turn.
        self.event_streams = Gauge("dialog_event_streams", "Open event streams.", registry=registry)
        # Clients that were disconnected because they read nothing for 20 seconds while events waited. They reconnect.
        self.clients_dropped = Counter(
            "dialog_clients_dropped", "Clients that were disconnected because they did not read.", registry=registry
        )
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
        # Tool calls that wait for approval: their turns are paused.
        self.approvals_waiting = Gauge(
            "dialog_approvals_waiting", "Tool calls that wait for approval.", registry=registry
        )
        # Decisions on those: approved, edited, refused, expired.
        self.approvals = Counter("dialog_approvals", "Decisions on tool calls.", ["decision"], registry=registry)
        # Tools that a provider refused by name. They are not offered until they change; /v1/tools has the reason.
        self.tools_refused = Counter(
            "dialog_tools_refused", "Tools that the provider of a model refuses.", ["tool", "model"], registry=registry
        )
        # Requests to each model: ok, or the code of the error.
        self.llm_requests = Counter(
            "dialog_llm_requests", "Requests to models.", ["outcome", "model"], registry=registry
        )
        # From a request to the model to its first token.
        self.llm_first_token = Histogram(
            "dialog_llm_first_token_seconds",
            "Time to the model's first token.",
            registry=registry,
            buckets=FIRST_TOKEN_BUCKETS,
        )
        # Tokens as the provider counts them, by direction: input, output.
        self.llm_tokens = Counter("dialog_llm_tokens", "Tokens.", ["direction"], registry=registry)
        # Outbox rows that are not published, and how long the oldest has waited: it rises while Redis is away.
        self.outbox_rows = Gauge("dialog_outbox_rows", "Outbox rows not published yet.", registry=registry)
        self.outbox_oldest = Gauge(
            "dialog_outbox_oldest_seconds", "Age of the oldest unpublished outbox row.", registry=registry
        )
        # Of these, calls that are held back by SUBJECT_WINDOW: demand that the lag of the stream does not show.
        # While there are any, the age of the oldest row is their waiting time and says nothing about Redis.
        self.calls_held = Gauge("dialog_calls_held", "Tool calls held back by SUBJECT_WINDOW.", registry=registry)
        # 1 while Redis answers.
        self.redis_up = Gauge("dialog_redis_up", "Whether Redis answers.", registry=registry)
        # The request stream as the engine sees it: a worker's own metrics vanish with the worker.
        stream = ["stream", "group"]
        self.lag = Gauge("callstream_stream_lag", "Requests that no worker has taken.", stream, registry=registry)
        self.pending = Gauge(
            "callstream_stream_pending", "Requests that workers have taken and not finished.", stream, registry=registry
        )
        self.oldest_pending = Gauge(
            "callstream_stream_oldest_pending_seconds",
            "Time since the lease of the oldest pending request was renewed.",
            stream,
            registry=registry,
        )
        # Kept until an operator discards them (`plugins-mcp dead list`). Their callers were answered.
        self.dead_letters = Gauge(
            "callstream_dead_letters", "Tool calls that no worker could handle.", registry=registry
        )

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)
