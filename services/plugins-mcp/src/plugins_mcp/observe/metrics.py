"""Every metric of the worker, declared once. `docs/observability.md` has the same list."""

import platform
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.process_collector import ProcessCollector

from callstream_runtime.loop_lag import lag_histogram
from callstream_runtime.metrics import TOOL_CALL_BUCKETS, StreamMetrics, ToolLabels, begin_at_zero, exposition


class Metrics:
    """The worker's metrics in a registry of their own."""

    def __init__(self, build: Mapping[str, str] = {}) -> None:
        """`build` says which worker this is."""
        self.registry = registry = CollectorRegistry()
        self.tools = ToolLabels()
        # The streams of requests, their consumer group, and the dead letters: `callstream_runtime/metrics.py`. The
        # engine exports the same, for when no worker is running.
        self.stream = StreamMetrics()
        registry.register(self.stream)
        # CPU time, memory and file descriptors of this process, and how late its event loop is.
        ProcessCollector(registry=registry)
        self.loop_lag = lag_histogram("plugins_loop_lag_seconds", registry)
        self.build = Info("plugins_build", "Which worker this is.", registry=registry)
        self.build.info({**build, "python": platform.python_version()})

        # --- Tool calls ---
        # Calls that this worker made terminal, by the ledger's state and the error code ("" when there is none).
        self.calls = Counter(
            "plugins_calls", "Tool calls made terminal.", ["server", "tool", "state", "code"], registry=registry
        )
        # From START to COMPLETE.
        self.call_seconds = Histogram(
            "plugins_call_seconds",
            "Execution time of tool calls.",
            ["server", "tool"],
            registry=registry,
            buckets=TOOL_CALL_BUCKETS,
        )
        # From XADD to the first START, on the clock of Redis.
        self.queue_seconds = Histogram(
            "plugins_call_queue_seconds",
            "Time that tool calls waited in the stream.",
            ["server"],
            registry=registry,
            buckets=TOOL_CALL_BUCKETS,
        )
        # Calls run again because that was safe.
        self.retries = Counter("plugins_call_retries", "Calls run again.", ["server", "tool"], registry=registry)
        # Requests that were delivered again: takeover (the lease of another worker expired), recovery (the reply of
        # Redis to an earlier read was lost).
        self.redeliveries = Counter("plugins_redeliveries", "Requests delivered again.", ["how"], registry=registry)
        # Requests that became dead letters here: producer (another producer than an engine has written something that
        # cannot be run: its own mistake), call (everything else).
        self.dead_letters = Counter(
            "plugins_dead_letters", "Requests that became dead letters.", ["cause"], registry=registry
        )
        # Calls that run now, and how many can (WORKER_CONCURRENCY).
        self.running = Gauge("plugins_calls_running", "Tool calls that run now.", registry=registry)
        self.slots = Gauge("plugins_call_slots", "Tool calls that can run at the same time.", registry=registry)

        # --- Leases ---
        # Renewals of the leases of running calls: renewed, stale (another worker has the call), failed.
        self.lease_renewals = Counter(
            "plugins_lease_renewals", "Renewals of leases of running calls.", ["outcome"], registry=registry
        )
        # Calls that were stopped here because another worker may have taken them over: stalls, or an outage of Redis.
        self.leases_lost = Counter("plugins_leases_lost", "Leases lost.", ["server"], registry=registry)

        # Workers that ended without leaving the group, noticed here: they were killed, or stalled for longer than 30 s.
        self.workers_removed = Counter(
            "plugins_workers_removed", "Workers that died and were removed here.", registry=registry
        )

        # --- What the worker depends on ---
        # 0: the MCP server is not connected, or does not answer calls.
        self.server_up = Gauge(
            "plugins_mcp_server_up", "Whether an MCP server is connected.", ["server"], registry=registry
        )
        # 1 for the current state of each MCP server's circuit breaker, 0 for its other states. Open: calls are refused.
        self.server_breaker = Gauge(
            "plugins_mcp_server_breaker",
            "The state of an MCP server's circuit breaker.",
            ["server", "state"],
            registry=registry,
        )
        # Resources of each MCP server whose updates are watched, 200 at most: those that were read in the last hour.
        self.watched = Gauge(
            "plugins_mcp_resources_watched", "Resources whose updates are watched.", ["server"], registry=registry
        )
        # 1 while the worker reads requests.
        self.consuming = Gauge("plugins_consuming", "Whether the worker reads requests.", registry=registry)
        # 1 while Redis answers.
        self.redis_up = Gauge("plugins_redis_up", "Whether Redis answers.", registry=registry)
        begin_at_zero(self.redeliveries, "takeover", "recovery")
        begin_at_zero(self.dead_letters, "producer", "call")
        begin_at_zero(self.lease_renewals, "renewed", "stale", "failed")

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """All metrics and their content type, in the format that the `Accept` field asks for."""
        return exposition(self.registry, accept)
