"""Every alert fires when it should and stays silent just short of it, and has an entry in the runbook.

The scenarios run in promtool. Each begins with an installation in which all is well, and changes some of its series.
`0+6x60` is a counter that rises by 6 every minute for an hour.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from deploy.check import OVERLAYS, built
from deploy.prometheus_rule import LINKS, RULE, groups, prometheus_rule
from deploy.runbook_page import PAGE, RUNBOOK, runbook_page
from tests.marks import exhaustive, promise
from tests.support import promtool

STREAM = '{stream="events.plugins",group="plugins-workers",instance="e1"}'
LAG = '{}_loop_lag_seconds_{}{{instance="w1",clock="processor"{}}}'
WELL = {
    'up{job="dialog-engine",instance="e1"}': "1x60",
    'up{job="dialog-engine",instance="e2"}': "1x60",
    'up{job="plugins-mcp",instance="w1"}': "1x60",
    'up{job="plugins-mcp",instance="w2"}': "1x60",
    'dialog_redis_up{instance="e1"}': "1x60",
    'plugins_redis_up{instance="w1"}': "1x60",
    'dialog_store_up{instance="e1"}': "1x60",
    'dialog_workers{instance="e1"}': "2x60",
    'dialog_workers{instance="e2"}': "2x60",
    'dialog_catalogs_refused{instance="e1"}': "0x60",
    'dialog_accepts_unsigned_catalogs{instance="e1"}': "0x60",
    'dialog_outbox_oldest_seconds{instance="e1"}': "0x60",
    'dialog_calls_held{instance="e1"}': "0x60",
    'dialog_turns_total{reason="stop"}': "0+6x60",
    'dialog_tool_calls_total{tool="demo__echo",status="succeeded"}': "0+6x60",
    'dialog_llm_requests_total{outcome="ok",model="m"}': "0+6x60",
    'dialog_turn_first_token_seconds_bucket{le="5.12"}': "0+6x60",
    'dialog_turn_first_token_seconds_bucket{le="20.48"}': "0+6x60",
    'dialog_turn_first_token_seconds_bucket{le="+Inf"}': "0+6x60",
    "dialog_turn_first_token_seconds_count": "0+6x60",
    "dialog_event_streams": "100x60",
    "dialog_clients_dropped_total": "0x60",
    'dialog_engines_adopted_total{lease="expired"}': "0x60",
    "plugins_workers_removed_total": "0x60",
    f"callstream_stream_lag{STREAM}": "0x60",
    f"callstream_stream_oldest_waiting_seconds{STREAM}": "0x60",
    f"callstream_stream_oldest_pending_seconds{STREAM}": "2x60",
    "callstream_dead_letters": "0x60",
    "plugins_calls_running": "4x60",
    "plugins_call_slots": "16x60",
    'plugins_consuming{instance="w1"}': "1x60",
    'plugins_mcp_server_up{server="demo",instance="w1"}': "1x60",
    'plugins_mcp_server_up{server="demo",instance="w2"}': "1x60",
    'plugins_mcp_server_breaker{server="demo",state="open",instance="w1"}': "0x60",
    'process_resident_memory_bytes{job="plugins-mcp",instance="w1"}': "200000000x60",
    'dialog_requests_refused_total{code="LIMIT_EXCEEDED"}': "0x60",
    'redis_memory_used_bytes{instance="r"}': "100x60",
    'redis_memory_max_bytes{instance="r"}': "500x60",
    'pg_stat_database_numbackends{instance="p",datname="callstream"}': "24x60",
    'pg_settings_max_connections{instance="p"}': "200x60",
    'node_filesystem_avail_bytes{mountpoint="/volumes/redis"}': "50x60",
    'node_filesystem_size_bytes{mountpoint="/volumes/redis"}': "100x60",
    'up{job="redis",instance="r"}': "1x60",
    LAG.format("plugins", "count", ""): "0+600x60",
    LAG.format("plugins", "bucket", ',le="1.0"'): "0+600x60",
}

ERRORS = 'dialog_turns_total{reason="error"}'
FAILED = 'dialog_tool_calls_total{tool="demo__fail",status="failed"}'
TIMEOUT = 'dialog_tool_calls_total{tool="demo__slow",status="timeout"}'
MODEL = 'dialog_llm_requests_total{outcome="MODEL_OVERLOADED",model="m"}'
GONE = "1x45 stale"

FIRES: dict[str, dict[str, str]] = {
    "TurnErrors": {ERRORS: "0+2x60"},
    "TurnErrorsSlow": {ERRORS: "0+0.6x60"},
    "ToolFailures": {FAILED: "0+3x60"},
    "ToolFailuresSlow": {FAILED: "0+1.5x60"},
    "ToolTimeouts": {TIMEOUT: "0+1.2x60"},
    "ToolTimeoutsSlow": {TIMEOUT: "0+0.6x60"},
    "SlowFirstToken": {'dialog_turn_first_token_seconds_bucket{le="5.12"}': "0+3x60"},
    "ModelErrors": {MODEL: "0+3x60"},
    "ClientsDropped": {"dialog_clients_dropped_total": "0+4x60"},
    "NoWorker": {'dialog_workers{instance="e1"}': "2x57 0x3", 'dialog_workers{instance="e2"}': "2x57 0x3"},
    "CatalogsRefused": {'dialog_catalogs_refused{instance="e1"}': "0x57 1x3"},
    "UnsignedCatalogsAccepted": {'dialog_accepts_unsigned_catalogs{instance="e1"}': "0x40 1x20"},
    "OutboxNotPublished without heartbeats": {'dialog_workers{instance="e1"}': "2x54 0x6",
        'dialog_workers{instance="e2"}': "2x54 0x6", 'dialog_outbox_oldest_seconds{instance="e1"}': "0x53 15+60x6"},
    "RequestsWait": {f"callstream_stream_oldest_waiting_seconds{STREAM}": "0x54 5+60x6"},
    "BacklogGrows": {f"callstream_stream_lag{STREAM}": "0+20x60"},
    "CallsNotTakenOver": {f"callstream_stream_oldest_pending_seconds{STREAM}": "2x54 5+60x6"},
    "OutboxNotPublished": {'dialog_outbox_oldest_seconds{instance="e1"}': "0x54 5+60x6"},
    "ErasuresWait": {'dialog_erasures_oldest_seconds{instance="e1"}': "0x30 60+60x29"},
    "ParkedTurnsOverdue": {'dialog_turns_parked_overdue_seconds{instance="e1"}': "0x50 60+60x9"},
    "AuditNotSealed": {'dialog_audit_unsealed_seconds{instance="e1"}': "2x50 60+60x9"},
    "CallsRefused": {'dialog_calls_refused_total{reason="overloaded"}': "0x54 0+1x6"},
    "SlotsFull": {"plugins_calls_running": "4x50 16x10"},
    "DeadLetters": {"callstream_dead_letters": "0x58 1x2", 'plugins_dead_letters_total{cause="call"}': "0x58 1x2"},
    "ProducerMistakes": {"callstream_dead_letters": "0x58 9x2",
        'plugins_dead_letters_total{cause="producer"}': "0x58 9x2"},
    "CallsTakenOver": {'plugins_redeliveries_total{how="takeover"}': "0x50 0+1x10"},
    "LeasesLost": {'plugins_leases_lost_total{server="demo"}': "_x58 1x2"},
    "CallsLost": {'dialog_calls_lost_total{loss="VANISHED"}': "_x58 1x2"},
    "NoEngine": {'up{job="dialog-engine",instance="e1"}': GONE, 'up{job="dialog-engine",instance="e2"}': GONE},
    "EngineDown": {'up{job="dialog-engine",instance="e1"}': "1x54 0x6"},
    "WorkerDown": {'up{job="plugins-mcp",instance="w1"}': "1x54 0x6"},
    "EngineDown without a target": {'up{job="dialog-engine",instance="e1"}': GONE,
        'dialog_engines_adopted_total{lease="expired"}': "0x45 1x15"},
    "WorkerDown without a target": {'up{job="plugins-mcp",instance="w1"}': GONE,
        "plugins_workers_removed_total": "0x45 1x15"},
    "McpServerFailing for a minute": {'plugins_calls_total{server="demo",code="TIMEOUT"}': "_x57 20+20x3",
        'plugins_calls_total{server="demo",code=""}': "0+600x57 34200x3"},
    "McpServerFailing": {'plugins_calls_total{server="demo",code="NETWORK_ERROR"}': "0x50 0+3x10",
        'plugins_calls_total{server="demo",code=""}': "0+2x60"},
    "WorkerNotConsuming": {'plugins_consuming{instance="w1"}': "1x54 0x6"},
    "RedisDown": {'plugins_redis_up{instance="w1"}': "1x57 0x3"},
    "StoreDown": {'dialog_store_up{instance="e1"}': "1x57 0x3"},
    "StoreSlow": {'dialog_engine_lease_renewal_seconds{instance="e1"}': "0.02x50 0.35x10"},
    "McpServerDown": {'plugins_mcp_server_up{server="demo",instance="w1"}': "1x54 0x6",
        'plugins_mcp_server_up{server="demo",instance="w2"}': "1x54 0x6"},
    "McpServerBreakerOpen": {'plugins_mcp_server_breaker{server="demo",state="open",instance="w1"}': "0x54 1 0 1 0 1 0",
        'plugins_mcp_server_breaker{server="demo",state="half-open",instance="w1"}': "0x54 0 1 0 1 0 1"},
    "EnginesAdopted": {'dialog_engines_adopted_total{lease="expired"}': "0x50 0+1x10"},
    "TurnsLost": {'dialog_turns_moved_total{how="lost"}': "_x58 1x2"},
    "EngineLeaseNotRenewed": {'dialog_engine_lease_renewals_total{outcome="failed",instance="e1"}': "0x54 0+6x6"},
    "LoopStalled": {LAG.format("plugins", "count", ""): "0+600x50 30601+600x9"},
    "MemoryHigh": {'process_resident_memory_bytes{job="plugins-mcp",instance="w1"}': "900000000x60"},
    "RequestsLimited": {'dialog_requests_refused_total{code="LIMIT_EXCEEDED"}': "0x50 0+30x10"},
    "RedisMemoryHigh": {'redis_memory_used_bytes{instance="r"}': "100x50 401x10"},
    "PostgresConnectionsHigh": {'pg_stat_database_numbackends{instance="p",datname="postgres"}': "0x50 140x10"},
    "DiskAlmostFull": {'node_filesystem_avail_bytes{mountpoint="/volumes/redis"}': "50x50 9x10"},
    "ExporterDown": {'up{job="redis",instance="r"}': "1x50 0x10"},
}  # fmt: skip
"""For each alert: the series that differ, so that it fires after an hour, and no other does but the one in ALSO."""
ALSO = {"TurnErrors": "TurnErrorsSlow", "ToolFailures": "ToolFailuresSlow", "ToolTimeouts": "ToolTimeoutsSlow"}
APART = {"NoEngine", "NoWorker", "OutboxNotPublished without heartbeats", "RedisDown"}
"""They silence others."""
SILENT: dict[str, dict[str, str]] = {
    "TurnErrors": {ERRORS: "0+0.3x60"},
    "TurnErrorsSlow": {ERRORS: "0x50 0+0.6x10"},
    "ToolFailures": {FAILED: "0+1x60", 'dialog_tool_calls_total{tool="(not run)",status="failed"}': "0+9x60"},
    "ToolFailuresSlow": {FAILED: "0+1x60"},
    "ToolTimeouts": {TIMEOUT: "0+0.3x60"},
    "ToolTimeoutsSlow": {TIMEOUT: "0x57 0+3x3"},
    "SlowFirstToken": {'dialog_turn_first_token_seconds_bucket{le="5.12"}': "0+5.8x60"},
    "ModelErrors": {MODEL: "0+1x60"},
    "ClientsDropped": {"dialog_clients_dropped_total": "0+1.5x60"},
    "NoWorker": {'dialog_workers{instance="e1"}': "0x60"},
    "CatalogsRefused": {'dialog_catalogs_refused{instance="e1"}': "0x59 1"},
    "UnsignedCatalogsAccepted": {'dialog_accepts_unsigned_catalogs{instance="e1"}': "0x55 1x5"},
    "RequestsWait": {f"callstream_stream_oldest_waiting_seconds{STREAM}": "14x60"},
    "BacklogGrows": {f"callstream_stream_lag{STREAM}": "5000-5x60"},
    "CallsNotTakenOver": {f"callstream_stream_oldest_pending_seconds{STREAM}": "14x60"},
    "OutboxNotPublished": {'dialog_outbox_oldest_seconds{instance="e1"}': "60x60",
        'dialog_calls_held{instance="e1"}': "3x60"},
    "ErasuresWait": {'dialog_erasures_oldest_seconds{instance="e1"}': "600x60"},
    "ParkedTurnsOverdue": {'dialog_turns_parked_overdue_seconds{instance="e1"}': "100x60"},
    "AuditNotSealed": {'dialog_audit_unsealed_seconds{instance="e1"}': "30x55 600x3 2x2"},
    "CallsRefused": {'dialog_calls_refused_total{reason="overloaded"}': "5x60"},
    "SlotsFull": {"plugins_calls_running": "16x56 4x4"},
    "DeadLetters": {"callstream_dead_letters": "3x59 0", 'plugins_dead_letters_total{cause="call"}': "0x30 3x30"},
    "ProducerMistakes": {'plugins_dead_letters_total{cause="producer"}': "0x30 9x30"},
    "CallsTakenOver": {'plugins_redeliveries_total{how="takeover"}': "0x50 0+1x3 3x7"},
    "LeasesLost": {'plugins_leases_lost_total{server="demo"}': "1x60"},
    "CallsLost": {'dialog_calls_lost_total{loss="MISSING"}': "0+1x60"},
    "NoEngine": {'up{job="dialog-engine",instance="e2"}': "1x50 _x10"},
    # Shut down and not replaced: a smaller number was wanted. Another one had died before, and was replaced.
    "EngineDown": {'up{job="dialog-engine",instance="e3"}': "1x20 stale stale 1x22 stale",
        'dialog_engines_adopted_total{lease="released"}': "0x45 1x15",
        'dialog_engines_adopted_total{lease="expired"}': "0x20 1x40"},
    "WorkerDown": {'up{job="plugins-mcp",instance="w1"}': "1x20 stale stale 1x22 stale",
        "plugins_workers_removed_total": "0x20 1x40"},
    # An upgrade had one more for a moment. One that died later was replaced.
    "EngineDown after an upgrade": {'up{job="dialog-engine",instance="e3"}': "_x40 1 stale",
        'dialog_engines_adopted_total{lease="expired"}': "0x56 1x4"},
    "WorkerDown after an upgrade": {'up{job="plugins-mcp",instance="w3"}': "_x40 1 stale",
        "plugins_workers_removed_total": "0x56 1x4"},
    "EngineDown without a target": {'up{job="dialog-engine",instance="e1"}': "1x45 _x2 1x13",
        'dialog_engines_adopted_total{lease="expired"}': "0x45 1x15"},
    "WorkerDown without a target": {'up{job="plugins-mcp",instance="w1"}': "1x59 0"},
    "McpServerFailing": {'plugins_calls_total{server="demo",code="NETWORK_ERROR"}': "0+2x60",
        'plugins_calls_total{server="demo",code=""}': "0+3x60"},
    "McpServerFailing for a minute": {'plugins_calls_total{server="time",code="TIMEOUT"}': "_x58 20x2",
        'plugins_calls_total{server="time",code=""}': "0+21x60"},
    "WorkerNotConsuming": {'plugins_consuming{instance="w1"}': "1x59 0"},
    "RedisDown": {'dialog_redis_up{instance="e1"}': "1x59 0"},
    "StoreDown": {'dialog_store_up{instance="e1"}': "1x59 0"},
    "StoreSlow": {'dialog_engine_lease_renewal_seconds{instance="e1"}': "0.29x60"},
    "McpServerDown": {'plugins_mcp_server_up{server="demo",instance="w1"}': "0x60"},
    "McpServerBreakerOpen": {'plugins_mcp_server_breaker{server="demo",state="closed",instance="w1"}': "1x60"},
    "EnginesAdopted": {'dialog_engines_adopted_total{lease="expired"}': "0x50 0+1x3 3x7"},
    "TurnsLost": {'dialog_turns_moved_total{how="takeover"}': "0+1x60"},
    "EngineLeaseNotRenewed": {'dialog_engine_lease_renewals_total{outcome="ok",instance="e1"}': "0+20x60",
        'dialog_engine_lease_renewals_total{outcome="failed",instance="e1"}': "0+15x60"},
    "LoopStalled": {LAG.format("plugins", "count", ""): "1+600x60"},
    "RequestsLimited": {'dialog_requests_refused_total{code="LIMIT_EXCEEDED"}': "0+19x60"},
    "RedisMemoryHigh": {'redis_memory_used_bytes{instance="r"}': "399x60",
        'redis_memory_used_bytes{instance="none"}': "399x60", 'redis_memory_max_bytes{instance="none"}': "0x60"},
    "PostgresConnectionsHigh": {'pg_stat_database_numbackends{instance="p",datname="postgres"}': "130x60"},
    "DiskAlmostFull": {'node_filesystem_avail_bytes{mountpoint="/volumes/redis"}': "11x60"},
    "ExporterDown": {'up{job="redis",instance="r"}': "1x57 0x3"},
    "MemoryHigh": {'process_resident_memory_bytes{job="plugins-mcp",instance="w1"}': "900000000x10 300000000x50"},
}  # fmt: skip
"""For each alert: series that come close to it, and for which nothing fires."""

ALERTS = {rule["alert"]: rule for group in groups() for rule in group["rules"] if "alert" in rule}


def test_every_alert_has_a_scenario_that_fires_it_and_one_that_does_not() -> None:
    assert {name.split()[0] for name in FIRES} == ALERTS.keys() - {"Watchdog"}
    assert {name.split()[0] for name in SILENT} == ALERTS.keys() - {"Watchdog"}


Scenario = tuple[dict[str, str], set[str]]


def firing(name: str) -> Scenario:
    alert = name.split(maxsplit=1)[0]
    return FIRES[name], {alert, ALSO.get(alert, alert)}


def metrics(series: Iterable[str]) -> set[str]:
    """The names of the metrics of some series."""
    return {each.partition("{")[0] for each in series}


def merged(scenarios: Iterable[Scenario], what: Callable[[Iterable[str]], set[str]]) -> list[Scenario]:
    """Scenarios that change different series, or different metrics, are one: promtool takes a fraction of the time."""
    merged: list[Scenario] = []
    for series, alerts in scenarios:
        free = next((each for each in merged if not what(each[0]) & what(series)), None)
        if free is None:
            merged.append(free := ({}, set()))
        free[0].update(series)
        free[1].update(alerts)
    return merged


@exhaustive("8 s of processor in promtool: the next tests evaluate the same rules for a few series")
@promise("the mistakes of other producers have a ticket of their own, and neither page anybody nor count as dead calls")
@pytest.mark.timeout(300)
@pytest.mark.skipif(promtool.missing() is not None, reason=promtool.missing() or "")
def test_each_scenario_fires_these_alerts_and_no_others(tmp_path: Path) -> None:
    fires = [*map(firing, APART), *merged((firing(name) for name in FIRES if name not in APART), metrics)]
    silent = merged(((series, set[str]()) for series in SILENT.values()), set)
    scenarios = {f"scenario {n}": (WELL | series, alerts) for n, (series, alerts) in enumerate([*fires, *silent])}

    well = {"all is well": (WELL, set[str]())}
    assert promtool.wrong_alerts(tmp_path, well | scenarios, "60m") == ""


@pytest.mark.skipif(promtool.missing() is not None, reason=promtool.missing() or "")
def test_a_slow_tool_fires_although_calls_end_by_their_deadline_and_slots_are_free_for_moments(tmp_path: Path) -> None:
    slow = {
        f"callstream_stream_oldest_waiting_seconds{STREAM}": " ".join(["4 21"] * 30),
        "plugins_calls_running": " ".join(["16 16 16 16 13"] * 12),
    }

    fires = {"a slow tool": (WELL | slow, {"RequestsWait", "SlotsFull"})}
    assert promtool.wrong_alerts(tmp_path, fires, "10m", step="15s") == ""


@pytest.mark.skipif(promtool.missing() is not None, reason=promtool.missing() or "")
def test_nothing_is_pending_while_engines_start_together_with_prometheus(tmp_path: Path) -> None:
    start = {"a start": (dict[str, str](), set[str]())}
    assert promtool.wrong_alerts(tmp_path, start, "1m30s", step="15s", state=".+") == ""
    never = {"engines that never come": (dict[str, str](), {"NoEngine"})}
    assert promtool.wrong_alerts(tmp_path, never, "3m", step="15s") == ""


def test_every_alert_links_to_its_entry_in_the_runbook() -> None:
    entries = re.findall(r"^### (\w+)$", RUNBOOK.read_text(), re.MULTILINE)

    links = {name: rule["annotations"]["runbook_url"] for name, rule in ALERTS.items()}
    assert links == {name: f"{LINKS}#{name.lower()}" for name in ALERTS}
    assert set(entries) >= ALERTS.keys()
    assert {f'id="{name.lower()}"' for name in ALERTS} <= set(re.findall(r'id="[^"]*"', PAGE.read_text()))


def test_the_page_of_the_runbook_is_that_of_the_document_and_its_links_lead_somewhere() -> None:
    page = PAGE.read_text()
    assert page == runbook_page(), "run: python -m deploy.runbook_page"
    assert set(re.findall(r'href="#([^"]*)"', page)) <= set(re.findall(r'id="([^"]*)"', page))


@promise("an alert arrives at the receiver with a link that opens, and so does the watchdog")
def test_in_kubernetes_the_links_lead_to_the_address_of_the_component() -> None:
    [rule] = [each for each in built(OVERLAYS / "scale") if each["kind"] == "PrometheusRule"]
    rules = [rule for group in rule["spec"]["groups"] for rule in group["rules"] if "alert" in rule]
    links = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in rules}
    assert links == {name: f"https://docs.example/callstream/runbook.html#{name.lower()}" for name in ALERTS}


def test_kubernetes_has_the_same_rules_as_compose() -> None:
    assert RULE.read_text() == prometheus_rule(), "run: python -m deploy.prometheus_rule"
