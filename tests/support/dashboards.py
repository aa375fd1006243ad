"""The dashboards of deploy/grafana, and the names of the metrics that the services declare."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from deploy.prometheus_rule import groups
from dialog_engine.observe.metrics import Metrics as EngineMetrics
from plugins_contract.ledger.group import Backlog
from plugins_mcp.observe.metrics import Metrics as WorkerMetrics
from tests.support.processes import ROOT

GRAFANA = ROOT / "deploy" / "grafana"
NAME = re.compile(r"\b(?:(?:dialog|plugins|callstream)_[a-z_]+|callstream:[a-z_]+:\w+|process_[a-z_]+)\b")
_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "info": ("_info",)}


@dataclass(frozen=True)
class Query:
    dashboard: str
    panel: str
    source: str
    expr: str

    @property
    def runnable(self) -> str:
        return runnable(self.expr)


def runnable(expr: str) -> str:
    """A query with Grafana's variables filled in."""
    return expr.replace("$__rate_interval", "1m").replace("$server", ".*")


def dashboards() -> dict[str, dict[str, Any]]:
    return {file.stem: json.loads(file.read_text()) for file in sorted((GRAFANA / "dashboards").glob("*.json"))}


def queries() -> Iterator[Query]:
    for name, dashboard in dashboards().items():
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                yield Query(name, panel["title"], target["datasource"]["type"], target["expr"])


def rules() -> Iterator[str]:
    return (rule["expr"] for group in groups() for rule in group["rules"])


@cache
def declared() -> frozenset[str]:
    """The names of all samples that the services export, and of what the recording rules make of them."""
    registries: list[CollectorRegistry] = []
    for metrics in (EngineMetrics(), WorkerMetrics()):
        metrics.stream.backlogs = {"events.plugins": Backlog(0, 0, 0, 0, 0, 0, 0)}
        registries.append(metrics.registry)
    recorded = {rule["record"] for group in groups() for rule in group["rules"] if "record" in rule}
    samples = {
        family.name + suffix
        for registry in registries
        for family in registry.collect()
        for suffix in _SUFFIXES.get(family.type, ("",))
    }
    return frozenset(samples | recorded)


def undeclared(text: str) -> set[str]:
    """Names in a query that look like metrics of ours and are none."""
    return {name for name in NAME.findall(text) if name not in declared()}


def documents() -> list[Path]:
    names = ("runbook.md", "operations.md", "observability.md", "reliability.md", "architecture.md")
    return [file for name in names if (file := ROOT / "docs" / name).exists()] + [ROOT / "deploy" / "README.md"]
