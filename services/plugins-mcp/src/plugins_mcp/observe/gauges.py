"""The gauges that are measured at the time of a scrape, each from its part."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from callstream_runtime.clock import RedisWatch
from plugins_contract.catalog import BreakerState, ServerState
from plugins_contract.ledger.group import Backlog
from plugins_mcp.consumer import Consumer
from plugins_mcp.handler import CallHandler
from plugins_mcp.mcp import McpServers
from plugins_mcp.observe.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Gauges:
    """Measures the parts of one worker. `slots` is WORKER_CONCURRENCY."""

    metrics: Metrics
    handler: CallHandler
    servers: McpServers
    consumer: Consumer
    watch: RedisWatch
    backlogs: Callable[[], Awaitable[Mapping[str, Backlog]]]
    slots: int

    async def scrape(self, accept: str = "") -> tuple[bytes, str]:
        """The metrics and their content type, with what is measured now.

        `accept` is the `Accept` field of the request.
        """
        metrics = self.metrics
        metrics.slots.set(self.slots)
        metrics.running.set(len(self.handler))
        metrics.consuming.set(self.consumer.reading)
        metrics.redis_up.set(self.watch.available)
        for gauge in (metrics.server_up, metrics.server_breaker, metrics.watched):
            gauge.clear()  # a server may have been taken out of the configuration
        for name, health in self.servers.health().items():
            metrics.server_up.labels(name).set(health.state is ServerState.READY)
            for state in BreakerState:
                metrics.server_breaker.labels(name, state).set(health.breaker is state)
        for name, server in self.servers.items():
            metrics.watched.labels(name).set(len(server.watched))
        metrics.stream.backlogs = await self.backlogs()
        return metrics.text(accept)
