"""The start on PostgreSQL: where the server is, whether it keeps what it commits, and the tables of this release."""

import asyncio
import logging
from typing import Any, cast

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from callstream_runtime.outage_log import OutageLog
from dialog_engine.errors import ConfigurationError, StorageUnavailableError
from dialog_engine.storage import schemas
from dialog_engine.storage.postgres_connection import LOST_CONNECTIONS, PostgresTimes, first_line

log = logging.getLogger(__name__)

DIALECT = "postgres"
OLDEST_SERVER = 150_000
_DEFAULT_PLACE = {"host": "localhost", "port": "5432", "dbname": ""}
_LOGIN_REFUSED = (
    "password",
    "authentication",
    "does not exist",
    "no pg_hba.conf entry",
    "permission denied",
    "not permitted",
)
_MIGRATION_LOCK = 0x63616C6C  # an arbitrary key: "call" in ASCII


class _NotYetError(StorageUnavailableError):
    """A start could not use the server, for a reason that may pass."""


def place_of(url: str) -> str:
    """The server and the database of a URL, without the password.

    The error of libpq for a URL that it cannot parse is left out, because it quotes the password. A password that is
    not percent-encoded may be parsed as a part of the host, the port or the database.
    """
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        parts = None
    if parts is not None:
        host, port, name = (str(parts.get(key, default)) for key, default in _DEFAULT_PLACE.items())
        if "@" not in host + name and port.replace(",", "").isdigit():
            return f"{host}:{port}/{name}"
    raise ConfigurationError(
        "DATABASE_URL: is not a URL such as postgresql://user:password@host:5432/database; other characters than"
        " letters and digits in the password are written percent-encoded"
    )


async def prepared(url: str, where: str, times: PostgresTimes) -> None:
    """Run `_prepare`, again if the server cannot be used yet."""
    outage = OutageLog(log, "the database")
    for pause in times.start_pauses:
        try:
            await asyncio.to_thread(_prepare, url, where, times.connect)
        except _NotYetError as error:
            outage.failed(error)
            await asyncio.sleep(pause)
        else:
            outage.worked()
            return
    await asyncio.to_thread(_prepare, url, where, times.connect)


def _prepare(url: str, where: str, connect_seconds: int) -> None:
    try:
        with psycopg.connect(
            url,
            autocommit=True,
            connect_timeout=connect_seconds,
            **cast("Any", LOST_CONNECTIONS),
        ) as connection:
            _check_server(connection)
            _migrate(connection)
    except (errors.InsufficientPrivilege, errors.InvalidSchemaName) as error:
        user = conninfo_to_dict(url).get("user", "its user")
        raise ConfigurationError(
            f"DATABASE_URL: {user} lacks a right on {where}: {first_line(error)}: GRANT CREATE, USAGE ON SCHEMA public"
            f" TO {user}, or make it the owner of the database"
        ) from None
    except (errors.InvalidPassword, errors.InvalidAuthorizationSpecification, errors.InvalidCatalogName) as error:
        raise ConfigurationError(f"DATABASE_URL: {where} refuses the login: {first_line(error)}") from None
    except psycopg.Error as error:
        text = first_line(error)
        # libpq reports a refused login without an SQLSTATE.
        if error.sqlstate is None and any(words in text for words in _LOGIN_REFUSED):
            raise ConfigurationError(f"DATABASE_URL: {where} refuses the login: {text}") from None
        unavailable = _NotYetError if isinstance(error, psycopg.OperationalError) else StorageUnavailableError
        raise unavailable(f"DATABASE_URL: {where} cannot be used: {text}") from None


def check_version(version: int) -> None:
    """Raises ConfigurationError when the server, with this number of its version, is too old."""
    if version < OLDEST_SERVER:
        raise ConfigurationError(f"DATABASE_URL: the server is PostgreSQL {version // 10_000}: 15 or newer is needed")


def _check_server(connection: "psycopg.Connection[Any]") -> None:
    check_version(connection.info.server_version)
    for setting, loss in (("synchronous_commit", "acknowledged messages"), ("fsync", "the whole database")):
        [value] = connection.execute(f"SHOW {setting}".encode()).fetchall()
        if value[0] == "off":
            raise ConfigurationError(
                f"DATABASE_URL: {setting} is off on the server, so a crash could lose {loss}: set it to on"
            )
    [read_only] = connection.execute(b"SHOW transaction_read_only").fetchall()
    if read_only[0] == "on":
        raise ConfigurationError(
            "DATABASE_URL: the server is a read-only standby: name the primary, or all servers with"
            " target_session_attrs=read-write"
        )


def _migrate(connection: "psycopg.Connection[Any]") -> None:
    """Create or migrate the tables to the version of this release, in one transaction. Engines that start at the same
    time wait for each other here."""
    with connection.transaction():
        connection.execute(b"SELECT pg_advisory_xact_lock(%s)", [_MIGRATION_LOCK])
        if not connection.execute(b"SELECT to_regclass('meta')").fetchall()[0][0]:
            connection.execute(schemas.schema(DIALECT).encode())
        else:
            found: dict[str, str] = dict(connection.execute(b"SELECT key, value FROM meta").fetchall())
            needed = int(found.get("schema_version", "0"))
            schemas.check_not_too_old(DIALECT, needed)
            schemas.check_known(DIALECT, needed, found.get("release", ""))
            version = int(found.get("tables_version", needed))
            if version >= schemas.newest(DIALECT):
                return
            for number, script in schemas.migrations(DIALECT).items():
                if number > version:
                    connection.execute(script.encode())
        newest = schemas.newest(DIALECT)
        versions = {"schema_version": schemas.needed(DIALECT, newest), "tables_version": newest}
        for key, value in (versions | {"release": schemas.RELEASE}).items():
            connection.execute(
                b"INSERT INTO meta (key, value) VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                [key, str(value)],
            )
