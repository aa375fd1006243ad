"""The hash chain of the audit: a seal covers the events after those of the seal before, and its hash also covers that
seal (ADR 0064).

On PostgreSQL an event gets its number before its transaction is committed, so one can appear after others with higher
numbers. A pass therefore seals only what an earlier pass has seen, once every transaction that was open then has ended:
nothing with such a number can appear any more.
"""

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import takewhile
from typing import Any

import msgspec

from callstream_runtime.outage_log import OutageLog
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.storage.audit import COLUMNS
from dialog_engine.storage.database import Database, Row, Transaction

log = logging.getLogger(__name__)

EVENT: tuple[str, ...] = ("seq", "at", *COLUMNS)
"""The columns of an event, in the order in which they are hashed."""
SEAL_SECONDS = 1.0
SEALED_AT_ONCE = 500
HEAD_SECONDS = 3_600.0
"""How often the head of the chain is logged, so that it is kept where the store's owner does not write."""
PRUNED_TO = "audit_pruned_to"
"""The row of `meta` with the number of the last event that the retention may have deleted."""
PRUNED_AT_ONCE = 1_000
PRUNE_SECONDS = 3_600.0

LAST_SEAL = "SELECT number, at, last_seq, hash FROM audit_seals ORDER BY number DESC LIMIT 1"
_SEE = (
    "SELECT (SELECT max(seq) FROM audit) AS last_seq, number FROM new_transaction"
    " WHERE EXISTS (SELECT 1 FROM audit WHERE seq > $1)"
)
_MARK = (
    "INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
    " WHERE CAST(meta.value AS bigint) < CAST(excluded.value AS bigint)"
)


@dataclass(frozen=True, slots=True)
class Seal:
    """A seal, which covers the events after those of the seal before, up to `last_seq`. `at`: Unix milliseconds."""

    number: int = 0
    at: int = 0
    last_seq: int = 0
    hash: str = ""


def next_seal(key: bytes, before: Seal, at: int, last_seq: int, events: Sequence[Sequence[Any]]) -> Seal:
    """The seal that follows `before`. Its hash is an HMAC-SHA256, so that who only writes the store cannot make one
    where `key` is encrypted."""
    number = before.number + 1
    content = msgspec.json.encode((number, at, last_seq, before.hash, events))
    return Seal(number, at, last_seq, hmac.digest(key, content, hashlib.sha256).hex())


class AuditChain:
    """Seals events, and deletes those that are older than their retention. Any number of engines share one chain."""

    def __init__(
        self, database: Database, key: bytes, sealed_at_once: int = SEALED_AT_ONCE, pruned_at_once: int = PRUNED_AT_ONCE
    ) -> None:
        """`key` is that of the digests: see `read_digest_key`. The others are how many events a transaction takes."""
        self._sealed_at_once, self._pruned_at_once = sealed_at_once, pruned_at_once
        self._database = database
        self._key = key
        self._seen: Row | None = None
        """The highest number of an event that was to be sealed, and a transaction that began after it was seen."""
        self._sealing, self._pruning = (OutageLog(log, f"the {what} of the audit") for what in ("chain", "retention"))

    async def run(self) -> None:
        """Seal every SEAL_SECONDS, until cancelled."""
        logged, next_log = Seal(), 0.0
        while True:
            try:
                head = await self.seal()
                self._sealing.worked()
            except StorageUnavailableError as error:
                self._seen = None  # another server may answer next, whose transactions have other numbers
                self._sealing.failed(error)
            else:
                now = asyncio.get_running_loop().time()
                if head != logged and now >= next_log:
                    log.info("the head of the audit is %d:%s, up to event %d", head.number, head.hash, head.last_seq)
                    logged, next_log = head, now + HEAD_SECONDS
            await asyncio.sleep(SEAL_SECONDS)

    async def seal(self) -> Seal:
        """Seal the events that an earlier pass has seen and that are certainly complete. Returns the head of the chain.

        Raises:
            StorageUnavailableError: the store cannot be read or written now.
        """
        head = await self._head()
        if self._seen is not None:
            [transactions] = await self._database.read("SELECT oldest FROM open_transactions")
            if transactions.oldest < self._seen.number:
                return head
            head = await self._seal_to(self._seen.last_seq)
        self._seen = next(iter(await self._database.read(_SEE, head.last_seq)), None)
        return head

    async def _seal_to(self, last_seq: int) -> Seal:
        while True:
            head = await self._head()
            events = await self._database.read(
                f"SELECT {', '.join(EVENT)}, now_ms() AS now FROM audit WHERE seq > $1 AND seq <= $2"
                " ORDER BY seq LIMIT $3",
                head.last_seq,
                last_seq,
                self._sealed_at_once,
            )
            if not events:
                return head
            last = events[-1]
            following = next_seal(self._key, head, last.now, last.seq, [row[:-1] for row in events])
            await self._database.write(lambda tx, seal=following: _add(tx, seal))

    async def _head(self) -> Seal:
        rows = await self._database.read(LAST_SEAL)
        return Seal(**rows[0].by_name()) if rows else Seal()

    async def unsealed_ms(self) -> int:
        """For how many milliseconds the oldest event has waited for its seal.

        Raises:
            StorageUnavailableError: the store cannot be read now.
        """
        waiting = await self._database.read(
            "SELECT now_ms() - at AS age FROM audit WHERE seq > $1 ORDER BY seq LIMIT 1", (await self._head()).last_seq
        )
        return max(0, waiting[0].age) if waiting else 0

    async def run_retention(self, retention_days: int) -> None:
        """Delete what is older, at the start and then every hour, until cancelled."""
        while True:
            try:
                while await self.prune(retention_days * 86_400_000):
                    pass
                self._pruning.worked()
            except StorageUnavailableError as error:
                self._pruning.failed(error)
            await asyncio.sleep(PRUNE_SECONDS)

    async def prune(self, retention_ms: int) -> bool:
        """Delete the oldest seals whose events are all older than this, with these: `pruned_at_once` at most.

        The last of these seals is kept without its events, as the anchor of the chain. Returns whether any event was
        deleted.

        Raises:
            StorageUnavailableError: the store cannot be read or written now.
        """
        count = self._pruned_at_once
        oldest = await self._database.read("SELECT seq, at, now_ms() AS now FROM audit ORDER BY seq LIMIT $1", count)
        old = [event.seq for event in takewhile(lambda event: event.at < event.now - retention_ms, oldest)]
        return bool(old) and await self._database.write(lambda tx: _prune(tx, old[-1], count))


def _add(tx: Transaction, seal: Seal) -> None:
    """Add the seal, unless another engine was faster."""
    tx.execute(
        "INSERT INTO audit_seals (number, at, last_seq, hash) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
        *astuple(seal),
    )


def _prune(tx: Transaction, last_seq: int, count: int) -> bool:
    [oldest] = tx.execute(
        "SELECT max(number) AS anchor, max(last_seq) AS pruned_to FROM"
        " (SELECT number, last_seq FROM audit_seals ORDER BY number LIMIT $1)"
        " AS oldest WHERE last_seq <= $2",
        count + 1,
        last_seq,
    )
    if oldest.anchor is None:
        return False
    tx.execute(_MARK, PRUNED_TO, str(oldest.pruned_to))
    tx.execute("DELETE FROM audit_seals WHERE number < $1", oldest.anchor)
    return tx.change("DELETE FROM audit WHERE seq <= $1", oldest.pruned_to) > 0
