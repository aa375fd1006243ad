"""The parts on the way of a tool call from the outbox to its answer."""

import logging
from dataclasses import dataclass

from callstream_runtime.clock import RedisWatch
from callstream_runtime.pool_directory import PoolDirectory
from dialog_engine.calls.executor import CallExecutor
from dialog_engine.calls.large_results import LargeResults
from dialog_engine.calls.mailbox import Mailbox
from dialog_engine.calls.read_cache import ReadCache
from dialog_engine.calls.reads import Reads
from dialog_engine.calls.recent_ends import RecentEnds
from dialog_engine.calls.resource_updates import ResourceUpdates
from dialog_engine.calls.subscriptions import BlockedCalls
from dialog_engine.chat.outbox import DEFAULT_ROUTES
from dialog_engine.observe.observed import ObservedCalls
from dialog_engine.peers.catalog import CatalogReader, DisabledTools
from dialog_engine.relay.relay import Relay
from dialog_engine.settings import Settings
from dialog_engine.storage.large_results import SqlLargeResults
from dialog_engine.tool_calls.exposure.allowed import ToolFilters
from dialog_engine.tool_calls.exposure.exposure import OfferedTools
from dialog_engine.tool_calls.exposure.quarantine import Quarantine
from dialog_engine.wiring.base import Base
from plugins_contract.ledger import EngineLedger
from plugins_contract.signing import RequestKeys
from plugins_contract.trust import CatalogTrust

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Calls:
    """The parts on the way of a tool call from the outbox to its answer."""

    relay: Relay
    mailbox: Mailbox
    executor: CallExecutor
    ended: RecentEnds
    large_results: LargeResults
    large_store: SqlLargeResults
    watch: RedisWatch
    blocked: BlockedCalls
    catalog: CatalogReader
    tools: OfferedTools
    quarantine: Quarantine
    pools: PoolDirectory
    timeout_ms: int
    """The time of a call of a tool without one of its own."""
    reads: Reads
    updates: ResourceUpdates


def calls_of(base: Base) -> Calls:
    """Build the parts; nothing runs yet."""
    settings, keys, outbox, waiting = base.settings, base.keys, base.outbox, base.waiting
    redis = base.connections.commands
    pools = PoolDirectory(redis, keys, base.clock)
    ledger = EngineLedger(redis, keys, settings.service.request_keys, cipher=base.cipher, pools=pools)
    watch = RedisWatch(redis, keys, base.clock)
    trust = CatalogTrust(_catalog_keys(settings))
    cache = ReadCache()
    updates = ResourceUpdates(cache)
    catalog = CatalogReader(redis, base.connections.announcements, keys, base.clock, trust, updated=updates.receive)
    observer = ObservedCalls(base.metrics, base.subjects)
    relay = Relay(
        outbox,
        redis,
        ledger,
        keys,
        DEFAULT_ROUTES | settings.store.outbox_routes,
        waiting,
        backlog_limit=settings.limits.max_backlog,
        subject_window=settings.limits.subject_window,
        observer=observer,
        cipher=base.cipher,
        times=base.times.relay,
    )
    mailbox = Mailbox(
        base.connections.mailbox,
        redis,
        keys,
        base.engine.engine_id,
        outbox,
        waiting,
        publisher=relay,
        cipher=base.cipher,
        times=base.times.mailbox,
    )
    blocked = BlockedCalls(watch, catalog)
    timeout_ms = settings.tools.mcp_request_timeout_ms
    ended = RecentEnds(ledger, watch)
    large_store = SqlLargeResults(base.engine)
    reachable = settings.http.operations_port is not None
    large_results = LargeResults(large_store, settings.service.request_keys, base.cipher, reachable=reachable)
    executor = CallExecutor(
        ledger,
        waiting,
        mailbox,
        blocked,
        keys,
        base.clock,
        ended,
        large_results,
        default_timeout_ms=timeout_ms,
        observer=observer,
        cipher=base.cipher,
        may_ask=base.releases.may_ask,
    )
    quarantine = Quarantine(base.facts.tool_refused)
    filters = ToolFilters(base.rights) if base.rights else None
    tools = OfferedTools(catalog if settings.tools.enable_mcp else DisabledTools(), quarantine, filters)
    return Calls(
        relay,
        mailbox,
        executor,
        ended,
        large_results,
        large_store,
        watch,
        blocked,
        catalog,
        tools,
        quarantine,
        pools,
        timeout_ms,
        Reads(ledger, executor, base.clock, keys, mailbox.key, base.cipher, cache, catalog.keeps_state),
        updates,
    )


def _catalog_keys(settings: Settings) -> RequestKeys:
    if not settings.service.request_keys_file:
        log.warning("REQUEST_KEYS_FILE is not set: this engine believes what anybody writes to Redis about tools")
    if settings.tools.accept_unsigned_catalogs:
        log.warning("ACCEPT_UNSIGNED_CATALOGS is set: unset it when every worker is of this release")
        return RequestKeys()
    return settings.service.request_keys
