"""Exporters, Prometheus, Alertmanager and a receiver, as Compose has them: a notification arrives, and its link opens.

The programs are Debian's. Their configuration is that of deploy/, with the ports of the test.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis import Redis

from deploy.local.ports import free_port
from deploy.prometheus_rule import ALERTS
from tests.marks import exhaustive, promise
from tests.support.dashboards import queries
from tests.support.postgres import PASSWORD, PostgresServer
from tests.support.processes import ROOT, Process, answers
from tests.support.prometheus import Prometheus, running_prometheus
from tests.support.servers import LocalServer, embedded_binary
from tests.support.waiting import wait_until_blocking

PROGRAMS = (
    "prometheus",
    "prometheus-alertmanager",
    "prometheus-redis-exporter",
    "prometheus-postgres-exporter",
    "prometheus-node-exporter",
)
MISSING = [name for name in PROGRAMS if not shutil.which(name)]
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(MISSING), reason=f"not on the path: {', '.join(MISSING)}"),
]
ALERTMANAGER = ALERTS.parent / "alertmanager.yml"
SCRIPT = (ROOT / "deploy" / "compose" / "redis.sh").read_text()
[EXPORTER_RIGHTS] = re.findall(r'user exporter "(.*)"', SCRIPT)
[EXPORTER_PASSWORDS] = re.findall(r"^sed '(.*)' exporter/redis_url", SCRIPT, re.MULTILINE)


@dataclass
class Watched:
    """What is watched, and who watches."""

    redis: LocalServer
    prometheus: Prometheus
    receiver: Process

    def notified(self, alert: str) -> str:
        """The link of the notification that this alert fires; "" without one."""
        found = re.findall(rf"^FIRING \w+ {alert}: .* (\S+)$", self.receiver.output(), re.MULTILINE)
        return found[0] if found else ""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Generator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    with ExitStack() as stack:

        def run(argv: Sequence[str | Path], ready: str, **env: str) -> Process:
            process = Process(argv, env=env)
            stack.callback(process.close)
            process.wait_ready(lambda: answers(ready))
            return process

        redis = LocalServer(embedded_binary(), folder)
        redis.start()
        stack.callback(redis.stop)
        # Not in the folder of the test, which the account of PostgreSQL cannot reach.
        data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="callstream-postgres-")))
        postgres = PostgresServer(data)
        postgres.start()
        stack.callback(postgres.stop)
        ports = {name: free_port() for name in ("redis", "postgres", "disk", "alertmanager", "cluster", "receiver")}
        at = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        metrics = {name: f"http://{address}/metrics" for name, address in at.items()}
        with Redis.from_url(redis.url) as client:
            client.execute_command("ACL", "SETUSER", "callstream-exporter", "on", ">5ec7e7", *EXPORTER_RIGHTS.split())
            client.execute_command("ACL", "SETUSER", "default", "-info")
        address = redis.url.removesuffix("/0")
        passwords = folder / "passwords.json"
        url = redis.url.replace("//", "//callstream-exporter:5ec7e7@")
        passwords.write_bytes(subprocess.check_output(["sed", EXPORTER_PASSWORDS], input=url.encode()))
        login = [f"--redis.addr={address}", "--redis.user=callstream-exporter", f"--redis.password-file={passwords}"]
        run([PROGRAMS[2], *login, f"--web.listen-address={at['redis']}"], metrics["redis"])
        uri = f"127.0.0.1:{postgres.port}/postgres?sslmode=disable"
        account = {"DATA_SOURCE_URI": uri, "DATA_SOURCE_USER": "callstream", "DATA_SOURCE_PASS": PASSWORD}
        run([PROGRAMS[3], f"--web.listen-address={at['postgres']}"], metrics["postgres"], **account)
        disk = ["--collector.disable-defaults", "--collector.filesystem"]
        run([PROGRAMS[4], *disk, f"--web.listen-address={at['disk']}"], metrics["disk"])
        config = folder / "alertmanager.yml"
        config.write_text(ALERTMANAGER.read_text().replace("alerts:8093", at["receiver"]))
        argv = [PROGRAMS[1], f"--config.file={config}", f"--storage.path={folder}", "--cluster.listen-address="]
        run([*argv, f"--web.listen-address={at['alertmanager']}"], f"http://{at['alertmanager']}/-/ready")
        receiver = Process([sys.executable, "-m", "examples.alert_receiver", "--port", str(ports["receiver"])])
        stack.callback(receiver.close)
        receiver.wait_ready(lambda: "Receiver of alerts on" in receiver.output())
        jobs = {name: [ports[name]] for name in ("redis", "postgres", "disk")}
        yield Watched(
            redis, stack.enter_context(running_prometheus(folder, jobs, alertmanager=ports["alertmanager"])), receiver
        )


@promise("an alert arrives at the receiver with a link that opens, and so does the watchdog")
def test_the_watchdog_arrives_and_its_link_opens_at_its_entry(watched: Watched) -> None:
    link = wait_until_blocking(lambda: watched.notified("Watchdog"), 60, what="a notification")

    with urllib.request.urlopen(link, timeout=10) as response:  # noqa: S310 -- of the test's own Prometheus
        page = response.read().decode()
    assert f'id="{link.partition("#")[2]}"' in page


def test_every_panel_of_the_resources_shows_what_the_exporters_measure(watched: Watched) -> None:
    def empty() -> list[str]:
        # The machine of the test has no folder /volumes.
        return [
            query.expr
            for query in queries()
            if query.dashboard == "resources"
            and not watched.prometheus.query(query.runnable.replace('mountpoint=~"/volumes/.+"', 'mountpoint!=""'))
        ]

    wait_until_blocking(lambda: not empty(), 60, what=f"an answer to each of {empty()}")
    assert watched.prometheus.rule_errors() == []


@promise("an alert arrives at the receiver with a link that opens, and so does the watchdog")
@exhaustive("an alert that waits for a minute")
def test_a_redis_that_runs_full_is_a_notification_while_nothing_else_is(watched: Watched) -> None:
    [used] = wait_until_blocking(lambda: watched.prometheus.query("redis_memory_used_bytes"), 60, what="a scrape")
    with Redis.from_url(watched.redis.url) as client:
        client.config_set("maxmemory", int(float(used["value"][1]) * 1.1))

    wait_until_blocking(lambda: watched.notified("RedisMemoryHigh"), 150, what="a notification")
    fired = set(re.findall(r"^FIRING \w+ (\w+):", watched.receiver.output(), re.MULTILINE))
    # No engine is scraped here.
    assert fired - {"NoEngine"} == {"Watchdog", "RedisMemoryHigh"}


def test_the_configurations_are_valid() -> None:
    subprocess.run(["amtool", "check-config", ALERTMANAGER], check=True, timeout=30)
    subprocess.run(["promtool", "check", "config", ALERTS.parent / "prometheus.yml"], check=True, timeout=30)
