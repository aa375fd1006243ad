"""Large results that workers have sent, until they are committed with their calls."""

import asyncio
import contextlib

from dialog_engine.calls.large_results import LargeResultStore
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.storage.store import SealedDatabase, SealedTransaction

SWEEP_SECONDS = 600.0
UNUSED_MS = 3_600_000
"""How long a result is kept that no reply has named: its worker may have died before COMPLETE."""
_KEEP = (
    "INSERT INTO large_results (correlation_id, fence, digest, large_result, sent_at)"
    " SELECT correlation_id, $fence, $digest, $large_result, now_ms() FROM tool_calls"
    " WHERE correlation_id = $correlation_id AND outcome IS NULL"
    " ON CONFLICT (correlation_id) DO UPDATE SET fence = excluded.fence, digest = excluded.digest,"
    " large_result = excluded.large_result, sent_at = excluded.sent_at WHERE large_results.fence <= excluded.fence"
)
_SWEEP = (
    "DELETE FROM large_results WHERE sent_at < now_ms() - $1 AND correlation_id NOT IN"
    " (SELECT correlation_id FROM tool_calls WHERE outcome IS NULL)"
)


class SqlLargeResults(LargeResultStore):
    """The large results of calls without an outcome, of all engines that share the store."""

    def __init__(self, store: SealedDatabase) -> None:
        self._store = store

    async def keep(self, correlation_id: str, fence: int, digest: str, data: bytes) -> bool:
        def unit(tx: SealedTransaction) -> bool:
            return tx.change(_KEEP, correlation_id=correlation_id, fence=fence, digest=digest, large_result=data) > 0

        return await self._store.write(unit)

    async def fetch(self, correlation_id: str, digest: str) -> bytes | None:
        rows = await self._store.read(
            "SELECT correlation_id, large_result FROM large_results WHERE correlation_id = $1 AND digest = $2",
            correlation_id,
            digest,
        )
        return rows[0].large_result if rows else None

    async def run(self) -> None:
        """Delete what no reply has named. Runs until cancelled."""
        while True:
            with contextlib.suppress(StorageUnavailableError):
                await self.sweep()
            await asyncio.sleep(SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Delete those of calls that have an outcome, if they are older than UNUSED_MS."""
        await self._store.write(lambda tx: tx.change(_SWEEP, UNUSED_MS))


def forget_large(tx: SealedTransaction, correlation_id: str) -> None:
    """The result of the call is committed with it."""
    tx.change("DELETE FROM large_results WHERE correlation_id = $1", correlation_id)
