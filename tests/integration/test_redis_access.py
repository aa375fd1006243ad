"""Both services against a Redis that is not simply there: absent, with TLS, with ACL users, behind Sentinels."""

import asyncio
import re
import shutil
import time
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import RedisError

from callstream_runtime.connections import command_client, thread_client
from callstream_runtime.redis_errors import RedisUnavailable
from callstream_runtime.settings import Login, RedisAddress, Tls
from deploy.local.ports import free_port
from tests.marks import exhaustive, promise, smoke
from tests.support.certificates import Certificates, make_certificates
from tests.support.processes import ROOT, Process, answers
from tests.support.servers import LocalServer, embedded_binary, missing
from tests.support.stack import Stack, running_stack
from tests.support.waiting import wait_until_blocking

pytestmark = exhaustive("Sentinels, TLS and rights, with real processes")

PASSWORD = "s3cr3t-of-mine"
QUESTION = "Count to 3 with the counter"
COUNTER = "demo__increment_counter"


@contextmanager
def services(env: Mapping[str, str]) -> Generator[Stack]:
    """The engine, a worker, the demo model and the demo tools, with these settings; no Redis of their own."""
    with running_stack(start=False, worker_env=env, engine_env=env) as stack:
        stack.start_demo()
        stack.start_model()
        stack.start_worker(wait=False)
        stack.start_engine()
        yield stack


def worker_of(stack: Stack) -> Process:
    (worker,) = stack.workers.values()
    return worker


def is_consuming(stack: Stack) -> bool:
    (port,) = stack.workers
    return answers(f"http://127.0.0.1:{port}/readyz")


def sees_redis(stack: Stack) -> bool:
    return stack.http.get("/readyz").json()["parts"]["redis"] == "ok"


def wait_for_both(stack: Stack) -> None:
    wait_until_blocking(lambda: is_consuming(stack), what="the worker to consume")
    wait_until_blocking(lambda: sees_redis(stack), what="the engine to see Redis")
    stack.wait_for_tools("demo")


def a_call_completes(stack: Stack) -> bool:
    statuses = stack.ask(QUESTION).statuses(COUNTER)
    return bool(statuses) and all(each[-1] == "succeeded" for each in statuses)


def both_say(stack: Stack, words: str) -> None:
    for process in (worker_of(stack), stack.engine):
        assert process is not None
        wait_until_blocking(lambda output=process.output: words in output(), what=f"{words!r} from {process.argv}")


def show_no_secret(stack: Stack) -> None:
    for process in (worker_of(stack), stack.engine):
        assert process is not None
        assert PASSWORD not in process.output()
        assert "Traceback" not in process.output()


def local_server(folder: Path, name: str, *options: str, binary: Path | None = None) -> LocalServer:
    (folder / name).mkdir()
    return LocalServer(binary or embedded_binary(), folder / name, *options)


@promise("both services start without Redis, say why it does not answer, and connect when it does")
def test_both_services_start_serve_and_connect_later_when_redis_is_absent(tmp_path: Path) -> None:
    redis = local_server(tmp_path, "redis")
    with services({"REDIS_URL": redis.url}) as stack:
        both_say(stack, "Redis does not answer")
        assert stack.http.get("/readyz").json()["parts"]["redis"] == "unavailable"
        assert not is_consuming(stack)
        assert stack.ask("Hello").reason == "stop"

        redis.start()
        wait_for_both(stack)
        assert a_call_completes(stack)
        show_no_secret(stack)
    redis.stop()


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_redis(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """The URL of a server that speaks TLS and wants to see a certificate."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("TLS: the embedded Valkey is built without it, and there is no redis-server on the path")
    port = free_port()
    options = {
        "--tls-port": port,
        "--tls-ca-cert-file": certificates.ca,
        "--tls-cert-file": certificates.server,
        "--tls-key-file": certificates.server_key,
        "--tls-auth-clients": "yes",
    }
    server = LocalServer(
        Path(binary), tmp_path_factory.mktemp("tls"), *(str(word) for pair in options.items() for word in pair)
    )
    try:
        server.start()
    except RuntimeError as error:
        pytest.skip(f"TLS: {binary} is built without it: {error}")
    yield f"rediss://localhost:{port}/0"
    server.stop()


def tls_env(url: str, certificates: Certificates) -> dict[str, str]:
    return {
        "REDIS_URL": url,
        "REDIS_TLS_CA_FILE": str(certificates.ca),
        "REDIS_TLS_CERT_FILE": str(certificates.client),
        "REDIS_TLS_KEY_FILE": str(certificates.client_key),
    }


@promise("TLS, an ACL user and Sentinel can be configured")
def test_a_call_completes_over_tls_with_certificates_of_both_sides(tls_redis: str, certificates: Certificates) -> None:
    with services(tls_env(tls_redis, certificates)) as stack:
        wait_for_both(stack)
        assert a_call_completes(stack)


@pytest.mark.parametrize(("check", "answers_ping"), [(True, False), (False, True)])
def test_a_certificate_must_be_for_the_host_unless_that_is_switched_off(
    tls_redis: str, certificates: Certificates, check: bool, answers_ping: bool
) -> None:
    port = int(tls_redis.rpartition(":")[2].partition("/")[0])
    with (
        thread_client(RedisAddress((("localhost", port),), tls=Tls())) as client,
        pytest.raises(RedisError, match="its certificate is not trusted: check REDIS_TLS_CA_FILE"),
    ):
        client.ping()
    tls = Tls(str(certificates.ca), str(certificates.client), str(certificates.client_key), check_hostname=check)
    with thread_client(RedisAddress((("127.0.0.1", port),), tls=tls)) as client:
        if answers_ping:
            assert client.ping()
        else:
            with pytest.raises(RedisError, match="CERTIFICATE_VERIFY_FAILED"):
                client.ping()


async def said_by(url: str) -> str:
    async with command_client(url, timeout=0.5) as client:
        with pytest.raises(RedisError) as caught:
            await client.ping()
    assert isinstance(caught.value, RedisUnavailable)
    return str(caught.value)


@promise("both services start without Redis, say why it does not answer, and connect when it does")
@smoke
async def test_a_port_for_tls_is_distinguished_from_one_without(redis_url: str, tls_redis: str) -> None:
    hint = "REDIS_URL must begin with rediss:// for TLS and with redis:// without"
    assert hint in await said_by(tls_redis.replace("rediss://", "redis://"))
    assert hint in await said_by(redis_url.replace("redis://", "rediss://"))


# ACL users


def ready_made_acl_lines() -> dict[str, list[str]]:
    """The lines of the runbook that an operator copies, by the user's name."""
    lines = re.findall(r"^ACL SETUSER (\S+) (.+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    return {name: rules.split() for name, rules in lines}


@promise("TLS, an ACL user and Sentinel can be configured")
@pytest.mark.every_redis
def test_the_acl_users_of_the_runbook_are_all_that_the_services_need(redis_url: str) -> None:
    users = ready_made_acl_lines()
    assert users.keys() == {"callstream-engine", "callstream-worker", "callstream-operator"}
    admin: Any = Redis.from_url(redis_url)
    with admin:
        for name, rules in users.items():
            words = [f">{PASSWORD}" if rule.startswith(">") else rule for rule in rules]
            admin.execute_command("ACL", "SETUSER", name, *words)
        admin.execute_command("ACL", "LOG", "RESET")
        try:
            worker = {"REDIS_URL": redis_url, "REDIS_USERNAME": "callstream-worker", "REDIS_PASSWORD": PASSWORD}
            engine = worker | {"REDIS_USERNAME": "callstream-engine"}
            with running_stack(start=False, worker_env=worker, engine_env=engine) as stack:
                stack.start_demo()
                stack.start_model()
                stack.start_worker()
                stack.start_engine()
                stack.wait_for_tools("demo")
                completed = a_call_completes(stack)
                assert admin.execute_command("ACL", "LOG") == []
                assert completed
                one_is_stopped_while_it_runs(stack)
                poison_is_buried(stack, admin)
                worker_of(stack).stop()
                show_no_secret(stack)
            assert admin.execute_command("ACL", "LOG") == []
        finally:
            admin.execute_command("ACL", "DELUSER", *users)


def one_is_stopped_while_it_runs(stack: Stack) -> None:
    turn, reason = "", None
    with stack.asking("Run a slow job for 30 seconds") as events:
        for event in events:
            turn = turn or event.data["turnId"]
            if event.data.get("status") == "running":
                stack.http.post(f"/v1/turns/{turn}/cancel")
            reason = event.data.get("reason")
    assert reason == "cancelled"


def poison_is_buried(stack: Stack, admin: Any) -> None:
    admin.execute_command("XADD", "events.plugins", "*", "event", "{")
    wait_until_blocking(lambda: admin.execute_command("XLEN", "events.plugins.dead"), what="a dead letter")
    assert worker_of(stack).returncode is None


# Sentinel


class Sentinels:
    """A master, a replica and a Sentinel that lets the replica take over soon."""

    def __init__(self, binary: Path, folder: Path) -> None:
        self.master = local_server(folder, "master", binary=binary)
        self.replica = local_server(folder, "replica", "--replicaof", f"127.0.0.1 {self.master.port}", binary=binary)
        self.port = free_port()
        self._binary = binary
        self._config = folder / "sentinel.conf"
        self._folder = folder
        self._process: Process | None = None

    @property
    def url(self) -> str:
        """The address of the service `mymaster`; the first of the Sentinels is not there."""
        return f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{self.port}/mymaster/0"

    @property
    def address(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self.master.start()
        self.replica.start()
        self.start_sentinel(
            f"sentinel monitor mymaster 127.0.0.1 {self.master.port} 1\n"
            "sentinel down-after-milliseconds mymaster 1000\n"
            "sentinel failover-timeout mymaster 3000\n"
        )
        wait_until_blocking(self.knows_the_replica, what="the Sentinel to know the replica")

    def start_sentinel(self, lines: str = "") -> None:
        self._config.write_text(f"port {self.port}\nbind 127.0.0.1\ndir {self._folder}\n{lines}")
        self._process = Process([self._binary, self._config, "--sentinel"])
        self._process.wait_ready(self._answers)

    def _answers(self) -> bool:
        try:
            return bool(self.ask("PING"))
        except RedisError:
            return False

    def ask(self, *words: Any) -> Any:
        client: Any = Redis.from_url(self.address, socket_timeout=2)
        with client:
            return client.execute_command(*words)

    def knows_the_replica(self) -> bool:
        rows = self.ask("SENTINEL", "REPLICAS", "mymaster")
        return bool(rows) and self._linked()

    def _linked(self) -> bool:
        with Redis.from_url(self.replica.url, socket_timeout=2) as client:
            info: Any = client.info("replication")
            return info["master_link_status"] == "up"

    def master_port(self) -> int:
        return int(self.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")[1])

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
        self.replica.stop()
        self.master.stop()


@pytest.fixture(params=["valkey", "redis-server"])
def sentinels(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Sentinels]:
    kind: str = request.param
    if reason := missing(kind):
        pytest.skip(f"{kind}: {reason}")
    sentinels = Sentinels(embedded_binary() if kind == "valkey" else Path(shutil.which(kind) or kind), tmp_path)
    yield sentinels
    sentinels.close()


@promise("TLS, an ACL user and Sentinel can be configured")
def test_after_a_failover_both_services_find_the_new_master_and_calls_complete(sentinels: Sentinels) -> None:
    sentinels.start()
    with services({"REDIS_URL": sentinels.url}) as stack:
        wait_for_both(stack)
        assert a_call_completes(stack)

        sentinels.master.kill()
        wait_until_blocking(lambda: sentinels.master_port() == sentinels.replica.port, what="the failover")
        failed_over_at = time.monotonic()
        wait_until_blocking(lambda: sees_redis(stack) and is_consuming(stack), what="both to reconnect")
        print(f"both were back {time.monotonic() - failed_over_at:.1f} s after the failover")
        assert a_call_completes(stack)
        with Redis.from_url(sentinels.replica.url) as client:
            assert client.exists("events.plugins")


@promise("both services start without Redis, say why it does not answer, and connect when it does")
def test_sentinels_that_know_no_master_are_an_outage_that_ends(tmp_path: Path) -> None:
    sentinels = Sentinels(embedded_binary(), tmp_path)
    sentinels.start_sentinel()
    with services({"REDIS_URL": sentinels.url}) as stack:
        both_say(stack, "no Sentinel knows the master: check the hosts and the service in REDIS_URL")
        sentinels.master.start()
        sentinels.ask("SENTINEL", "MONITOR", "mymaster", "127.0.0.1", sentinels.master.port, 1)

        wait_for_both(stack)
        assert a_call_completes(stack)
    sentinels.close()


def test_the_login_of_sentinels_is_theirs(tmp_path: Path) -> None:
    sentinels = Sentinels(embedded_binary(), tmp_path)
    sentinels.master.start()
    sentinels.start_sentinel(f"sentinel monitor mymaster 127.0.0.1 {sentinels.master.port} 1\n")
    sentinels.ask("ACL", "SETUSER", "guest", "on", f">{PASSWORD}", "+sentinel|masters")
    hosts = (("127.0.0.1", sentinels.port),)
    with thread_client(RedisAddress(hosts, service="mymaster", sentinel_login=Login("guest", PASSWORD))) as client:
        assert client.ping()
    with (
        thread_client(RedisAddress(hosts, service="mymaster", sentinel_login=Login("guest", "wrong"))) as client,
        pytest.raises(RedisError) as caught,
    ):
        client.ping()
    assert isinstance(caught.value, RedisUnavailable)
    assert str(caught.value) == (
        "no Sentinel knows the master: check REDIS_SENTINEL_USERNAME and REDIS_SENTINEL_PASSWORD: "
        f"No master found for 'mymaster' : 127.0.0.1:{sentinels.port} - auth:AuthenticationError"
    )
    sentinels.close()


def test_a_connection_whose_master_became_a_replica_asks_the_sentinels_again(tmp_path: Path) -> None:
    sentinels = Sentinels(embedded_binary(), tmp_path)
    sentinels.master.start()
    sentinels.replica.start()
    with Redis.from_url(sentinels.replica.url) as replica:
        replica.execute_command("REPLICAOF", "NO", "ONE")
    sentinels.start_sentinel(f"sentinel monitor mymaster 127.0.0.1 {sentinels.master.port} 1\n")
    with (
        thread_client(f"redis+sentinel://127.0.0.1:{sentinels.port}/mymaster") as client,
        Redis.from_url(sentinels.master.url) as master,
    ):
        assert client.ping()
        master.execute_command("REPLICAOF", "127.0.0.1", sentinels.replica.port)
        with pytest.raises(RedisUnavailable, match="previous master is now a slave"):
            client.set("key", "value")
        sentinels.ask("SENTINEL", "REMOVE", "mymaster")
        sentinels.ask("SENTINEL", "MONITOR", "mymaster", "127.0.0.1", sentinels.replica.port, 1)
        client.set("key", "value")
    sentinels.close()


async def test_more_callers_than_connections_wait_for_one_to_the_master(tmp_path: Path) -> None:
    """The Sentinel pool of redis-py alone raises an error when all its connections are in use."""
    with closing(Sentinels(embedded_binary(), tmp_path)) as sentinels:
        sentinels.master.start()
        sentinels.start_sentinel(f"sentinel monitor mymaster 127.0.0.1 {sentinels.master.port} 1\n")
        async with command_client(sentinels.url, connections=2) as client:
            await asyncio.gather(*(client.set(f"n{number}", 1, ex=10) for number in range(50)))
            assert len(connected(sentinels.master.url)) <= 3  # with that of the Sentinel
        assert not connected(sentinels.address)


def connected(url: str) -> list[Any]:
    """The clients of a server that were made by redis-py, but for the one that asks."""
    with thread_client(url) as observer:
        clients: Any = observer.client_list()
        return [each for each in clients if each["id"] != str(observer.client_id()) and "sentinel" not in each["name"]]
