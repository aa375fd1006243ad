"""The PostgreSQL server of the tests: what it keeps, and that nothing of it stays behind."""

import time
from contextlib import closing
from typing import LiteralString

import psutil
import psycopg
import pytest

from tests.chaos.proxy import Proxy
from tests.marks import exhaustive
from tests.support.postgres import PostgresServer, answers_queries, database_of
from tests.support.waiting import wait_until_blocking

pytestmark = exhaustive("the harness itself")

START_SECONDS = 5.0  # on an idle machine it is less than 1 s


@pytest.fixture
def rows(own_postgres: PostgresServer) -> str:
    """A database with an empty table."""
    url = own_postgres.create_database()
    run(url, "CREATE TABLE kept (word text NOT NULL)")
    return url


def run(url: str, statement: LiteralString, *values: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement, values)
        return cursor.fetchall() if cursor.description else []


def words(url: str) -> list[object]:
    return [word for (word,) in run(url, "SELECT word FROM kept ORDER BY word")]


def test_a_killed_server_keeps_every_committed_row_and_no_other(own_postgres: PostgresServer, rows: str) -> None:
    with closing(psycopg.connect(rows)) as open_transaction:
        for cycle in range(3):
            run(rows, "INSERT INTO kept VALUES (%s)", f"committed {cycle}")
            if cycle == 0:
                open_transaction.execute("INSERT INTO kept VALUES ('not committed')")
            own_postgres.kill()
            own_postgres.start()
            assert words(rows) == [f"committed {before}" for before in range(cycle + 1)]


def test_a_kill_ends_every_process_of_the_server_at_once(own_postgres: PostgresServer, rows: str) -> None:
    with closing(psycopg.connect(rows)):
        family = psutil.Process(own_postgres.process.pid).children(recursive=True)
        assert len(family) > 3  # checkpointer, writers, and the backend of the open connection
        own_postgres.kill()

        assert not [process for process in family if lives(process)]
    assert not answers_queries(rows)


def test_a_stop_does_not_wait_for_clients_and_leaves_no_process(own_postgres: PostgresServer, rows: str) -> None:
    with closing(psycopg.connect(rows)):
        postmaster = psutil.Process(own_postgres.process.pid)
        family = [postmaster, *postmaster.children(recursive=True)]
        own_postgres.stop()

    wait_until_blocking(lambda: not any(map(lives, family)), what="the end of all processes")


def test_a_start_is_quick(own_postgres: PostgresServer) -> None:
    own_postgres.kill()
    began = time.monotonic()
    own_postgres.start()

    assert time.monotonic() - began < START_SECONDS


def test_a_setting_is_for_new_connections_at_once_and_outlives_a_restart(own_postgres: PostgresServer) -> None:
    own_postgres.set("synchronous_commit", "off")
    assert run(own_postgres.url, "SHOW synchronous_commit") == [("off",)]

    own_postgres.restart()
    assert run(own_postgres.url, "SHOW synchronous_commit") == [("off",)]


def test_the_server_asks_for_the_password_and_listens_on_this_machine_only(own_postgres: PostgresServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(own_postgres.url.replace("not-a-secret", "wrong"))

    others = {c.laddr.ip for c in psutil.Process(own_postgres.process.pid).net_connections("inet")}
    assert others == {"127.0.0.1"}


def test_connections_are_counted_by_database(own_postgres: PostgresServer, rows: str) -> None:
    assert own_postgres.connections() == 0
    with closing(psycopg.connect(rows)), closing(psycopg.connect(own_postgres.url)):
        assert own_postgres.connections() == 2
        assert own_postgres.connections(rows) == 1
    wait_until_blocking(lambda: own_postgres.connections() == 0, what="the end of the connections")


def test_a_proxy_in_front_of_the_server_can_cut_its_connections(own_postgres: PostgresServer, rows: str) -> None:
    with Proxy(own_postgres.port, redis=False) as proxy:
        through = own_postgres.url_of(database_of(rows), port=proxy.port)
        with closing(psycopg.connect(through, autocommit=True)) as connection:
            connection.execute("INSERT INTO kept VALUES ('through the proxy')")
            proxy.cut()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
    assert words(rows) == ["through the proxy"]


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_gets_an_empty_database(postgres_url: str, turn: int) -> None:
    run(postgres_url, "CREATE TABLE mine (number integer)")  # fails where it is there already


def test_a_database_is_dropped_though_a_client_is_connected(postgres: PostgresServer) -> None:
    url = postgres.create_database()
    with closing(psycopg.connect(url)):
        postgres.drop_database(url)
    assert not answers_queries(url)


def lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
