"""Builds the worker: creates, owns and closes all of its parts."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Mapping
from functools import partial

from redis.asyncio import Redis

from callstream_runtime.clock import RedisClock, RedisWatch
from callstream_runtime.connections import blocking_client, command_client, thread_client
from callstream_runtime.loops import LISTEN_SECONDS, kept_running
from callstream_runtime.pool_directory import PoolDirectory
from callstream_runtime.redis_errors import RedisUnavailable
from callstream_runtime.rights_file import watched_rights
from callstream_runtime.version import __version__, commit
from callstream_runtime.watched_file import WatchedFile
from plugins_contract.keys import Keys
from plugins_contract.ledger import WorkerLedger
from plugins_contract.ledger.group import Backlog, read_backlogs
from plugins_contract.ledger.session_leases import SessionLeases
from plugins_contract.pools import own_pool
from plugins_contract.rights import Rights
from plugins_mcp.adoption import CatalogToolLookup, RequestAdopter
from plugins_mcp.catalog import CatalogPublisher
from plugins_mcp.config import Settings
from plugins_mcp.consumer import BLOCK_SECONDS, Consumer
from plugins_mcp.control import listen_for_control
from plugins_mcp.dead_consumers import remove_dead_consumers
from plugins_mcp.errors import SettingsError
from plugins_mcp.handler import CallHandler
from plugins_mcp.held_calls import HeldCalls
from plugins_mcp.large_results import LargeResults
from plugins_mcp.leases import LeaseKeeper, LeaseTimes
from plugins_mcp.mcp import ECHO, EchoServer, McpServers, ServersFile, Updates, read_servers_file, single_server
from plugins_mcp.mcp.circuit_breaker import ConnectionPolicy
from plugins_mcp.observe.calls import CallObserver
from plugins_mcp.observe.facts import Facts
from plugins_mcp.observe.gauges import Gauges
from plugins_mcp.observe.health import Readiness, health_server
from plugins_mcp.observe.metrics import Metrics
from plugins_mcp.placement import Placement
from plugins_mcp.pools import PoolKeeper
from plugins_mcp.servers_watch import ServersWatch, report
from plugins_mcp.sessions import SessionKeeper
from plugins_mcp.updates import UpdatePublisher

log = logging.getLogger(__name__)


RENEWAL_TIMEOUT_SECONDS = 2.0
CONNECT_SECONDS = 5.0


async def run_worker(
    settings: Settings, stopping: asyncio.Event, times: LeaseTimes | None = None, policy: ConnectionPolicy | None = None
) -> None:
    """Consume until `stopping`; then take no more requests, let running calls end, and leave the group.

    Raises:
        SettingsError, ServersFileError: the worker cannot start; the text says why.
        OSError: the address of the health endpoints is not available.
    """
    times = times or LeaseTimes()
    configured = configured_servers(settings)
    report(configured)
    name = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"
    async with contextlib.AsyncExitStack() as stack:
        keys = Keys(settings.redis_key_prefix)
        clock = RedisClock()
        metrics = Metrics({"version": __version__, "commit": commit("plugins_mcp")})
        facts = Facts(metrics)
        redis = _closing(stack, command_client(settings.redis_address))
        reader = _closing(stack, blocking_client(settings.redis_address, block_seconds=BLOCK_SECONDS))
        control = _closing(stack, blocking_client(settings.redis_address, block_seconds=LISTEN_SECONDS))
        renewals = thread_client(settings.redis_address, timeout=RENEWAL_TIMEOUT_SECONDS)
        stack.callback(renewals.close)

        cipher, request_keys = settings.cipher, settings.request_keys
        if not request_keys:
            log.warning("REQUEST_KEYS_FILE is not set: this worker runs what anybody writes to Redis")
        ledger = WorkerLedger(redis, keys, cipher)
        changed = asyncio.Event()
        updates = Updates()
        servers = McpServers(
            configured.servers,
            configured.broken,
            changed=lambda _: changed.set(),
            policy=policy,
            updates=updates,
            max_sessions=settings.worker_max_sessions,
        )
        if settings.development_echo:
            log.warning("DEVELOPMENT_ECHO is set: this worker offers a tool of its own, which is for measurements only")
            servers[ECHO] = EchoServer()
        watch = RedisWatch(redis, keys, clock)
        directory = PoolDirectory(redis, keys, clock, silent_ms=times.silent_ms)
        session_leases = SessionLeases(redis, keys, own_pool(name), lease_ms=times.lease_ms)
        sessions = SessionKeeper(servers, session_leases, times)
        held = HeldCalls(redis, keys, own_pool(name), again_seconds=times.announce)
        keeper = PoolKeeper(
            directory,
            clock,
            times,
            worker=name,
            servers=lambda: servers.names,
            rooms=sessions.rooms,
            holds=lambda: bool(held),
            pool=settings.worker_pool,
            steady_for=watch.steady_for,
        )
        catalog = CatalogPublisher(
            redis,
            keys,
            servers,
            clock,
            worker=name,
            changed=changed,
            request_keys=request_keys,
            accept_first_listings=settings.accept_first_listings,
            heartbeat_seconds=times.catalog,
        )
        leases = LeaseKeeper(
            renewals,
            keys,
            times,
            worker=name,
            recent=ledger.recent,
            also=sessions.renew,
            count=facts.lease_renewed,
        )
        observer = CallObserver(metrics)
        rights = _rights(settings)
        handler = CallHandler(
            ledger,
            Placement(servers, sessions, directory, held.pool),
            leases,
            clock,
            observer,
            held,
            max_retries=settings.mcp_max_retries,
            result_max_bytes=settings.result_max_bytes,
            lease_ms=times.lease_ms,
            rights=rights,
            large=LargeResults(settings.engine_url, request_keys, cipher) if settings.engine_url else None,
        )
        consumer = Consumer(
            reader,
            redis,
            keys,
            ledger,
            handler,
            RequestAdopter(
                ledger,
                CatalogToolLookup(servers, redis, keys, clock, request_keys, CONNECT_SECONDS),
                keys,
                clock,
                default_timeout_ms=settings.mcp_request_timeout_ms,
                request_keys=request_keys,
                rights=rights,
                observer=observer,
            ),
            directory,
            name=name,
            member_of=keeper.pools,
            concurrency=settings.worker_concurrency,
            steady_for=watch.steady_for,
            check_redis=watch.ask,
            request_keys=request_keys,
            cipher=cipher,
            times=times,
            observer=observer,
        )

        await stack.enter_async_context(
            health_server(
                settings.health_host,
                settings.health_port,
                readiness=lambda: _readiness(consumer, servers, handler),
                metrics=Gauges(
                    metrics,
                    handler,
                    servers,
                    consumer,
                    watch,
                    partial(_backlogs, redis, keys, directory),
                    settings.worker_concurrency,
                ).scrape,
            )
        )
        await watch.ask()
        # The consumer stops first. What running calls need stays up until they have ended.
        async with kept_running(
            leases.run,
            servers.run,
            catalog.run,
            UpdatePublisher(redis, keys, servers, updates, clock, request_keys, share_seconds=times.catalog).run,
            keeper.run,
            sessions.run,
            held.run,
            ServersWatch(settings, configured_servers, configured, servers, keeper.servers_changed).run,
            partial(listen_for_control, control, keys, handler.cancel, sessions.forget),
            watch.run,
            facts.observe_loop,
            partial(
                remove_dead_consumers,
                redis,
                keys,
                name,
                keeper.pools,
                steady_for=watch.steady_for,
                removed=facts.workers_died,
            ),
        ):
            async with kept_running(consumer.run):
                log.info("worker %s is running", name)
                await stopping.wait()
            with contextlib.suppress(RedisUnavailable):
                await held.close()
                await sessions.close()
            await consumer.drain(settings.drain_seconds)
            await _leave(consumer, catalog, keeper)


def configured_servers(settings: Settings) -> ServersFile:
    """The MCP servers of the settings.

    Raises:
        SettingsError, ServersFileError: no server can be used.
    """
    configured = read_servers_file(settings.mcp_config, os.environ) if settings.mcp_config else ServersFile()
    if settings.mcp_server_endpoint is None:
        return configured
    key = settings.mcp_api_key.get_secret_value() if settings.mcp_api_key else None
    try:
        quick = single_server(settings.mcp_server_endpoint, key)
    except ValueError as error:
        raise SettingsError(f"MCP_SERVER_ENDPOINT: {error}") from None
    if any(spec.name == quick.name for spec in configured.servers):
        raise SettingsError(f"MCP_SERVER_ENDPOINT and MCP_CONFIG both define a server {quick.name!r}: rename one")
    return ServersFile((*configured.servers, quick), configured.broken, configured.warnings)


def _rights(settings: Settings) -> WatchedFile[Rights] | None:
    try:
        return watched_rights(settings.rights_file)
    except ValueError as error:
        raise SettingsError(f"RIGHTS_FILE: {error}") from None


def _closing(stack: contextlib.AsyncExitStack, redis: Redis) -> Redis:
    stack.push_async_callback(redis.aclose)
    return redis


async def _leave(consumer: Consumer, catalog: CatalogPublisher, keeper: PoolKeeper) -> None:
    try:
        await catalog.withdraw()
        await consumer.retire()
        await keeper.leave()
    except RedisUnavailable:
        log.warning("Redis is not available: this worker's heartbeat expires by itself")


def _readiness(consumer: Consumer, servers: McpServers, handler: CallHandler) -> Readiness:
    states = {name: health.as_json() for name, health in servers.health().items()}
    return Readiness(consumer.reading, {"consuming": consumer.reading, "running": len(handler), "servers": states})


async def _backlogs(redis: Redis, keys: Keys, pools: PoolDirectory) -> Mapping[str, Backlog]:
    try:
        return await read_backlogs(redis, keys, await pools.streams())
    except RedisUnavailable:
        return {}
