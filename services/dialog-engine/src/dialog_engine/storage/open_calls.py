"""What of a turn is open, for the engine that runs it."""

from dialog_engine.chat.ports import OpenCalls
from dialog_engine.model import Turn
from dialog_engine.storage.approvals import asked_of
from dialog_engine.storage.calls import requested_calls
from dialog_engine.storage.fence import fence_look
from dialog_engine.storage.questions import open_in
from dialog_engine.storage.store import Store, StoreTransaction


class SqlOpenCalls:
    """The open calls of the turns that this engine runs."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def open_calls(self, turn: Turn) -> OpenCalls:
        """See `History.open_calls`."""

        def unit(tx: StoreTransaction) -> OpenCalls:
            # In the order of the turn's writes: a round that is being committed when the user stops the turn is seen,
            # and a call that is approved meanwhile is either still asked about or requested.
            fence_look(tx, turn)
            return OpenCalls(requested_calls(tx, turn), asked_of(tx, turn.turn_id), open_in(tx, turn.turn_id))

        return await self._store.write(unit)
