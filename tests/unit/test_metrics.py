"""The metrics of both services: their names, the bounds on their labels, and the formats of a scrape."""

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from dialog_engine.observe.metrics import Metrics as EngineMetrics
from plugins_contract.ledger.group import Backlog
from plugins_contract.metrics import MAX_TOOLS, OTHER, StreamMetrics, ToolLabels
from plugins_mcp.observe.metrics import Metrics as WorkerMetrics


def families(registry: CollectorRegistry) -> dict[str, str]:
    """The names of all metrics with their help, also of those without a value yet."""
    return {family.name: family.documentation for family in registry.collect()}


@pytest.mark.parametrize("kind", [EngineMetrics, WorkerMetrics])
def test_every_metric_is_described_and_can_be_read(kind: type[EngineMetrics] | type[WorkerMetrics]) -> None:
    metrics = kind()
    text, content_type = metrics.text()
    assert content_type.startswith("text/plain")
    assert all(family.documentation for family in text_string_to_metric_families(text.decode()))


def test_a_server_with_very_many_tools_does_not_make_as_many_series() -> None:
    labels = ToolLabels()
    values = {labels.of(f"tool_{n}", "big") for n in range(10_000)}
    assert len(values) == MAX_TOOLS + 1
    assert OTHER in values
    assert labels.of("tool_0", "big") == "tool_0"


def test_the_stream_is_left_out_while_redis_does_not_answer() -> None:
    registry = CollectorRegistry()
    stream = StreamMetrics("events.plugins")
    registry.register(stream)
    stream.backlog = Backlog(5, 3, 2, 1.5, 4, 1, 0.5)
    labels = {"stream": "events.plugins", "group": "plugins-workers"}
    assert registry.get_sample_value("callstream_stream_lag", labels) == 3
    assert registry.get_sample_value("callstream_stream_pending", labels) == 2
    assert registry.get_sample_value("callstream_stream_oldest_waiting_seconds", labels) == 0.5
    assert registry.get_sample_value("callstream_stream_oldest_pending_seconds", labels) == 1.5
    assert registry.get_sample_value("callstream_dead_letters") == 1
    stream.backlog = None
    assert not families(registry)
