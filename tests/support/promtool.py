"""The alert rules under promtool: which of them fire for given time series."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from deploy.prometheus_rule import ALERTS


def missing() -> str | None:
    return None if shutil.which("promtool") else "no promtool on the path"


def wrong_alerts(
    folder: Path,
    scenarios: Mapping[str, tuple[dict[str, str], set[str]]],
    at: str,
    *,
    step: str = "1m",
    state: str = "firing",
) -> str:
    """Run all rules over the series of each scenario; what promtool prints when others fire `at` that time,
    or are in that `state`. Watchdog, which always fires, does not count.

    A scenario is its series, as promtool writes them, and the names of the alerts that must fire: these and no others.
    `step` is the time between two samples, and between two evaluations.
    """
    tests: list[dict[str, Any]] = [
        {
            "name": name,
            "interval": step,
            "input_series": [{"series": each, "values": values} for each, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": f'count by (alertname) (ALERTS{{alertstate=~"{state}",alertname!="Watchdog"}}) > bool 0',
                    "eval_time": at,
                    "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(alerts)],
                }
            ],
        }
        for name, (series, alerts) in scenarios.items()
    ]
    file = folder / "scenarios.yml"
    rules = [str(rules) for rules in sorted(ALERTS.glob("*.yml"))]
    file.write_text(yaml.safe_dump({"rule_files": rules, "evaluation_interval": step, "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, check=False, timeout=280)
    return "" if done.returncode == 0 else done.stdout + done.stderr
