"""The database as the parts of an engine write and read it: each transaction carries what every write needs.

A unit of work names what it publishes and what the audit records. Its rows of the outbox are offered to the relay when
they are committed. Sealed columns are encrypted and decrypted on the way (`statements`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from dialog_engine.chat.audit import AuditEvent, AuditLog
from dialog_engine.chat.outbox import AUDIT_RECORDED, OutboxRelay, OutboxRow, ToolCallFinished, TurnFinished
from dialog_engine.chat.ports import Control
from dialog_engine.storage.audit import AuditRecorded, AuditTrail
from dialog_engine.storage.database import Database, Row, Transaction
from dialog_engine.storage.statements import opening_type, statement
from plugins_contract.encryption import Cipher, fact_owner, seal_request
from plugins_contract.keys import Keys
from plugins_contract.messages import ToolCallRequested, encode_request

T = TypeVar("T")
Event = ToolCallRequested | ToolCallFinished | TurnFinished | AuditRecorded
_PUBLISH = (
    "INSERT INTO outbox (owner, turn_id, event_type, event_id, payload, created_at, offered_to)"
    " VALUES ($1, $2, $3, $4, $5, now_ms(), $6)"
)

NEXT_REVISION = "(SELECT number FROM next_revision)"
_CHANGE_SESSION = (
    f"UPDATE sessions SET revision = {NEXT_REVISION}{{}} WHERE session_id = $session_id{{}}"
    " RETURNING chosen_tools, has_additions"
)


class SealedDatabase:
    """A database, whose sealed columns are encrypted and decrypted by `cipher`."""

    def __init__(self, database: Database, cipher: Cipher) -> None:
        self.database = database
        self.cipher = cipher
        self._types: dict[type[Row], type[Row]] = {}

    async def write(self, unit: "Callable[[SealedTransaction], T]") -> T:
        """Run `unit` in a transaction: see `Database.write`."""
        return await self.database.write(lambda tx: unit(SealedTransaction(tx, self)))

    async def read(self, sql: str, *numbered: Any, **named: Any) -> list[Row]:
        """The rows of a query: see `Database.read`. A sealed column may raise DecryptionError when it is read."""
        query = statement(sql)
        return self.opening(await self.database.read(query.sql, *numbered, *query.parameters(named, self.cipher)))

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


class EngineDatabase(SealedDatabase):
    """The database, as the engine `engine_id` of it uses it. `keys` has the names of mailboxes."""

    def __init__(self, database: Database, cipher: Cipher, engine_id: str, keys: Keys) -> None:
        super().__init__(database, cipher)
        self.engine_id = engine_id
        self.keys = keys


class StoreTransaction(SealedTransaction):
    """A transaction of an engine."""

    __slots__ = ("_store", "engine_id", "freed", "published", "sessions_changed", "trail")

    def __init__(self, tx: Transaction, store: "Store") -> None:
        super().__init__(tx, store)
        self._store = store
        self.engine_id = store.engine_id
        self.trail = store.trail
        self.published: list[OutboxRow] = []
        """What is offered to the relay of this engine after COMMIT."""
        self.freed: list[str] = []
        """The sessions that engines are informed of after COMMIT."""
        self.sessions_changed = False

    def publish(self, event: Event, *, owner: str = "", offered_to: str | None = None) -> None:
        """Put an event into the outbox, of which the engine `owner`, by default this one, publishes it.

        `offered_to`: of a tool call, see `OutboxRow`.
        """
        owner = owner or self.engine_id
        event_type, event_id, payload = self._store.encoded(event)
        seq = self._tx.insert("seq", _PUBLISH, owner, event.turn_id, event_type, event_id, payload, offered_to)
        if owner == self.engine_id:  # another engine polls the table
            row = OutboxRow(seq, event_type, event_id, payload, offered_to=offered_to, sent=False)
            self.published.append(row)

    def free(self, session_id: str) -> None:
        """Inform the engines after COMMIT that a message which has waited in this session does not wait any more."""
        self.freed.append(session_id)

    def change_session(self, session_id: str, also: str = "", only: str = "", **values: Any) -> list[Row]:
        """Give a session the next revision, of which readers are informed after COMMIT, and set what `also` says, under
        a further condition, from these `values`. Returns its row, and nothing when there is no such session."""
        self.sessions_changed = True
        return self.execute(_CHANGE_SESSION.format(also, only), session_id=session_id, **values)

    def mailbox_of(self, engine_id: str) -> str:
        """Where an engine gets its replies."""
        return self._store.keys.mailbox(engine_id)

    def audit(self, *events: AuditEvent) -> None:
        """Record events."""
        for fact in self.trail.add(self._tx, events):
            self.publish(fact)


class Store(EngineDatabase, AuditLog):
    """The database of one engine, whose `relay` publishes what it commits, and whose `control` wakes the others."""

    def __init__(self, engine: EngineDatabase, trail: AuditTrail, relay: OutboxRelay, control: Control) -> None:
        super().__init__(engine.database, engine.cipher, engine.engine_id, engine.keys)
        self.trail = trail
        self._relay = relay
        self._control = control

    async def write(self, unit: Callable[[StoreTransaction], T]) -> T:
        """Run `unit` in a transaction: see `Database.write`. What it publishes is offered to the relay after COMMIT."""

        def whole(raw: Transaction) -> tuple[T, StoreTransaction]:
            tx = StoreTransaction(raw, self)
            return unit(tx), tx

        result, _ = await self.database.write(whole, self._committed)
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

    def _committed(self, done: tuple[object, StoreTransaction]) -> None:
        _, tx = done
        if tx.published:
            self._relay.offer(tx.published)
        for session_id in tx.freed:
            self._control.free(session_id)
        if tx.sessions_changed:
            self._control.sessions_changed()


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
