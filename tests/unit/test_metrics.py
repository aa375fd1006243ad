"""The metrics of both services: their names, the bounds on their labels, and the formats of a scrape."""

import asyncio
import re
import threading
import time
from typing import cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from callstream_runtime.loop_lag import lag_histogram, observe_lag
from callstream_runtime.metrics import MAX_TOOLS, StreamMetrics
from dialog_engine.consumption.subjects import SubjectUse
from dialog_engine.observe.facts import Facts
from dialog_engine.observe.metrics import Metrics as EngineMetrics
from dialog_engine.observe.observed import ObservedCalls
from plugins_contract.catalog import ToolEntry
from plugins_contract.ledger.group import Backlog
from plugins_contract.outcomes import CallState, ToolOutcome
from plugins_mcp.observe.calls import CallObserver
from plugins_mcp.observe.metrics import Metrics as WorkerMetrics
from tests.marks import promise
from tests.support.handling import delivery
from tests.support.processes import ROOT
from tests.support.waiting import wait_until

DOCUMENT = ROOT / "docs" / "observability.md"
OF_PROCESSES = "process_"
TOOL = ToolEntry(name="t", server="demo", tool="t", input_schema={})
SUCCEEDED = ToolOutcome(CallState.SUCCEEDED)
SUFFIXES = {"counter": "_total", "info": "_info"}


def exported(metrics: EngineMetrics | WorkerMetrics) -> set[str]:
    """The names under which a service's own metrics are queried."""
    metrics.stream.backlogs = {"events.plugins": Backlog(0, 0, 0, 0.0, 0, 0)}
    found = metrics.registry.collect()
    return {each.name + SUFFIXES.get(each.type, "") for each in found if not each.name.startswith(OF_PROCESSES)}


@promise("metrics are declared once, documented, and bounded in number")
def test_the_documented_metrics_are_the_declared_ones() -> None:
    documented = re.findall(r"^\| `(\w+)` \| (?:counter|gauge|histogram) ", DOCUMENT.read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(exported(EngineMetrics()) | exported(WorkerMetrics()))


@pytest.mark.parametrize(("package", "kind"), [("dialog-engine", EngineMetrics), ("plugins-mcp", WorkerMetrics)])
def test_each_metric_is_counted_or_measured_in_observe_and_nowhere_else(
    package: str, kind: type[EngineMetrics] | type[WorkerMetrics]
) -> None:
    declared = {name for name, value in vars(kind()).items() if isinstance(value, MetricWrapperBase)} - {"build"}
    source = ROOT / "services" / package / "src"
    used: dict[bool, set[str]] = {True: set(), False: set()}
    for file in source.rglob("*.py"):
        used["observe" in file.parts] |= set(re.findall(r"metrics\.(\w+)", file.read_text()))
    assert declared - used[True] == set()
    assert declared & used[False] == set()


def families(registry: CollectorRegistry) -> dict[str, str]:
    """The names of all metrics with their help, also of those without a value yet."""
    return {family.name: family.documentation for family in registry.collect()}


@pytest.mark.parametrize(
    ("kind", "name", "labels"),
    [
        (EngineMetrics, "dialog_turns_total", {"reason": "error"}),
        (EngineMetrics, "dialog_turns_moved_total", {"how": "lost"}),
        (EngineMetrics, "dialog_calls_refused_total", {"reason": "overloaded"}),
        (EngineMetrics, "dialog_calls_lost_total", {"loss": "STRANDED"}),
        (EngineMetrics, "dialog_approvals_total", {"decision": "expired"}),
        (EngineMetrics, "dialog_questions_total", {"status": "withdrawn"}),
        (EngineMetrics, "dialog_engine_lease_renewals_total", {"outcome": "failed"}),
        (WorkerMetrics, "plugins_redeliveries_total", {"how": "takeover"}),
        (WorkerMetrics, "plugins_lease_renewals_total", {"outcome": "stale"}),
    ],
)
def test_a_series_that_alerts_watch_is_0_before_its_first_event(
    kind: type[EngineMetrics] | type[WorkerMetrics], name: str, labels: dict[str, str]
) -> None:
    assert kind().registry.get_sample_value(name, labels) == 0


@promise("metrics are declared once, documented, and bounded in number")
def test_neither_service_makes_a_series_for_each_of_very_many_tools() -> None:
    engine, worker = EngineMetrics(), WorkerMetrics()
    calls, runs, facts = ObservedCalls(engine), CallObserver(worker), Facts(engine, cast("SubjectUse", None))
    for n in range(10 * MAX_TOOLS):
        request = msgspec.structs.replace(delivery().request, tool=f"tool_{n}", tool_name=f"demo__tool_{n}")
        calls.finished(request, SUCCEEDED, 0.1)
        runs.finished(request, SUCCEEDED)
        runs.retried(request, 0.1, "away")
        facts.tool_refused(msgspec.structs.replace(TOOL, name=request.tool_name), "openai:x")
    for metrics, name in (
        (engine, "dialog_tool_call_seconds"),
        (engine, "dialog_tools_refused"),
        (worker, "plugins_calls"),
        (worker, "plugins_call_seconds"),
        (worker, "plugins_call_retries"),
    ):
        [family] = [each for each in metrics.registry.collect() if each.name == name]
        assert len({sample.labels["tool"] for sample in family.samples}) == MAX_TOOLS + 1


def test_the_stream_is_left_out_while_redis_does_not_answer() -> None:
    registry = CollectorRegistry()
    stream = StreamMetrics()
    registry.register(stream)
    stream.backlogs = {"events.plugins": Backlog(5, 3, 2, 1.5, 4, 1, 0.5), "a pool": Backlog(7, 7, 0, 0.0, 1, 1)}
    assert registry.get_sample_value("callstream_stream_lag", {"stream": "a pool", "group": "plugins-workers"}) == 7
    labels = {"stream": "events.plugins", "group": "plugins-workers"}
    assert registry.get_sample_value("callstream_stream_lag", labels) == 3
    assert registry.get_sample_value("callstream_stream_pending", labels) == 2
    assert registry.get_sample_value("callstream_stream_oldest_waiting_seconds", labels) == 0.5
    assert registry.get_sample_value("callstream_stream_oldest_pending_seconds", labels) == 1.5
    assert registry.get_sample_value("callstream_dead_letters") == 1
    stream.backlogs = {}
    assert not families(registry)


async def test_work_of_the_loop_differs_from_a_wait_of_its_thread() -> None:
    registry = CollectorRegistry()
    watch = asyncio.create_task(observe_lag(lag_histogram("lag", registry)))

    def longer(clock: str, seconds: str) -> float:
        labels = {"clock": clock}
        count = registry.get_sample_value("lag_count", labels) or 0.0
        return count - (registry.get_sample_value("lag_bucket", labels | {"le": seconds}) or 0.0)

    await asyncio.sleep(0)
    threading.Event().wait(0.4)  # the thread waits, as when other processes have the processor
    await wait_until(lambda: longer("wall", "0.25") == 1)
    assert longer("processor", "0.25") == 0
    ends = time.thread_time() + 0.4
    while time.thread_time() < ends:
        pass
    await wait_until(lambda: longer("processor", "0.25") == 1)
    watch.cancel()
