"""The audit table: events are added by the transactions that they belong to. `audit_chain` seals and deletes them."""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec

from dialog_engine.chat.audit import AuditEvent
from dialog_engine.chat.outbox import AUDIT_RECORDED
from dialog_engine.storage.database import Database, Transaction
from dialog_engine.storage.statements import open_value, seal_value
from plugins_contract.encryption import Cipher

COLUMNS: tuple[str, ...] = (
    "action",
    "subject",
    "key_id",
    "session_id",
    "turn_id",
    "correlation_id",
    "server",
    "tool",
    "digest",
    "outcome",
)
_ADD = (
    f"INSERT INTO audit (at, {', '.join(COLUMNS)}) VALUES (now_ms(),"
    f" {', '.join(f'${number}' for number in range(1, len(COLUMNS) + 1))})"
)
NAME_MAX = 64
"""Characters of a tool's or a server's name that are kept."""
TEXT_MAX = 256
"""Characters of any other value that are kept."""
_LIMITS = tuple(NAME_MAX if column in ("server", "tool") else TEXT_MAX for column in COLUMNS)
_fields_of: Callable[[AuditEvent], tuple[str, ...]] = attrgetter(*COLUMNS)
DIGEST_KEY = "audit_digest_key"


@dataclass(frozen=True, slots=True)
class AuditRecorded:
    """An event as it is published."""

    seq: int
    turn_id: str
    fields: Mapping[str, str | int]


class AuditTrail:
    """Adds events to transactions. With `stream` each event is also published."""

    def __init__(self, digest_key: bytes, *, stream: bool = False) -> None:
        self._digest_key = digest_key
        self._stream = stream

    def add(self, tx: Transaction, events: Sequence[AuditEvent]) -> Sequence[AuditRecorded]:
        """Add events. Returns what is to be published of them."""
        if self._stream:
            return [_recorded(tx, event) for event in events]
        tx.execute_many(_ADD, [_values(event) for event in events])
        return []

    def digest(self, arguments: Mapping[str, Any]) -> str:
        """An HMAC-SHA256 of the arguments as JSON with sorted keys.

        A plain hash of short arguments can be reversed by trying all likely values, and would outlive an erasure. The
        key is random and stays in the store, so that exported events do not allow that.
        """
        canonical = msgspec.json.encode(arguments, order="deterministic")
        return hmac.digest(self._digest_key, canonical, hashlib.sha256).hex()

    def unknown(self, name: str) -> str:
        """What is recorded in place of a tool's name that a model has invented, which is a text: the same for the same
        name."""
        return f"unknown:{self.digest({'name': name})[:32]}"


async def read_digest_key(database: Database, cipher: Cipher) -> bytes:
    """The key of the digests, which is created with the first engine of this store. Raises DecryptionError."""

    def unit(tx: Transaction) -> str:
        new = seal_value(cipher, secrets.token_hex(32), "meta.value", DIGEST_KEY)
        tx.execute("INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT DO NOTHING", DIGEST_KEY, new)
        [row] = tx.execute("SELECT value FROM meta WHERE key = $1", DIGEST_KEY)
        return open_value(cipher, row.value, "meta.value", DIGEST_KEY)

    return bytes.fromhex(await database.write(unit))


def fitted(value: str, limit: int) -> str:
    """The value, or its beginning and a digest of the whole in as many characters as `limit` says."""
    return value if len(value) <= limit else f"{value[: limit - 17]}~{hashlib.sha256(value.encode()).hexdigest()[:16]}"


def _values(event: AuditEvent) -> tuple[str, ...]:
    return tuple(map(fitted, _fields_of(event), _LIMITS))


def _recorded(tx: Transaction, event: AuditEvent) -> AuditRecorded:
    values = _values(event)
    [row] = tx.execute(f"{_ADD} RETURNING seq, at", *values)
    head = {"eventType": AUDIT_RECORDED, "eventVersion": 1, "seq": row.seq, "at": row.at}
    sent = {_camel(name): value for name, value in zip(COLUMNS, values, strict=True) if value}
    return AuditRecorded(row.seq, event.turn_id, head | sent)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.title, rest))
