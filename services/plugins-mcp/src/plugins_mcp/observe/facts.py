"""Counts the facts of parts that have one of them. Parts with more own a port for an observer."""

from collections.abc import Sequence

from callstream_runtime.loop_lag import observe_lag
from plugins_mcp.observe.metrics import Metrics


class Facts:
    """Each method is called by one part, which receives it as a callback."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def lease_renewed(self, outcome: str) -> None:
        """The lease of a running call was renewed, or was not: `renewed`, `stale`, `failed`."""
        self._metrics.lease_renewals.labels(outcome).inc()

    def workers_died(self, names: Sequence[str]) -> None:
        """These workers have died and were removed here."""
        self._metrics.workers_removed.inc(len(names))

    async def observe_loop(self) -> None:
        """Observe how late the event loop is, until cancelled."""
        await observe_lag(self._metrics.loop_lag)
