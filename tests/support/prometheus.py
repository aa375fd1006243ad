"""A real Prometheus that scrapes processes of a test."""

import json
import shutil
import urllib.parse
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deploy.local.ports import free_port
from deploy.prometheus_rule import ALERTS
from tests.support.processes import Process, answers


def missing() -> str | None:
    return None if shutil.which("prometheus") else "no prometheus on the path"


@dataclass(frozen=True)
class Series:
    """One series of a range query: Unix seconds and values."""

    labels: dict[str, str]
    points: list[tuple[float, float]]


class Prometheus:
    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expr: str) -> list[dict[str, Any]]:
        return self._get("query", query=expr)["result"]

    def range(self, expr: str, start: float, end: float, step_seconds: float) -> list[Series]:
        result = self._get("query_range", query=expr, start=str(start), end=str(end), step=str(step_seconds))["result"]
        return [
            Series(found["metric"], [(float(at), float(value)) for at, value in found["values"]]) for found in result
        ]

    def exemplars(self, expr: str, start: float, end: float) -> list[dict[str, str]]:
        found: list[dict[str, Any]] = self._get("query_exemplars", query=expr, start=str(start), end=str(end))
        return [exemplar["labels"] for series in found for exemplar in series["exemplars"]]

    def firing(self) -> set[str]:
        return {alert["labels"]["alertname"] for alert in self._get("alerts")["alerts"] if alert["state"] == "firing"}

    def rule_errors(self) -> list[str]:
        """What went wrong when rules were evaluated."""
        return [
            f"{rule['name']}: {rule['lastError']}"
            for group in self._get("rules")["groups"]
            for rule in group["rules"]
            if rule["health"] == "err"
        ]

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310
            return json.load(response)["data"]


@contextmanager
def running_prometheus(
    folder: Path,
    jobs: Mapping[str, Sequence[int]],
    *,
    scrape_interval: str = "1s",
    evaluation_interval: str = "1s",
    alertmanager: int | None = None,
) -> Generator[Prometheus]:
    """One that scrapes these ports, by job, evaluates the rules of deploy/, and shows the runbook.

    `alertmanager` is the port of the one that it sends alerts to.
    """
    url = f"http://127.0.0.1:{free_port()}"
    scrapes: list[dict[str, Any]] = [
        {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}]}
        for job, ports in jobs.items()
    ]
    times = {"scrape_interval": scrape_interval, "evaluation_interval": evaluation_interval}
    usual = times | {"external_labels": {"runbook": f"{url}/consoles/runbook.html"}}
    config: dict[str, Any] = {"global": usual, "rule_files": [str(ALERTS / "*.yml")], "scrape_configs": scrapes}
    if alertmanager:
        config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}]}
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    argv = [
        "prometheus",
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--enable-feature=exemplar-storage",
        "--rules.alert.resend-delay=5s",  # what fires before the Alertmanager is known is sent again after this
        f"--web.console.templates={ALERTS.parent / 'consoles'}",
    ]
    process = Process(argv)
    try:
        process.wait_ready(lambda: answers(f"{url}/-/ready"), 60)
        yield Prometheus(url)
    finally:
        process.close()
