"""What requests have brought, as the answers of some protocols say it again."""

import msgspec

from dialog_engine.chat.archive import AskedResponses
from dialog_engine.model import NOTHING_BROUGHT, Brought
from dialog_engine.storage.brought import brought_of
from dialog_engine.storage.store import SealedDatabase, SealedTransaction

_OF_TURN = "SELECT turn_id, brought FROM turn_inputs WHERE turn_id = $1"
_SET = "UPDATE turn_inputs SET brought = $brought WHERE turn_id = $turn_id"
_ALONE = "SELECT count(*) AS turns FROM turns t WHERE t.session_id = (SELECT session_id FROM turns WHERE turn_id = $1)"


class SqlAskedResponses(AskedResponses):
    """The requests of all turns."""

    def __init__(self, store: SealedDatabase) -> None:
        self._store = store

    async def brought(self, turn_id: str) -> Brought:
        rows = await self._store.read(_OF_TURN, turn_id)
        return brought_of(rows[0]) if rows else NOTHING_BROUGHT

    async def forget(self, turn_id: str) -> bool:
        def unit(tx: SealedTransaction) -> bool:
            for row in tx.execute(_OF_TURN, turn_id):
                brought = msgspec.json.decode(row.brought, type=Brought)
                tx.change(
                    _SET, turn_id=turn_id, brought=msgspec.json.encode(msgspec.structs.replace(brought, response=None))
                )
            return tx.execute(_ALONE, turn_id)[0].turns == 1

        return await self._store.write(unit)
