"""The fence of a turn: only its owner writes it, in its current epoch.

Each write of a turn begins with an update of its row. A fenced engine matches no row and writes nothing. On PostgreSQL
the lock of the row also serialises the writes of one turn, those of its calls and questions among them. The lock of the
session comes after that of a running turn of it, in every transaction with both; then come messages that wait, and
what was used by day. Another order would deadlock.
"""

from typing import Any

from dialog_engine.errors import TurnFencedError
from dialog_engine.model import Turn
from dialog_engine.storage.store import StoreTransaction

_FENCE = "UPDATE turns SET {} WHERE turn_id = $turn_id AND owner = $owner AND epoch = $epoch AND status = 'running'"


def fence(tx: StoreTransaction, turn: Turn, also: str = "", **values: Any) -> None:
    """Let only the owner of a running turn go on. Resets the turn's crash count.

    `also` are further columns of the row to set, from these `values`.

    Raises:
        TurnFencedError: another engine owns the turn, or it has ended.
    """
    _fence(tx, turn, f"crashes = 0{also}", **values)


def fence_look(tx: StoreTransaction, turn: Turn) -> None:
    """Like `fence`, for a unit that reads the turn in the order of its writes: the crash count stays."""
    _fence(tx, turn, "crashes = crashes")


def _fence(tx: StoreTransaction, turn: Turn, columns: str, **values: Any) -> None:
    statement = _FENCE.format(columns)
    _check(tx.change(statement, turn_id=turn.turn_id, owner=tx.engine_id, epoch=turn.epoch, **values), turn)


def _check(changed: int, turn: Turn) -> None:
    if not changed:
        raise TurnFencedError(turn.turn_id)
