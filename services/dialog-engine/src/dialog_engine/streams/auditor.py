"""Looks calls up in the ledger, and says of which Redis has lost something for certain."""

import asyncio
import logging
from collections.abc import Callable, Collection, Container, Sequence

from dialog_engine.chat.outbox import Outbox
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.streams.losses import Suspicions
from plugins_contract.ledger import EngineLedger
from plugins_contract.ledger.replies import Loss

log = logging.getLogger(__name__)


class Auditor:
    """Watches over the calls of one engine."""

    def __init__(self, ledger: EngineLedger, outbox: Outbox, unmarked: Callable[[], Collection[str]]) -> None:
        """`unmarked` tells the calls that are published though the table does not say so yet: the relay knows them."""
        self._ledger = ledger
        self._outbox = outbox
        self._unmarked = unmarked
        self._suspicions = Suspicions()

    @property
    def suspects(self) -> int:
        """How many calls look lost, and may yet be put back by the worker that runs them."""
        return len(self._suspicions)

    async def look(self, correlation_ids: Sequence[str]) -> list[tuple[str, bytes | Loss]]:
        """What has become of up to AUDIT_BATCH calls: the terminal reply, undecoded, or a loss that is certain.

        Raises what redis raises.
        """
        try:
            found = await self._ledger.audit(correlation_ids)
        except Exception:
            self._suspicions.clear()
            raise
        lost = [(correlation_id, each) for correlation_id, each in found if isinstance(each, Loss)]
        certain = self._suspicions.looked(correlation_ids, lost, asyncio.get_running_loop().time())
        ended = [(correlation_id, each) for correlation_id, each in found if not isinstance(each, Loss)]
        return [*ended, *await self._published(certain)]

    async def unpublished(self, correlation_ids: Sequence[str]) -> frozenset[str]:
        """Which of these calls were not published yet. When nobody knows, none: they may well have been."""
        # While a disk is full marks cannot be written: the table says "waiting" of calls that are long with a worker.
        unmarked = self._unmarked()
        try:
            waiting = frozenset(row.event_id for row in await self._outbox.calls(correlation_ids))
        except StorageUnavailableError as error:
            log.warning("whether calls were published cannot be read: %s", error)
            return frozenset()
        return waiting.difference(unmarked, self._unmarked())

    def keep(self, waited_for: Container[str]) -> None:
        """Suspect no others: nobody waits for them any more."""
        self._suspicions.keep(waited_for)

    async def _published(self, lost: Sequence[tuple[str, Loss]]) -> list[tuple[str, Loss]]:
        """Without the calls whose ledger is missing because the relay has not made it yet."""
        missing = [correlation_id for correlation_id, loss in lost if loss is Loss.MISSING]
        waiting = await self.unpublished(missing) if missing else frozenset[str]()
        for correlation_id in waiting:
            self._suspicions.forget(correlation_id)
        return [(correlation_id, loss) for correlation_id, loss in lost if correlation_id not in waiting]
