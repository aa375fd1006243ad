"""The fence of a turn: only its present owner, in its present epoch, may write it.

Each write of a turn begins by updating the turn's row where the owner and the epoch are the writer's. An engine that
was taken for dead finds no row, writes nothing and lets the turn go. On PostgreSQL the row's lock also puts the writes
of one turn into an order.
"""

from dialog_engine.errors import TurnFencedError
from dialog_engine.model import Turn
from dialog_engine.storage.database import Transaction

_OWNED = "turn_id = $1 AND owner = $2 AND epoch = $3 AND status = 'running' RETURNING 1"


def fence(tx: Transaction, turn: Turn, engine_id: str) -> None:
    """Let only the owner of a running turn go on. The turn came further: its crashes are forgotten.

    Raises:
        TurnFencedError: another engine runs the turn, or nobody does.
    """
    _check(tx.execute(f"UPDATE turns SET crashes = 0 WHERE {_OWNED}", turn.turn_id, engine_id, turn.epoch), turn)


def fence_look(tx: Transaction, turn: Turn, engine_id: str) -> None:
    """The same for a unit that only looks at the turn, in the order of its writes: it brings the turn no further."""
    _check(tx.execute(f"UPDATE turns SET crashes = crashes WHERE {_OWNED}", turn.turn_id, engine_id, turn.epoch), turn)


def _check(rows: list[tuple[object, ...]], turn: Turn) -> None:
    if not rows:
        raise TurnFencedError(turn.turn_id)
