"""What the metrics of both services share: the streams of requests, bounds on labels, and the formats of a scrape."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from plugins_contract.keys import GROUP
from plugins_contract.ledger.group import Backlog

TOOL_CALL_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
MAX_TOOLS = 200
"""How many tools one process gives time series of their own."""
OTHER = "(other)"
"""The label of the tools beyond."""

_OF_GROUP: tuple[tuple[str, str, Callable[[Backlog], float]], ...] = (
    ("callstream_stream_lag", "Requests that no worker has taken.", lambda now: now.lag),
    ("callstream_stream_pending", "Requests that workers have taken and not finished.", lambda now: now.pending),
    (
        "callstream_stream_oldest_waiting_seconds",
        "Age of the oldest request that no worker has taken.",
        lambda now: now.oldest_waiting_seconds,
    ),
    (
        "callstream_stream_oldest_pending_seconds",
        "Time since the lease of the oldest pending request was renewed.",
        lambda now: now.oldest_pending_seconds,
    ),
    ("callstream_stream_consumers", "Consumers of the group, dead ones included.", lambda now: now.consumers),
)
# Kept until an operator discards them (`plugins-mcp dead`). Their callers were answered.
_DEAD_LETTERS = ("callstream_dead_letters", "Tool calls that no worker could handle.")


class StreamMetrics(Collector):
    """The streams of requests, as they were read for this scrape; nothing while Redis does not answer.

    Engines export them too: what only workers export disappears with the workers.
    """

    def __init__(self) -> None:
        self.backlogs: Mapping[str, Backlog] = {}
        """By the name of the stream."""

    def describe(self) -> Iterable[Metric]:
        """The names, without values."""
        for name, text, _ in _OF_GROUP:
            yield GaugeMetricFamily(name, text, labels=("stream", "group"))
        yield GaugeMetricFamily(*_DEAD_LETTERS)

    def collect(self) -> Iterable[Metric]:
        """The values."""
        if not self.backlogs:
            return
        for name, text, value in _OF_GROUP:
            family = GaugeMetricFamily(name, text, labels=("stream", "group"))
            for stream, backlog in self.backlogs.items():
                family.add_metric((stream, GROUP), value(backlog))
            yield family
        yield GaugeMetricFamily(*_DEAD_LETTERS, value=max(each.dead for each in self.backlogs.values()))


class ToolLabels(dict[tuple[str, str], str]):
    """The labels of tools, by server and tool: the first `limit` tools keep their names, all others share one."""

    def __init__(self, limit: int = MAX_TOOLS) -> None:
        super().__init__()
        self._limit = limit

    def __missing__(self, key: tuple[str, str]) -> str:
        if len(self) >= self._limit:
            return OTHER
        return self.setdefault(key, key[1])


def begin_at_zero(counter: Counter, *labels: str) -> None:
    """Export a counter with one label for these values from the start.

    Prometheus counts increases between two scrapes: it misses what a series has when it is seen for the first time.
    """
    for label in labels:
        counter.labels(label)


def exposition(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """All metrics and their content type, in the format that the `Accept` field asks for. OpenMetrics has exemplars."""
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
