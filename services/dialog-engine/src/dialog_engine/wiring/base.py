"""What every other part of the engine uses: its settings, connections to Redis, the store, and the metrics."""

import contextlib
from dataclasses import dataclass

from redis.asyncio import Redis

from callstream_runtime.clock import RedisClock
from callstream_runtime.connections import blocking_client, command_client
from callstream_runtime.loops import LISTEN_SECONDS
from callstream_runtime.pipelined import PipelinedRedis
from callstream_runtime.rights_file import watched_rights
from callstream_runtime.settings import RedisAddress
from callstream_runtime.version import __version__, commit
from callstream_runtime.watched_file import WatchedFile
from dialog_engine.calls.mailbox import BLOCK_SECONDS
from dialog_engine.calls.subscriptions import Subscriptions
from dialog_engine.config.store import EngineStoreSettings
from dialog_engine.consumption.subjects import SubjectUse
from dialog_engine.consumption.usage import Prices, watched_prices
from dialog_engine.errors import ConfigurationError
from dialog_engine.observe.facts import Facts
from dialog_engine.observe.metrics import Metrics
from dialog_engine.settings import Settings
from dialog_engine.storage import schemas
from dialog_engine.storage.audit import AuditTrail, read_digest_key
from dialog_engine.storage.audit_chain import AuditChain
from dialog_engine.storage.database import Database
from dialog_engine.storage.moves import check_not_moved
from dialog_engine.storage.outbox import SqlOutbox
from dialog_engine.storage.releases import Releases
from dialog_engine.storage.sealed import check_keys
from dialog_engine.storage.session_changes import go_on_with_revisions
from dialog_engine.storage.sqlite_file import open_sqlite
from dialog_engine.storage.store import EngineDatabase
from dialog_engine.wiring.times import EngineTimes
from plugins_contract.encryption import Cipher
from plugins_contract.keys import Keys
from plugins_contract.rights import Rights


@dataclass(frozen=True, slots=True)
class Connections:
    """A pool for commands, and one connection for each blocking reader."""

    commands: PipelinedRedis
    mailbox: Redis
    announcements: Redis
    control: Redis


@dataclass(frozen=True, slots=True)
class Base:
    """Settings, connections and the store, which every other part uses."""

    settings: Settings
    times: EngineTimes
    keys: Keys
    clock: RedisClock
    metrics: Metrics
    facts: Facts
    connections: Connections
    engine: EngineDatabase
    outbox: SqlOutbox
    waiting: Subscriptions
    trail: AuditTrail
    chain: AuditChain
    rights: WatchedFile[Rights] | None
    cipher: Cipher
    subjects: SubjectUse
    prices: WatchedFile[Prices] | None
    releases: Releases


async def open_base(stack: contextlib.AsyncExitStack, settings: Settings, times: EngineTimes) -> Base:
    """Connect, open the store and read the files of keys. The stack closes them.

    Raises:
        ConfigurationError, StorageUnavailableError: the engine cannot start; the text says why.
    """
    connections = await _connections(stack, settings.service.redis_address)
    waiting = Subscriptions()
    database = await stack.enter_async_context(_open_store(settings.store, waiting))
    await check_not_moved(database)
    engine_id = await database.engine_id()
    cipher = settings.store.cipher
    await check_keys(database, cipher)
    audit_key = await read_digest_key(database, cipher)
    trail = AuditTrail(audit_key, stream=settings.store.audit_stream)
    chain = AuditChain(database, audit_key)
    keys, clock = Keys(settings.service.redis_key_prefix), RedisClock()
    engine = EngineDatabase(database, cipher, engine_id, keys)
    await go_on_with_revisions(engine)
    dialect = "postgres" if settings.store.database_url else "sqlite"
    schema = f"{dialect}-{schemas.newest(dialect)}"
    build = {"version": __version__, "commit": commit("dialog_engine"), "schema": schema}
    metrics, subjects = Metrics(build), SubjectUse(connections.commands, keys)
    try:
        rights = watched_rights(settings.service.rights_file)
    except ValueError as error:
        raise ConfigurationError(f"RIGHTS_FILE: {error}") from None
    try:
        prices = watched_prices(settings.store.prices_file)
    except ValueError as error:
        raise ConfigurationError(f"PRICES_FILE: {error}") from None
    return Base(
        settings,
        times,
        keys,
        clock,
        metrics,
        Facts(metrics, subjects),
        connections,
        engine,
        SqlOutbox(engine),
        waiting,
        trail,
        chain,
        rights,
        cipher,
        subjects,
        prices,
        Releases(engine),
    )


async def _connections(stack: contextlib.AsyncExitStack, address: RedisAddress) -> Connections:
    clients = (
        command_client(address),
        blocking_client(address, block_seconds=BLOCK_SECONDS),
        blocking_client(address, block_seconds=LISTEN_SECONDS),
        blocking_client(address, block_seconds=LISTEN_SECONDS),
    )
    for client in clients:
        stack.push_async_callback(client.aclose)
    return Connections(*clients)


def _open_store(
    settings: EngineStoreSettings, waiting: Subscriptions
) -> contextlib.AbstractAsyncContextManager[Database]:
    if settings.database_url is None:
        return open_sqlite(settings.outbox_path, waiting.__len__)
    from dialog_engine.storage.postgres import open_postgres  # noqa: PLC0415 -- psycopg is a tenth of the start

    return open_postgres(settings.database_url.get_secret_value(), settings.database_pool_size)
