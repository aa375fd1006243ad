"""What requests have brought, as the answers of some protocols say it again."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from dialog_engine.chat.archive import AskedResponses
from dialog_engine.chat.audit import AuditAction, AuditEvent
from dialog_engine.model import NOTHING_BROUGHT, Brought, Leaving
from dialog_engine.storage.beginnings import leave_ms
from dialog_engine.storage.brought import brought_of, decoded
from dialog_engine.storage.store import SealedTransaction, Store, StoreTransaction

_OF_TURN = "SELECT turn_id, brought FROM turn_inputs WHERE turn_id = $1"
_LOCKED = "UPDATE turn_inputs SET session_id = session_id WHERE turn_id = $1 RETURNING turn_id, session_id, brought"
_LEAVE = "UPDATE turns SET leave_ms = $leave_ms WHERE turn_id = $turn_id AND status = 'running'"
_LEAVES = "SELECT leave_ms FROM turns WHERE turn_id = $1"
_SET = "UPDATE turn_inputs SET brought = $brought WHERE turn_id = $turn_id"
_ALONE = "SELECT count(*) AS turns FROM turns t WHERE t.session_id = (SELECT session_id FROM turns WHERE turn_id = $1)"
_UNANSWERED = (
    "SELECT 1 FROM approvals a JOIN tool_calls c ON c.correlation_id = a.correlation_id"
    " WHERE c.turn_id = $1 AND a.correlation_id = $2 AND a.decision IS NULL"
)


class SqlAskedResponses(AskedResponses):
    """The requests of all turns."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def brought(self, turn_id: str) -> Brought:
        rows = await self._store.read(_OF_TURN, turn_id)
        return brought_of(rows[0]) if rows else NOTHING_BROUGHT

    async def keep_answer(
        self, turn_id: str, correlation_id: str, said: Mapping[str, Any], leaving: Leaving | None
    ) -> Brought:
        asleep = leave_ms(leaving and replace(leaving, asleep=True))

        def unit(tx: StoreTransaction) -> None:
            if not tx.execute(_UNANSWERED, turn_id, correlation_id):
                return
            tx.change(_LEAVE, turn_id=turn_id, leave_ms=asleep)
            for row in tx.execute(_LOCKED, turn_id):
                response = decoded(row.brought).response
                if response is not None:
                    kept = {name: {**response.get(name, {}), correlation_id: value} for name, value in said.items()}
                    _set(tx, turn_id, row.brought, {**response, **kept})

        await self._store.write(unit)
        return await self.brought(turn_id)

    async def ends_when_left(self, turn_id: str) -> bool:
        return any(row.leave_ms is not None for row in await self._store.read(_LEAVES, turn_id))

    async def forget(self, subject: str, turn_id: str, *, key_id: str = "") -> bool:
        def unit(tx: StoreTransaction) -> bool:
            for row in tx.execute(_LOCKED, turn_id):
                _set(tx, turn_id, row.brought, None)
                ids = {"session_id": row.session_id, "turn_id": turn_id}
                tx.audit(AuditEvent(AuditAction.RESPONSE_DELETED, subject, key_id=key_id, **ids))
            return tx.execute(_ALONE, turn_id)[0].turns == 1

        return await self._store.write(unit)


def _set(tx: SealedTransaction, turn_id: str, brought: bytes, response: Mapping[str, Any] | None) -> None:
    changed = msgspec.structs.replace(decoded(brought), response=response)
    tx.change(_SET, turn_id=turn_id, brought=msgspec.json.encode(changed))
