"""Turns that this engine's file has as running at other engines."""

from dialog_engine.chat.journal import JournalEntry
from dialog_engine.chat.orphans import TurnsElsewhere
from dialog_engine.errors import TurnLostError
from dialog_engine.model import DoneReason
from dialog_engine.storage.database import Database, Transaction, now_ms
from dialog_engine.storage.journal import OfferEntries, add_again_entry, nobody


class SqliteElsewhere(TurnsElsewhere):
    """Those in the file of this engine."""

    def __init__(self, database: Database, share: OfferEntries = nobody) -> None:
        self._database = database
        self._share = share

    async def running(self, after: str, limit: int) -> list[tuple[str, str]]:
        # In the order of the index one_running_turn, so that only what runs is read.
        return [
            (session_id, turn_id)
            for session_id, turn_id in await self._database.read(
                "SELECT session_id, turn_id FROM turns WHERE status = 'running' AND NOT owned AND session_id > ?"
                " ORDER BY session_id LIMIT ?",
                after,
                limit,
            )
        ]

    async def end(self, turn_id: str, error: TurnLostError) -> bool:
        def unit(tx: Transaction) -> JournalEntry | None:
            ended = tx.execute(
                "UPDATE turns SET status = 'failed', reason = ?, error_code = ?, error_message = ?, finished_at = ?"
                " WHERE turn_id = ? AND status = 'running' AND NOT owned RETURNING session_id",
                DoneReason.ERROR,
                error.code,
                str(error),
                now_ms(),
                turn_id,
            )
            if not ended:
                return None
            [(session_id,)] = ended
            # Whatever Redis comes to know of the session is taken in: its owner knows better, should it come back.
            tx.execute("UPDATE copies SET version = -1 WHERE session_id = ?", session_id)
            return add_again_entry(tx, session_id)

        entry = await self._database.write(unit)
        if entry is None:
            return False
        self._share([entry])
        return True
