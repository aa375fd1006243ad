"""Makes the PrometheusRule for the Prometheus operator of the rule files: `python -m deploy.prometheus_rule`.

Prometheus reads the groups of rules from files, the operator reads the same groups from a resource of Kubernetes.
"""

from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parent
ALERTS = DEPLOY / "prometheus" / "alerts"
RULE = DEPLOY / "k8s" / "components" / "monitoring" / "prometheus-rule.yaml"
LINKS = "{{ $externalLabels.runbook }}"
"""Where links lead, in the rules of Prometheus. In Kubernetes kustomize puts it in front of `#`."""
HEADER = "# Made of deploy/prometheus/alerts by `python -m deploy.prometheus_rule`: change those files, not this one.\n"


def groups() -> list[dict[str, Any]]:
    """The groups of all rule files."""
    return [group for file in sorted(ALERTS.glob("*.yml")) for group in yaml.safe_load(file.read_text())["groups"]]


def prometheus_rule() -> str:
    """The text of the resource."""
    resource = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "callstream"},
        "spec": {"groups": groups()},
    }
    return HEADER + yaml.safe_dump(resource, sort_keys=False, width=118).replace(LINKS, "RUNBOOK_URL")


if __name__ == "__main__":
    RULE.write_text(prometheus_rule())
