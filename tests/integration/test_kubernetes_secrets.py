"""The Secrets that deploy/k8s/secrets.sh makes fit the manifests, the settings of the services, and a real Redis."""

import os
import shutil
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from redis import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

from callstream_runtime.settings import ServiceSettings
from callstream_runtime.settings_sources import read_settings
from deploy.check import OVERLAYS, built, problems
from dialog_engine.config.identity import IdentitySettings
from dialog_engine.config.store import OperatorSettings
from plugins_contract.keys import GROUP, Keys
from tests.support.processes import ROOT
from tests.support.servers import LocalServer, embedded_binary, missing

SCRIPT = ROOT / "deploy" / "k8s" / "secrets.sh"
NAMES = sorted(overlay.name for overlay in OVERLAYS.iterdir())
Resource = dict[str, Any]


@pytest.fixture(scope="module")
def secrets() -> dict[str, dict[str, str]]:
    """The files of each Secret."""
    env = {"PATH": os.environ["PATH"], "API_KEYS": "me:it's-a-key-for-tests", "OPENAI_API_KEY": "sk-1"}
    env["DATABASE_URL"] = "postgresql://db"
    done = subprocess.run(["sh", SCRIPT], env=env, capture_output=True, text=True, check=True)
    resources: list[Resource] = list(yaml.safe_load_all(done.stdout))
    assert [problem for resource in resources for problem in problems(resource)] == []
    return {resource["metadata"]["name"]: resource["stringData"] for resource in resources}


@cache
def manifests(name: str) -> list[Resource]:
    """What an overlay makes: built once."""
    return built(OVERLAYS / name)


def pod(name: str, workload: str) -> Resource:
    [found] = [
        each for each in manifests(name) if each["kind"] in ("Deployment", "StatefulSet")
        and each["metadata"]["name"] == workload
    ]  # fmt: skip
    return found["spec"]["template"]["spec"]


def mounted(name: str, workload: str) -> dict[str, list[Resource]]:
    """The sources of Secrets in each volume of a workload."""
    return {
        volume["name"]: [source["secret"] for source in volume.get("projected", {}).get("sources", [])]
        + ([{"name": volume["secret"]["secretName"]}] if "secret" in volume else [])
        for volume in pod(name, workload)["volumes"]
    }


@pytest.mark.parametrize("overlay", NAMES)
@pytest.mark.parametrize(
    ("service", "workload", "kind"),
    [
        ("engine", "engine", ServiceSettings),
        ("worker", "worker", ServiceSettings),
        ("operator", "engine", OperatorSettings),
    ],
)
def test_a_service_reads_its_login_and_the_request_keys_from_its_secrets(
    overlay: str, service: str, workload: str, kind: Any, secrets: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    volumes = mounted(overlay, f"callstream-{workload}")
    [container] = [each for each in pod(overlay, f"callstream-{workload}")["containers"] if each["name"] == service]
    [volume] = [each["name"] for each in container["volumeMounts"] if each["mountPath"] == "/run/secrets"]
    for source in volumes[volume]:
        for file, text in secrets[source["name"]].items():
            if "items" not in source or file in [each["path"] for each in source["items"]]:
                (tmp_path / file).write_text(text)

    settings = read_settings(kind, _secrets_dir=tmp_path, _env_file=None, request_keys_file=tmp_path / "request_keys")

    assert settings.redis_address.login.username == f"callstream-{service}"
    assert settings.redis_address.login.password == secrets[f"callstream-{service}"]["redis_password"]
    assert settings.request_keys
    if service == "engine":
        assert set(read_settings(IdentitySettings, _secrets_dir=tmp_path, _env_file=None).api_keys) == {"me"}
    if service == "operator":
        assert settings.database_url
        assert not (tmp_path / "api_keys").exists()


def test_the_autoscaler_logs_in_as_the_worker(secrets: dict[str, dict[str, str]]) -> None:
    [trigger] = [each for each in manifests("scale") if each["kind"] == "TriggerAuthentication"]

    login = {each["parameter"]: secrets[each["name"]][each["key"]] for each in trigger["spec"]["secretTargetRef"]}
    assert login["username"] == "callstream-worker"
    assert login["password"] == secrets["callstream-worker"]["redis_password"]


STREAMS = (
    "events.ltm", "events.analytics", "events.audit", "dialog.turns:x", "rpc.plugins.mailbox:x",
    "rpc.plugins.responses:x",
)  # fmt: skip
HASHES = ("plugins.catalog.pins:x", "plugins.catalog:x", "dialog.incarnation", "rpc.plugins.workers")


def allowed(client: Redis, *command: str) -> bool:
    with suppress(ResponseError):
        try:
            client.execute_command(*command)
        except NoPermissionError:
            return False
    return True


@pytest.mark.parametrize("kind", ["valkey", "redis-server"])
def test_the_redis_of_the_small_overlay_admits_the_users_with_their_rights_and_keeps_what_scripts_write(
    secrets: dict[str, dict[str, str]], tmp_path: Path, kind: str
) -> None:
    if reason := missing(kind):
        pytest.skip(reason)
    binary = embedded_binary() if kind == "valkey" else Path(shutil.which(kind) or kind)
    assert mounted("small", "redis")["users"] == [{"name": "callstream-redis"}]
    (tmp_path / "users.acl").write_text(secrets["callstream-redis"]["users.acl"])
    server = LocalServer(binary, tmp_path, "--aclfile", str(tmp_path / "users.acl"))
    server.start()
    try:
        worker, engine, operator = (
            Redis.from_url(server.url, username=each["redis_username"], password=each["redis_password"])
            for each in (secrets[f"callstream-{name}"] for name in ("worker", "engine", "operator"))
        )
        with worker, engine, operator:
            engine.xgroup_create(Keys().requests, GROUP, mkstream=True)
            assert worker.xlen(Keys().requests) == 0
            assert worker.xpending(Keys().requests, GROUP)["pending"] == 0
            # What a script writes is a transaction in the append-only file, which `default` replays.
            add = "redis.call('XADD', KEYS[1], '*', 'a', 1)"
            engine.evalsha(engine.script_load(f"{add} {add}"), 1, Keys().requests)
            server.stop()
            server.start()
            assert worker.xlen(Keys().requests) == 2
            assert not any(allowed(worker, "XLEN", key) for key in ("events.ltm", "dialog.turns:x"))
            assert all(allowed(operator, "XRANGE", key, "-", "+") for key in STREAMS)
            assert not any(allowed(operator, "XADD", key, "*", "a", "b") for key in STREAMS)
            assert all(allowed(operator, "HGETALL", key) for key in HASHES)
            assert not any(allowed(operator, "HSET", key, "a", "b") for key in HASHES)
            others = (("FLUSHDB",), ("KEYS", "*"), ("DEL", "dialog.turns:x"))
            assert not any(allowed(operator, *each) for each in others)
            assert allowed(operator, "XDEL", "events.plugins.dead", "1-1")
        with Redis.from_url(server.url) as anonymous, pytest.raises(AuthenticationError):
            anonymous.xlen(Keys().requests)
        with Redis.from_url(server.url, username="health", password="health") as probe:
            assert probe.ping()
    finally:
        server.stop()
