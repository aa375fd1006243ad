"""`dialog-engine split-media`: moves the media of outcomes that an earlier release stored into rows of their own.

Engines do the same with whatever they read, so this is for what nobody reads, and for large stores before the upgrade's
first busy hour. It notes how far it is: after an interruption it continues there.
"""

from collections.abc import Sequence

from dialog_engine.operators.pages import PAGE, PAGE_BYTES
from dialog_engine.storage.database import Database, Row
from dialog_engine.storage.media import split_stored
from dialog_engine.storage.store import SealedDatabase, SealedTransaction
from plugins_contract.encryption import Cipher

MARK = "media_split_until"
"""The row of `meta` with the last call that was looked at, while the work is not complete."""
_NEXT = (
    "SELECT correlation_id, length(outcome) AS size FROM tool_calls WHERE correlation_id > $1 AND outcome IS NOT NULL"
    f" ORDER BY correlation_id LIMIT {PAGE}"
)
_NOTE = "INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value"


async def split_media(database: Database, cipher: Cipher, page_bytes: int = PAGE_BYTES) -> int:
    """Split every outcome that is not split, in transactions of about `page_bytes`. Engines that share the store may
    run meanwhile. Returns how many it split.

    Raises:
        StorageUnavailableError: the store cannot be used now.
        DecryptionError: a key is missing, or a value was changed. What was split so far stays.
    """
    store = SealedDatabase(database, cipher)
    found = await store.read("SELECT value FROM meta WHERE key = $1", MARK)
    last, count = found[0].value if found else "", 0
    while ids := _together(await store.read(_NEXT, last), page_bytes):

        def unit(tx: SealedTransaction, ids: Sequence[str] = ids) -> int:
            done = sum(split_stored(tx, each) for each in ids)
            tx.execute(_NOTE, MARK, ids[-1])
            return done

        count += await store.write(unit)
        last = ids[-1]
    await store.write(lambda tx: tx.execute("DELETE FROM meta WHERE key = $1", MARK))
    return count


def _together(rows: Sequence[Row], room: int) -> list[str]:
    """The ids of the first of these outcomes, as many as are split in one transaction."""
    ids: list[str] = []
    for row in rows:
        ids.append(row.correlation_id)
        room -= row.size
        if room <= 0:
            break
    return ids
