"""What the Kubernetes manifests must have beyond being valid, which `make check` sees to."""

import json
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from callstream_runtime.settings_sources import fields_of
from deploy.check import OVERLAYS, built, problems
from dialog_engine.settings import Settings as EngineSettings
from plugins_contract.keys import Keys
from plugins_mcp.config import Settings as WorkerSettings
from tests.marks import promise
from tests.support.processes import ROOT

Resource = dict[str, Any]
K8S = ROOT / "deploy" / "k8s"
NAMES = sorted(overlay.name for overlay in OVERLAYS.iterdir())


@cache
def overlay(name: str) -> list[Resource]:
    return built(OVERLAYS / name)


def of_kind(name: str, *kinds: str) -> list[Resource]:
    return [each for each in overlay(name) if each["kind"] in kinds]


def workloads(name: str) -> list[Resource]:
    return of_kind(name, "Deployment", "StatefulSet")


def jobs(name: str) -> dict[str, Resource]:
    """The pods of the CronJobs."""
    return {
        each["metadata"]["name"]: each["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        for each in of_kind(name, "CronJob")
    }


def pods(name: str) -> dict[str, Resource]:
    return {each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in workloads(name)}


def settings_of(name: str) -> dict[str, str]:
    """The data of the ConfigMap whose name begins so, in the overlay `scale`."""
    [found] = [each for each in of_kind("scale", "ConfigMap") if re.fullmatch(rf"{name}-\w+", each["metadata"]["name"])]
    return found["data"]


def test_a_wrong_manifest_is_found() -> None:
    scaled = next(each for each in overlay("scale") if each["kind"] == "ScaledObject")
    worker = next(each for each in workloads("scale") if each["metadata"]["name"] == "callstream-worker")

    assert list(problems(scaled)) == []
    assert list(problems(scaled | {"spec": scaled["spec"] | {"maxReplicas": 3}})) == [
        ".spec.maxReplicas is not a field of it"
    ]
    assert list(problems(worker)) == []
    assert list(problems(worker | {"spec": worker["spec"] | {"replica": 3}})) != []
    assert list(problems(worker | {"spec": worker["spec"] | {"replicas": "three"}})) != []


@promise("Kubernetes manifests are restricted, bounded and without secrets")
@pytest.mark.parametrize("name", NAMES)
def test_every_container_is_restricted_and_bounded(name: str) -> None:
    for workload, pod in (pods(name) | jobs(name)).items():
        assert pod["securityContext"]["runAsNonRoot"], workload
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, workload
        assert pod["automountServiceAccountToken"] is False, workload
        for container in (*pod["containers"], *pod.get("initContainers", [])):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]
            assert "cpu" not in container["resources"]["limits"], "a throttled process loses its leases"
            serves = workload not in jobs(name) and container["name"] != "operator"
            assert not serves or {"readinessProbe", "livenessProbe"} <= container.keys()


@promise("Kubernetes manifests are restricted, bounded and without secrets")
@pytest.mark.parametrize("name", NAMES)
def test_pods_reach_nothing_but_what_a_policy_names(name: str) -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in of_kind(name, "NetworkPolicy")}

    assert policies["callstream-default-deny"]["policyTypes"] == ["Ingress", "Egress"]
    assert not {"ingress", "egress"} & policies["callstream-default-deny"].keys()
    closed = [
        policy["podSelector"]["matchLabels"].items()
        for policy in policies.values()
        if policy["policyTypes"] == ["Ingress", "Egress"]
    ]
    for workload in workloads(name):
        labels = workload["spec"]["template"]["metadata"]["labels"].items()
        assert any(selected <= labels for selected in closed), workload["metadata"]["name"]
    assert "0.0.0.0/0" not in json.dumps(policies["callstream-mcp-egress"]), "workers reach listed servers only"


@pytest.mark.parametrize("name", NAMES)
def test_a_pod_gets_longer_to_stop_than_its_service_needs(name: str) -> None:
    worker, engine = settings_of("callstream-worker"), settings_of("callstream-engine")
    servers = json.loads(settings_of("callstream-mcp")["mcp.json"])["mcpServers"].values()
    options = [server.get("callstream", {}) for server in servers]
    timeouts = [each["timeoutMs"] for each in options if "timeoutMs" in each]
    timeouts += [
        tool["timeoutMs"] for each in options for tool in each.get("tools", {}).values() if "timeoutMs" in tool
    ]
    longest = max([int(worker["MCP_REQUEST_TIMEOUT_MS"]), *timeouts]) / 1000

    assert longest < float(worker["DRAIN_SECONDS"])
    assert float(worker["DRAIN_SECONDS"]) < pods(name)["callstream-worker"]["terminationGracePeriodSeconds"]
    pod = pods(name)["callstream-engine"]
    pause = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pause + float(engine["SHUTDOWN_GRACE_SECONDS"]) + 5 < pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("name", NAMES)
def test_a_restore_runs_when_somebody_asks_for_it_and_marks_the_store_last(name: str) -> None:
    [restore] = [each for each in of_kind(name, "CronJob") if each["metadata"]["name"] == "callstream-restore"]
    [last] = jobs(name)["callstream-restore"]["containers"]

    assert restore["spec"]["suspend"] is True
    assert restore["spec"]["jobTemplate"]["spec"]["backoffLimit"] == 0
    assert last["command"] == ["dialog-engine", {"small": "restore", "scale": "restored"}[name]]


def test_one_engine_has_a_volume_and_is_never_two() -> None:
    engine = by_name(overlay("small"), "Deployment", "callstream-engine")

    assert engine["spec"]["replicas"] == 1
    assert engine["spec"]["strategy"] == {"type": "Recreate"}
    volumes = {volume["name"]: volume for volume in engine["spec"]["template"]["spec"]["volumes"]}
    assert volumes["data"]["persistentVolumeClaim"] == {"claimName": "callstream-engine"}


def test_several_engines_are_spread_and_keep_a_majority_during_an_eviction() -> None:
    engine = by_name(overlay("scale"), "Deployment", "callstream-engine")
    budgets = {
        each["metadata"]["name"]: each["spec"]["maxUnavailable"] for each in of_kind("scale", "PodDisruptionBudget")
    }

    assert engine["spec"]["replicas"] >= 2
    spread = engine["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert {each["topologyKey"] for each in spread} == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}
    assert budgets == {"callstream-engine": 1, "callstream-worker": 1}


@pytest.mark.parametrize(
    ("name", "settings"), [("callstream-engine", EngineSettings), ("callstream-worker", WorkerSettings)]
)
def test_what_is_configured_is_a_setting(name: str, settings: Any) -> None:
    assert {setting.lower() for setting in settings_of(name)} <= fields_of(settings).keys()


@pytest.mark.parametrize("name", NAMES)
def test_requests_are_signed_and_unsigned_ones_are_refused(name: str) -> None:
    for workload in ("callstream-engine", "callstream-worker"):
        container = pods(name)[workload]["containers"][0]
        [mount] = [each for each in container["volumeMounts"] if each["name"] == "secrets"]
        env = {each["name"]: each.get("value") for each in container["env"]}
        assert env["REQUEST_KEYS_FILE"] == f"{mount['mountPath']}/request_keys"


def test_the_ingress_has_the_routes_of_the_page_and_none_of_operators() -> None:
    component = yaml.safe_load((K8S / "components" / "ingress" / "ingress.yaml").read_text())
    [rule] = component["spec"]["rules"]
    paths = {each["path"]: each["pathType"] for each in rule["http"]["paths"]}

    assert paths == {
        "/": "Exact", "/assets": "Prefix", "/ui": "Prefix", "/v1": "Prefix", "/sign-in": "Prefix", "/sign-out": "Exact",
    }  # fmt: skip


def test_the_address_of_the_ingress_may_have_every_connection_of_an_engine() -> None:
    limit = int(settings_of("callstream-engine")["MAX_CONNECTIONS_PER_ADDRESS"])

    assert limit == fields_of(EngineSettings)["max_connections"].default


def test_prometheus_reads_the_metrics_of_engines_at_the_port_that_needs_no_key() -> None:
    engine = pods("scale")["callstream-engine"]["containers"][0]
    ports = {each["name"]: str(each["containerPort"]) for each in engine["ports"]}
    env = {each["name"]: each.get("value") for each in engine["env"]}
    [monitor] = [each for each in of_kind("scale", "ServiceMonitor") if each["metadata"]["name"] == "dialog-engine"]
    policies = {each["metadata"]["name"]: each["spec"] for each in of_kind("scale", "NetworkPolicy")}
    admitted = {
        each["from"][0]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]: each["ports"][0]["port"]
        for each in policies["callstream-engine-ingress"]["ingress"]
    }

    assert env["OPERATIONS_PORT"] == ports[monitor["spec"]["endpoints"][0]["port"]]
    assert admitted == {"ingress-nginx": "http", "monitoring": "operations"}


@promise("Kubernetes manifests are restricted, bounded and without secrets")
def test_there_is_no_secret_in_the_manifests() -> None:
    assert of_kind("small", "Secret") == []
    assert of_kind("scale", "Secret") == []


@pytest.mark.parametrize(("options", "first", "last"), [([], "worker", "engine"), (["--back"], "engine", "worker")])
def test_an_upgrade_replaces_one_part_wholly_before_the_other(
    options: list[str], first: str, last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f'#!/bin/sh\necho "kubectl $*" >> {tmp_path}/commands\n')
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    subprocess.run(["sh", K8S / "apply.sh", *options, "an/overlay"], check=True)

    excluded = f"callstream-{last}"
    assert (tmp_path / "commands").read_text().splitlines() == [
        f"kubectl apply -k an/overlay -l app.kubernetes.io/name!={excluded}",
        f"kubectl -n callstream rollout status deployment -l app.kubernetes.io/name=callstream-{first} --timeout=30m",
        "kubectl apply -k an/overlay",
        f"kubectl -n callstream rollout status deployment -l app.kubernetes.io/name=callstream-{last} --timeout=30m",
    ]
    for name in NAMES:
        chosen = [
            each["metadata"]["name"]
            for each in workloads(name)
            if each["metadata"].get("labels", {}).get("app.kubernetes.io/name") != excluded
        ]
        assert f"callstream-{first}" in chosen
        assert excluded not in chosen


def test_a_new_pod_replaces_one_at_a_time_in_both_parts_and_workers_are_left_to_the_autoscaler() -> None:
    for each in workloads("scale"):
        assert each["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert "replicas" not in by_name(overlay("scale"), "Deployment", "callstream-worker")["spec"]


def test_a_pool_has_the_workers_once_more_with_a_stream_servers_and_a_number_of_its_own(tmp_path: Path) -> None:
    shutil.copytree(K8S, tmp_path / "k8s")
    file = tmp_path / "k8s" / "overlays" / "scale" / "kustomization.yaml"
    last = "  - ../../components/ingress\n"
    file.write_text(file.read_text().replace(last, f"{last}  - ../../components/pool\n"))
    resources = built(file.parent)
    # The models of the other resources of operators take seconds to import, and the component changes none of those.
    checked = [each for each in resources if each["apiVersion"] != "monitoring.coreos.com/v1"]
    assert [problem for each in checked for problem in problems(each)] == []
    worker, pool = (by_name(resources, "Deployment", name)["spec"] for name in ("callstream-worker", POOL))
    scaled = by_name(resources, "ScaledObject", POOL)["spec"]

    [container], [other] = (each["template"]["spec"]["containers"] for each in (worker, pool))
    assert other == container | {"env": [{"name": "WORKER_POOL", "value": "browser"}, *container["env"]]}
    [servers] = [each["configMap"]["name"] for each in pool["template"]["spec"]["volumes"] if each["name"] == "mcp"]
    assert "browser" in json.loads(by_name(resources, "ConfigMap", servers)["data"]["mcp.json"])["mcpServers"]
    assert scaled["scaleTargetRef"] == {"name": POOL}
    assert {each["metadata"]["stream"] for each in scaled["triggers"]} == {Keys().requests_of("browser")}
    labels = pool["template"]["metadata"]["labels"]
    assert pool["selector"]["matchLabels"].items() <= labels.items()
    assert not worker["selector"]["matchLabels"].items() <= labels.items(), "the other Deployment would have its pods"
    # Those by which they are found in an upgrade and by Prometheus.
    for kind in ("Deployment", "Service"):
        assert by_name(resources, kind, POOL)["metadata"]["labels"] == {"app.kubernetes.io/name": "callstream-worker"}
    policies = [each for each in resources if each["kind"] == "NetworkPolicy"]
    chosen = {
        name: {each["metadata"]["name"] for each in policies if selects(each["spec"]["podSelector"], name)}
        for name in ("callstream-worker", POOL)
    }
    assert chosen["callstream-worker"] == chosen[POOL]


POOL = "callstream-worker-browser"


def by_name(resources: list[Resource], kind: str, name: str) -> Resource:
    [found] = [each for each in resources if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def selects(selector: Resource, name: str) -> bool:
    """Whether a selector by names chooses the pods of that name."""
    names = {selector.get("matchLabels", {}).get("app.kubernetes.io/name", "")}
    return name in names.union(*(each["values"] for each in selector.get("matchExpressions", [])))
