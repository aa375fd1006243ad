"""Fixtures for every kind of test.

Tests that ask for `redis_url` (or `redis`) get a real, empty server: the embedded Valkey, or with
`@pytest.mark.every_redis` each kind in turn. What they leave behind must have a TTL.
Tests that ask for `postgres_url` get a database of a real PostgreSQL server, with tables and without rows.
"""

import faulthandler
import gc
import os
import shlex
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import settings
from redis import Redis as SyncRedis
from redis.asyncio import Redis
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from callstream_runtime.connections import command_client
from deploy.local import ports
from plugins_contract.keys import Keys
from tests.marks import exhaustive
from tests.support.forked import forked_python, start_hosts
from tests.support.leaks import leaked_keys
from tests.support.postgres import PostgresServer, share_new_data
from tests.support.postgres_databases import Databases
from tests.support.servers import KINDS, LocalServer, Servers, embedded_binary, missing

ONE_BY_ONE = ("tests/chaos/test_scenarios.py", "tests/chaos/test_guard_mutations.py")
"""Files with long tests that share no fixture."""
LONG = tuple(f"tests/integration/test_{name}.py" for name in ("commands", "compose_scale", "compose_trace"))
"""Files whose tests take minutes, one after the other: they begin first."""

settings.register_profile("fast", max_examples=30)
"""That of `make test`. `make test-all` tries more than three times as many examples."""

TEARDOWN_SECONDS = 120.0
"""How long a teardown may take. pytest-timeout does not limit the teardown of a test that has timed out already."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "every_redis: runs on every kind of Redis server that can be had")
    number, count = _of_xdist()
    if count:
        _use_own_ports(number, count)
    else:
        start_hosts()
        share_new_data()


def _of_xdist() -> tuple[int, int]:
    """The number of this process of pytest-xdist, and how many there are; none in the process that starts them."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    return int(worker.removeprefix("gw")), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))


def _use_own_ports(number: int, count: int) -> None:
    """Processes of pytest-xdist, and all that they start, choose their ports from ranges of their own."""
    allowed = ports.allowed()
    size = len(allowed) // count
    first = allowed.start + number * size
    os.environ["LOCAL_PORTS"] = f"{first}-{first + size - 1}"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Each process of pytest-xdist begins elsewhere in a folder, so that not all of them compile the same files."""
    report = yield
    number, count = _of_xdist()
    if count and isinstance(collector, pytest.Directory):
        first = number * len(report.result) // count
        report.result = report.result[first:] + report.result[:first]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays to the end: looking for garbage in it would cost a tenth of its time."""
    gc.disable()
    found = yield
    gc.enable()
    gc.freeze()
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (not item.nodeid.startswith(LONG), item.path.parts))
    for item in items:
        case = getattr(item, "callspec", None)
        kind = case.params.get("redis_kind", KINDS[0]) if case else KINDS[0]
        if kind != KINDS[0]:
            item.add_marker(exhaustive("another kind of Redis than the embedded one"))


class ByFile(LoadFileScheduling):
    """Gives the tests of a file to one process, so that they share fixtures, and those of `ONE_BY_ONE` to any."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(ONE_BY_ONE) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    """Processes of pytest-xdist are forked from one that has imported the libraries, which takes half of collection."""
    for spec in specs:
        spec.python = shlex.join(forked_python())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    return ByFile(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """End the process, and with it the run, when a teardown hangs."""
    timer = threading.Timer(TEARDOWN_SECONDS, _give_up, [item])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _give_up(item: pytest.Item) -> None:
    capture = cast("Any", item.config.pluginmanager.getplugin("capturemanager"))
    capture.suspend_global_capture()
    print(f"the teardown of {item.nodeid} has not ended after {TEARDOWN_SECONDS:g} s", file=sys.__stderr__, flush=True)
    faulthandler.dump_traceback(sys.__stderr__ or 2)
    os._exit(1)


def pytest_report_header() -> list[str]:
    return [f"{kind}: {missing(kind) or 'available'}" for kind in KINDS]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "redis_kind" in metafunc.fixturenames and metafunc.definition.get_closest_marker("every_redis"):
        metafunc.parametrize("redis_kind", KINDS)


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": False}


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Generator[Servers]:
    servers = Servers(lambda kind: tmp_path_factory.mktemp(kind.replace(":", "-")))
    yield servers
    servers.close()


@pytest.fixture
def redis_kind() -> str:
    return "valkey"


@pytest.fixture
def redis_url(servers: Servers, redis_kind: str) -> Generator[str]:
    """An empty server, shared in turn by all tests."""
    url = servers.url(redis_kind)
    with SyncRedis.from_url(url, socket_timeout=5) as client:
        client.flushall()
    yield url
    leaked = leaked_keys(url)
    assert not leaked, f"keys without a TTL that are not listed as permanent: {leaked}"


@pytest.fixture
async def redis(redis_url: str) -> AsyncGenerator[Redis]:
    """A client as the services make theirs; replies are bytes."""
    client = command_client(redis_url)
    yield client
    await client.aclose()


@pytest.fixture
def keys() -> Keys:
    return Keys()


@pytest.fixture
def own_redis(tmp_path: Path) -> Generator[LocalServer]:
    """An embedded Valkey of this test's own: it may be killed and started again."""
    folder = tmp_path / "valkey"
    folder.mkdir()
    server = LocalServer(embedded_binary(), folder)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def postgres() -> Generator[PostgresServer]:
    """A PostgreSQL server that all tests share: for databases, not to be stopped or changed."""
    yield from _postgres()


@pytest.fixture(scope="session")
def databases(postgres: PostgresServer) -> Databases:
    return Databases(postgres)


@pytest.fixture
def postgres_url(databases: Databases) -> Generator[str]:
    """A database of this test's own, which has the tables of this release and no rows."""
    with databases.without_rows() as url:
        yield url


@pytest.fixture
def empty_postgres(databases: Databases) -> Generator[str]:
    """A database of this test's own, which has no tables yet."""
    with databases.without_tables() as url:
        yield url


@pytest.fixture
def own_postgres() -> Generator[PostgresServer]:
    """A PostgreSQL server of this test's own: it may be killed and started again."""
    yield from _postgres()


def _postgres() -> Generator[PostgresServer]:
    # Not in pytest's folder: root's is closed to the account that the server runs as.
    with tempfile.TemporaryDirectory(prefix="callstream-postgres-") as folder:
        server = PostgresServer(Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.stop()
