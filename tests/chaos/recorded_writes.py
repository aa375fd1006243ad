"""Notes which writes of adopted turns were refused, and which were taken although the turn was adopted."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dialog_engine.chat.outbox import TurnFinished
from dialog_engine.chat.ports import Ended
from dialog_engine.errors import TurnFencedError
from dialog_engine.model import Turn
from dialog_engine.storage import fence as rules
from dialog_engine.storage.store import StoreTransaction
from dialog_engine.storage.turns import SqlTurns
from tests.chaos.notes import Notes, What

OWNED_ELSEWHERE = "is owned by another engine in epoch"
"""What the turn logs report of an entry that Redis has refused: the turn's id comes with it."""


Take = Callable[[What, str, int], None]
"""Takes what became of a write of a turn, its id, and the epoch of the write."""


def watch_writes(take: Take) -> None:
    """Give `take` the writes that are fenced, and those that another engine's adoption of the turn came before.

    The database says which came first, within the transaction of the write: it has locked the row of the turn. Times
    would not do. The engine may read the answer to a write long after the server has ended its transaction.
    """
    fence, finish, fact = rules._fence, SqlTurns.finish, SqlTurns._fact  # pyright: ignore[reportPrivateUsage]

    def look(tx: StoreTransaction, turn: Turn) -> None:
        if tx.execute("SELECT 1 FROM turns WHERE turn_id = $1 AND epoch > $2", turn.turn_id, turn.epoch):
            take(What.TAKEN, turn.turn_id, turn.epoch)

    def fenced(tx: StoreTransaction, turn: Turn, *args: Any, **values: Any) -> None:
        try:
            fence(tx, turn, *args, **values)
        except TurnFencedError:
            take(What.FENCED, turn.turn_id, turn.epoch)
            raise
        look(tx, turn)

    async def finished(self: SqlTurns, turn: Turn, *args: Any) -> Ended:
        try:
            return await finish(self, turn, *args)
        except TurnFencedError:
            take(What.FENCED, turn.turn_id, turn.epoch)
            raise

    def ended(self: SqlTurns, tx: StoreTransaction, turn: Turn, *args: Any, **options: Any) -> TurnFinished:
        look(tx, turn)
        return fact(self, tx, turn, *args, **options)

    rules._fence = fenced  # pyright: ignore[reportPrivateUsage]
    SqlTurns.finish = finished  # pyright: ignore[reportAttributeAccessIssue]
    SqlTurns._fact = ended  # pyright: ignore[reportPrivateUsage]


class _RefusedLogs(logging.Handler):
    def __init__(self, take: Take) -> None:
        super().__init__(logging.WARNING)
        self._take = take

    def emit(self, record: logging.LogRecord) -> None:
        if OWNED_ELSEWHERE in record.getMessage() and isinstance(record.args, tuple):
            self._take(What.LOG_REFUSED, str(record.args[0]), 0)


def record(path: Path) -> None:
    """Note the writes of this process in the file `path`."""
    take = Notes(path).add
    watch_writes(take)
    logging.getLogger("dialog_engine.event_log.turn_logs").addHandler(_RefusedLogs(take))
