"""Branches that clients have left: beginnings of a conversation in a client's own words, which it has sent again
differently since (see `chat.resent`). They go after a time, unless they are shown; what a user has branched stays."""

from collections.abc import Iterator, Mapping, Sequence

from dialog_engine.chat.audit import AuditAction, AuditEvent
from dialog_engine.storage.branches import LEAF, NEWEST, PARENT
from dialog_engine.storage.brought import brought_of
from dialog_engine.storage.database import Row, placeholders
from dialog_engine.storage.store import StoreTransaction

FORKED = (
    "SELECT DISTINCT t.session_id FROM turn_inputs i JOIN turns t ON t.turn_id = i.turn_id"
    " WHERE t.parent_turn_id = '' AND t.session_id > $1 AND t.created_at < now_ms() - $2 AND EXISTS ("
    "SELECT 1 FROM turns o WHERE o.session_id = t.session_id AND o.parent_turn_id = '' AND o.turn_id <> t.turn_id)"
    " ORDER BY t.session_id LIMIT $3"
)
"""Sessions after `$1` in which a beginning with a client's words may be old, beside another one."""
_LOCK = "UPDATE sessions SET updated_at = updated_at WHERE session_id = $1 RETURNING subject, created_at"
_TURNS = (
    f"SELECT t.turn_id, t.status, {PARENT} AS parent, now_ms() - coalesce(t.finished_at, t.created_at) AS idle_ms"
    " FROM turns t WHERE t.session_id = $1"
)
_BEGINNINGS = (
    "SELECT i.turn_id, i.brought FROM turn_inputs i JOIN turns t ON t.turn_id = i.turn_id"
    " WHERE t.session_id = $1 AND t.parent_turn_id = ''"
)
_SHOWN = (
    f"SELECT {LEAF} AS turn_id FROM sessions s WHERE s.session_id = $1"
    f" UNION SELECT {NEWEST.format('$1')} UNION SELECT parent_turn_id FROM waiting_messages WHERE session_id = $1"
)


def delete_left(tx: StoreTransaction, session_id: str, idle_ms: int) -> Iterator[tuple[str, int, Sequence[str]]]:
    """Delete the branches of a session that were left for so long, while no turn runs there: the first turn of each,
    when the session was created in Unix milliseconds, and its turns, of which the calls are still there."""
    found = tx.execute(_LOCK, session_id)
    turns = tx.execute(_TURNS, session_id) if found else []
    if any(turn.status == "running" for turn in turns):
        return
    beginnings = _beginnings(turns)
    shown = {beginnings.get(row.turn_id) for row in tx.execute(_SHOWN, session_id)}
    for row in tx.execute(_BEGINNINGS, session_id) if found else []:
        branch = [turn for turn in turns if beginnings[turn.turn_id] == row.turn_id]
        if (
            row.turn_id in shown
            or all(each.id for each in brought_of(row).said)
            or min(turn.idle_ms for turn in branch) <= idle_ms
        ):
            continue
        ids = [turn.turn_id for turn in branch]
        yield row.turn_id, found[0].created_at, ids
        these = placeholders(1, len(ids))
        tx.execute(f"DELETE FROM turns WHERE turn_id IN ({these})", *ids)
        tx.execute(f"DELETE FROM turn_inputs WHERE turn_id IN ({these})", *ids)
        outcome = f"{len(ids)} turns that a client had left"
        tx.audit(AuditEvent(AuditAction.DATA_ERASED, found[0].subject, session_id=session_id, outcome=outcome))


def _beginnings(turns: Sequence[Row]) -> Mapping[str, str]:
    """The first turn of the path of each turn."""
    parents: dict[str, str] = {turn.turn_id: turn.parent for turn in turns}
    found: dict[str, str] = {}
    for turn_id in parents:
        path = [turn_id]
        while path[-1] not in found and (parent := parents[path[-1]]) in parents:
            path.append(parent)
        first = found.get(path[-1], path[-1])
        found.update(dict.fromkeys(path, first))
    return found
