"""Every name that Callstream uses in Redis, with its owner and its lifetime.

| key | kind | written by | lifetime |
|---|---|---|---|
| `events.plugins` | stream + group `plugins-workers` | engine, other producers | permanent; an entry as its call |
| `events.plugins.dead` | stream, about 10,000 entries | workers | permanent |
| `plugins.calls:<correlationId>` | hash | ledger scripts | 24 h after its end |
| `rpc.plugins.responses:<correlationId>` | stream | ledger scripts | 24 h after its end, as the ledger |
| `rpc.plugins.mailbox:<engineId>` | stream, about 4,096 entries | ledger scripts | 24 h after its last entry |
| `rpc.plugins.workers` | hash, a field per worker | workers | permanent; a field as its worker |
| `rpc.plugins.pools` | hash, a field per worker | workers | permanent; a field as its worker |
| `rpc.plugins.requests:<pool>` | stream + group `plugins-workers` | engine, workers | as the workers of the pool |
| `rpc.plugins.sessions:<owner>` | hash, a field per MCP server | engine, workers | 24 h after its last lease |
| `rpc.plugins.held` | hash, a field per call | workers | two days after its last write; a field as its call |
| `plugins.control` | pub/sub channel | engine, workers | nothing stored |
| `plugins.catalog` | set of server names | workers | permanent |
| `plugins.catalog:<server>` | hash | workers | 7 days after the last heartbeat |
| `plugins.catalog.pins:<server>` | hash | workers, operators | permanent |
| `plugins.catalog.watched:<server>` | hash, a field per resource | workers | an hour after its last read |
| `dialog.turns:<turnId>` | stream | the engine that runs the turn | 24 h after its last entry |
| `dialog.limits:<kind>:<subject>` | sorted set or counter | engines | a minute; counters two windows |
| `dialog.subjects` | hash, fields per engine | engines | an hour after the last report |
| `dialog.control` | pub/sub channel | engines | nothing stored |
| `dialog.incarnation` | hash of one field | engines | permanent |
| `events.ltm`, `events.analytics`, `events.audit` | streams, about 100,000 entries | engine (relay) | permanent |
"""

from dataclasses import dataclass

GROUP = "plugins-workers"
"""The one consumer group of `events.plugins`, and of the streams of pools."""
ROUTED = ("events.ltm", "events.analytics", "events.audit")
"""The streams, beside `events.plugins`, that outbox routes may name."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Names under an optional prefix.

    On Redis Cluster the scripts touch several keys at once: give a prefix with a hash tag (`{callstream}:`), so that
    all of them live in one slot.
    """

    prefix: str = ""

    @property
    def requests(self) -> str:
        """The stream of tool call requests. Never trimmed by length, which would drop unfinished work."""
        return f"{self.prefix}events.plugins"

    @property
    def dead(self) -> str:
        """The dead letters: requests that could not be handled, with the reason."""
        return f"{self.prefix}events.plugins.dead"

    def call(self, correlation_id: str) -> str:
        """The ledger entry of one call."""
        return f"{self.prefix}plugins.calls:{correlation_id}"

    def response(self, correlation_id: str) -> str:
        """The response channel of one call: its progress, then exactly one terminal reply."""
        return f"{self.prefix}rpc.plugins.responses:{correlation_id}"

    def mailbox(self, engine_id: str) -> str:
        """The mailbox of one engine: notifications of replies to its calls."""
        return f"{self.prefix}rpc.plugins.mailbox:{engine_id}"

    @property
    def workers(self) -> str:
        """Which worker has reported at which server of Redis: see `ledger/workers.lua`."""
        return f"{self.prefix}rpc.plugins.workers"

    @property
    def pools(self) -> str:
        """Which servers each worker has, and in which pools it is: see `pools.py`."""
        return f"{self.prefix}rpc.plugins.pools"

    def requests_of(self, pool: str) -> str:
        """The stream of requests that only the workers of a pool read; `events.plugins` for the pool of all ('')."""
        return f"{self.prefix}rpc.plugins.requests:{pool}" if pool else self.requests

    def session(self, owner: str) -> str:
        """Which workers keep the state of MCP servers for a subject or a conversation: see `sessions.py`."""
        return f"{self.prefix}rpc.plugins.sessions:{owner}"

    @property
    def held(self) -> str:
        """The calls that workers keep open while people are asked: see `held.py`."""
        return f"{self.prefix}rpc.plugins.held"

    @property
    def control(self) -> str:
        """Pub/sub: cancel requests, deleted owners of sessions, catalog changes. A lost message costs latency only."""
        return f"{self.prefix}plugins.control"

    @property
    def catalog(self) -> str:
        """The set of MCP servers that have a catalog entry."""
        return f"{self.prefix}plugins.catalog"

    def catalog_of(self, server: str) -> str:
        """What one MCP server offers, with a heartbeat field per worker."""
        return f"{self.prefix}plugins.catalog:{server}"

    def pins_of(self, server: str) -> str:
        """The tools of a trusted server that are accepted, and those that are held back."""
        return f"{self.prefix}plugins.catalog.pins:{server}"

    def watched_of(self, server: str) -> str:
        """The resources of one MCP server whose updates are wanted: see `updates.py`."""
        return f"{self.prefix}plugins.catalog.watched:{server}"

    def turn(self, turn_id: str) -> str:
        """The user-visible log of one turn."""
        return f"{self.prefix}dialog.turns:{turn_id}"

    def limit(self, kind: str, subject: str) -> str:
        """What one subject consumes of a kind: `turns`, `streams`, `requests`, `tokens`."""
        return f"{self.prefix}dialog.limits:{kind}:{subject}"

    @property
    def subjects(self) -> str:
        """What subjects use, as each engine has counted it, for operators."""
        return f"{self.prefix}dialog.subjects"

    @property
    def engines(self) -> str:
        """Pub/sub among engines: a turn is to be stopped, a call was approved or refused, a session is free. A lost
        message costs a second."""
        return f"{self.prefix}dialog.control"

    @property
    def incarnation(self) -> str:
        """The id of what Redis holds: a flush removes it."""
        return f"{self.prefix}dialog.incarnation"

    def route(self, stream: str) -> str:
        """A stream named by an outbox route, such as `events.ltm`."""
        return f"{self.prefix}{stream}"

    @property
    def permanent(self) -> frozenset[str]:
        """The keys without a TTL, beside those of `pins_of` and `requests_of`. Every other key has one."""
        routes = (self.route(stream) for stream in ROUTED)
        return frozenset({self.requests, self.dead, self.catalog, self.workers, self.pools, self.incarnation, *routes})
