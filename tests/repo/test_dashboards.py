"""Dashboards, rules and documents use metrics that exist; tests/integration/test_monitoring.py runs the queries."""

import re

import promql_parser
import pytest
import yaml

from deploy.prometheus_rule import groups
from tests.marks import promise
from tests.support.dashboards import GRAFANA, dashboards, declared, documents, queries, rules, undeclared

PACKAGES = {"dialog_engine", "callstream_runtime", "plugins_contract", "plugins_mcp"}


def family(sample: str) -> str:
    """The metric that a sample belongs to."""
    return re.sub(r"_(total|bucket|count|sum|info)$", "", sample)


@promise("dashboards, alerts and documents use declared metrics only")
def test_every_query_and_rule_uses_declared_metrics_and_can_be_parsed() -> None:
    expressions = [query.runnable for query in queries() if query.source == "prometheus"] + list(rules())

    assert len(expressions) > 80
    for expression in expressions:
        promql_parser.parse(expression)
        assert undeclared(expression) == set(), expression


def test_a_metric_that_no_service_declares_is_found() -> None:
    assert undeclared("rate(dialog_turn_total[5m]) + dialog_turns_total") == {"dialog_turn_total"}


@promise("dashboards, alerts and documents use declared metrics only")
def test_the_documents_name_metrics_as_they_are_declared() -> None:
    families = {family(name) for name in declared()}
    unknown = {
        f"{document.name}: {name}"
        for document in documents()
        for name in re.findall(r"`[^`]*`", document.read_text())
        for name in undeclared(name) - PACKAGES - families
    }

    assert unknown == set()


def test_every_metric_is_on_a_dashboard_or_in_a_rule() -> None:
    texts = "\n".join([*(query.expr for query in queries()), *rules()])
    used = {family(name) for name in re.findall(r"\w+", texts)}
    unused = {family(name) for name in declared() if ":" not in name and not name.startswith("process_")} - used

    looked_at = {"dialog_approvals", "dialog_questions", "dialog_tools_refused", "dialog_erasures"}
    assert unused == looked_at, "counted for those who look, not watched"


@pytest.mark.parametrize("name", dashboards())
def test_a_dashboard_has_a_fixed_address_and_asks_which_source(name: str) -> None:
    dashboard = dashboards()[name]
    variables = {each["name"] for each in dashboard["templating"]["list"] if each["type"] == "datasource"}

    assert dashboard["uid"] == f"callstream-{name}"
    used = {target["datasource"]["uid"] for panel in dashboard["panels"] for target in panel.get("targets", ())}
    assert used == {f"${{{variable}}}" for variable in variables}


@pytest.mark.parametrize("name", dashboards())
def test_panels_do_not_overlap(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboards()[name]["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip # noqa: E501
        assert not cells & taken, panel["title"]
        taken |= cells
    assert max(x for x, _ in taken) < 24


def test_panels_name_alerts_that_exist() -> None:
    alerts = {rule["alert"] for group in groups() for rule in group["rules"] if "alert" in rule}
    descriptions = "\n".join(panel.get("description", "") for each in dashboards().values() for panel in each["panels"])
    named = {name for names in re.findall(r"Alerts?: ([\w, ]+)", descriptions) for name in re.findall(r"\w+", names)}

    assert named - alerts == set()
    assert len(named) > 20


def test_grafana_is_provisioned_with_the_source_and_the_dashboards() -> None:
    [source] = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "prometheus.yml").read_text())["datasources"]
    [provider] = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "callstream.yml").read_text())["providers"]

    assert source["url"] == "http://prometheus:9090"
    assert provider["options"]["path"] == "/etc/callstream/dashboards"
