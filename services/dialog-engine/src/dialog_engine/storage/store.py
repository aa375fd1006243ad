"""The database as the parts of an engine write and read it: each transaction carries what every write needs.

A unit of work names what it publishes and what the audit records. Its rows of the outbox are offered to the relay when
they are committed. Sealed columns are encrypted and decrypted on the way (`statements`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from dialog_engine.chat.audit import AuditEvent, AuditLog
from dialog_engine.chat.outbox import AUDIT_RECORDED, OutboxRelay, OutboxRow, ToolCallFinished, TurnFinished
from dialog_engine.storage.audit import AuditRecorded, AuditTrail
from dialog_engine.storage.database import Database, Row, Transaction
from dialog_engine.storage.outbox import add_event
from dialog_engine.storage.statements import opening_type, statement
from plugins_contract.encryption import Cipher, fact_owner, seal_request
from plugins_contract.messages import ToolCallRequested, encode_request

T = TypeVar("T")
Event = ToolCallRequested | ToolCallFinished | TurnFinished | AuditRecorded


class SealedDatabase:
    """A database, whose sealed columns are encrypted and decrypted by `cipher`."""

    def __init__(self, database: Database, cipher: Cipher) -> None:
        self._database = database
        self.cipher = cipher
        self._types: dict[type[Row], type[Row]] = {}

    async def write(self, unit: "Callable[[SealedTransaction], T]") -> T:
        """Run `unit` in a transaction: see `Database.write`."""
        return await self._database.write(lambda tx: unit(SealedTransaction(tx, self)))

    async def read(self, sql: str, *numbered: Any, **named: Any) -> list[Row]:
        """The rows of a query: see `Database.read`. A sealed column may raise DecryptionError when it is read."""
        query = statement(sql)
        return self.opening(await self._database.read(query.sql, *numbered, *query.parameters(named, self.cipher)))

    def opening(self, rows: list[Row]) -> list[Row]:
        """Rows of the driver, as rows whose sealed columns are decrypted when they are read."""
        if not rows:
            return rows
        plain = type(rows[0])
        if (kind := self._types.get(plain)) is None:
            kind = self._types[plain] = opening_type(plain, self.cipher)
        return rows if kind is plain else [kind(row) for row in rows]


class SealedTransaction:
    """A transaction on a `SealedDatabase`. Like a `Transaction`, with parameters by name as well."""

    __slots__ = ("_database", "_tx", "skip_locked")

    def __init__(self, tx: Transaction, database: SealedDatabase) -> None:
        self._tx = tx
        self._database = database
        self.skip_locked = tx.skip_locked

    def execute(self, sql: str, /, *numbered: Any, **named: Any) -> list[Row]:
        """Run one statement; returns its rows."""
        found, database = statement(sql), self._database
        if named:
            numbered = (*numbered, *found.parameters(named, database.cipher))
        rows = self._tx.execute(found.sql, *numbered)
        return database.opening(rows) if rows else rows

    def change(self, sql: str, /, *numbered: Any, **named: Any) -> int:
        """Run one INSERT, UPDATE or DELETE; returns how many rows it changed."""
        found = statement(sql)
        if named:
            numbered = (*numbered, *found.parameters(named, self._database.cipher))
        return self._tx.change(found.sql, *numbered)

    def execute_many(self, sql: str, rows: Sequence[Mapping[str, Any] | tuple[Any, ...]]) -> None:
        """Run one statement for each of `rows`, which have all its parameters, by name or in the order of numbers."""
        if not rows:
            return
        found, cipher = statement(sql), self._database.cipher
        bound = [row if isinstance(row, tuple) else found.parameters(row, cipher) for row in rows]
        self._tx.execute_many(found.sql, bound)


class StoreTransaction(SealedTransaction):
    """A transaction of an engine."""

    __slots__ = ("_store", "engine_id", "published", "trail")

    def __init__(self, tx: Transaction, store: "Store") -> None:
        super().__init__(tx, store)
        self._store = store
        self.engine_id = store.engine_id
        self.trail = store.trail
        self.published: list[OutboxRow] = []
        """What is offered to the relay of this engine after COMMIT."""

    def publish(self, event: Event, *, owner: str = "", offered_to: str | None = None) -> None:
        """Put an event into the outbox, of which the engine `owner`, by default this one, publishes it.

        `offered_to`: of a tool call, see `OutboxRow`.
        """
        owner = owner or self.engine_id
        row = add_event(self._tx, owner, event.turn_id, *self._store.encoded(event), offered_to)
        if owner == self.engine_id:  # another engine polls the table
            self.published.append(row)

    def audit(self, *events: AuditEvent) -> None:
        """Record events."""
        for fact in self.trail.add(self._tx, events):
            self.publish(fact)


class Store(SealedDatabase, AuditLog):
    """The database of one engine, whose `relay` publishes what it commits."""

    def __init__(
        self, database: Database, cipher: Cipher, engine_id: str, trail: AuditTrail, relay: OutboxRelay
    ) -> None:
        super().__init__(database, cipher)
        self.engine_id = engine_id
        self.trail = trail
        self._relay = relay

    async def write(self, unit: Callable[[StoreTransaction], T]) -> T:
        """Run `unit` in a transaction: see `Database.write`. What it publishes is offered to the relay after COMMIT."""

        def whole(raw: Transaction) -> tuple[T, list[OutboxRow]]:
            tx = StoreTransaction(raw, self)
            return unit(tx), tx.published

        result, _ = await self._database.write(whole, self._committed)
        return result

    async def record(self, event: AuditEvent) -> None:
        await self.write(lambda tx: tx.audit(event))

    def offers_to(self, requests: Sequence[ToolCallRequested]) -> Sequence[str]:
        """For `publish`, before the unit: see `OutboxRelay`."""
        return self._relay.offers_to(requests)

    def encoded(self, event: Event) -> tuple[str, str, bytes]:
        """The type, the id and the payload of a row of the outbox, with sealed texts."""
        match event:
            case ToolCallRequested():
                payload = encode_request(seal_request(event, self.cipher))
                return event.event_type, event.correlation_id, payload
            case ToolCallFinished():
                return event.event_type, event.correlation_id, msgspec.json.encode(event)
            case TurnFinished():
                return event.event_type, event.turn_id, msgspec.json.encode(_sealed(event, self.cipher))
            case AuditRecorded():
                return AUDIT_RECORDED, str(event.seq), msgspec.json.encode(event.fields)

    def _committed(self, done: tuple[object, list[OutboxRow]]) -> None:
        if done[1]:
            self._relay.offer(done[1])


def _sealed(fact: TurnFinished, cipher: Cipher) -> TurnFinished:
    if not (fact.user_message or fact.assistant_message):
        return fact
    texts = {
        name: cipher.seal_text(text, fact_owner(fact.turn_id, field))
        for name, field, text in (
            ("user_message", "userMessage", fact.user_message),
            ("assistant_message", "assistantMessage", fact.assistant_message),
        )
        if text
    }
    return msgspec.structs.replace(fact, **texts)
