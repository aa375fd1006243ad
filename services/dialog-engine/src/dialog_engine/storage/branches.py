"""The tree of the turns of a session, in SQL: what a turn follows, and which path is shown.

A turn has in `parent_turn_id` the turn that it follows, '' when it begins the conversation. NULL, which earlier
releases write, is the turn before it in the session, which then has no other child. The messages of a turn follow each
other in the session, because one turn runs at a time.

The leaf is the last turn of the path that is shown. `leaf_turn_id` has it as long as no turn has begun since; then, and
without one, it is the newest turn.
"""

from dialog_engine.errors import TooManyBranchesError, TurnNotFoundError
from dialog_engine.storage.store import StoreTransaction

MAX_SIBLINGS = 32
"""How many turns may follow the same one."""

NEWEST = "(SELECT n.turn_id FROM messages n WHERE n.session_id = {} ORDER BY n.number DESC LIMIT 1)"
"""The turn of a session that began last; NULL in an empty session."""
_NEWEST = NEWEST.format("s.session_id")
LEAF = f"CASE WHEN s.leaf_turn_id IS NOT NULL AND s.leaf_moved_after = {_NEWEST} THEN s.leaf_turn_id ELSE {_NEWEST} END"
"""The leaf of a row of `sessions s`; NULL in an empty session."""
PARENT = (
    "coalesce(t.parent_turn_id, (SELECT b.turn_id FROM messages b WHERE b.session_id = t.session_id AND b.number <"
    " (SELECT min(f.number) FROM messages f WHERE f.turn_id = t.turn_id) ORDER BY b.number DESC LIMIT 1), '')"
)
"""The parent of a row of `turns t`."""
PATH_BEFORE = (
    "coalesce(t.path_before + m.number - (SELECT min(f.number) FROM messages f WHERE f.turn_id = t.turn_id),"
    " m.number - 1)"
)
"""How many messages are before one of `messages m`, of the turn `t`, on its path."""
PREVIOUS = (
    "(SELECT CASE WHEN m.role <> 'user' OR t.parent_turn_id IS NULL"
    " THEN (SELECT max(b.number) FROM messages b WHERE b.session_id = m.session_id AND b.number < m.number)"
    " ELSE (SELECT max(b.number) FROM messages b WHERE b.turn_id = t.parent_turn_id) END"
    " FROM messages m JOIN turns t ON t.turn_id = m.turn_id WHERE m.session_id = $1 AND m.number = {})"
)
"""The number of the message before another one of the session `$1` on its path; NULL for the first one."""
PATH = (
    "WITH RECURSIVE path (turn_id) AS (SELECT CAST({} AS TEXT)"
    f" UNION ALL SELECT (SELECT {PARENT} FROM turns t WHERE t.turn_id = path.turn_id) FROM path"
    " WHERE path.turn_id NOT IN ('', {})) "
)
"""The turns of a path, from one up to another one, or to ''."""
BEGIN_AT = f" FROM (SELECT coalesce($9, {LEAF}, '') AS parent FROM sessions s WHERE s.session_id = $2) AS place"
"""The place of a turn that begins in the session `$2`, after `$9` or after the leaf."""
MESSAGES_TO = (
    "coalesce((SELECT coalesce(t.path_before + count(*), max(m.number)) FROM turns t JOIN messages m"
    " ON m.turn_id = t.turn_id WHERE t.turn_id = place.parent GROUP BY t.path_before), 0)"
)
"""How many messages the path of `place.parent` has."""
END_OF_BRANCH = (
    "WITH RECURSIVE down (turn_id, depth) AS ("
    "SELECT t.turn_id, 0 FROM turns t JOIN sessions s ON s.session_id = t.session_id"
    " WHERE t.turn_id = $1 AND s.session_id = $2 AND s.subject = $3 UNION ALL SELECT coalesce("
    "(SELECT c.turn_id FROM turns c WHERE c.session_id = $2 AND c.parent_turn_id = down.turn_id"
    " ORDER BY c.created_at DESC, c.turn_id DESC LIMIT 1),"
    " (SELECT c.turn_id FROM messages m JOIN turns c ON c.turn_id = m.turn_id WHERE m.session_id = $2 AND m.number ="
    " 1 + (SELECT max(l.number) FROM messages l WHERE l.turn_id = down.turn_id) AND c.parent_turn_id IS NULL)),"
    " down.depth + 1 FROM down WHERE down.turn_id IS NOT NULL)"
    " SELECT turn_id FROM down WHERE turn_id IS NOT NULL ORDER BY depth DESC LIMIT 1"
)
"""The last turn after `$1`, by the newest branch at each fork; `$1` itself when nothing follows."""
_OF_SESSION = "SELECT 1 FROM turns WHERE turn_id = $1 AND session_id = $2"
# A running turn is left as it is: its row is locked before that of its session (see `fence`), which is locked here. It
# is named when the message that is to be its sibling begins, as no turn runs then.
_NAME_PARENT = (
    "UPDATE turns SET parent_turn_id = $1 WHERE parent_turn_id IS NULL AND status <> 'running' AND turn_id ="
    " (SELECT turn_id FROM messages WHERE session_id = $2"
    " AND number = 1 + coalesce((SELECT max(number) FROM messages WHERE turn_id = $1), 0))"
)
_KEEP_LEAF = (
    "UPDATE sessions SET leaf_moved_after = $1 WHERE session_id = $2 AND leaf_turn_id <> $3"
    f" AND leaf_moved_after = {NEWEST.format('sessions.session_id')}"
)
_SIBLINGS = "SELECT count(*) AS siblings FROM turns WHERE session_id = $1 AND parent_turn_id = $2"


def open_branch(tx: StoreTransaction, session_id: str, parent: str, *, limited: bool = True) -> None:
    """See to it that another turn may follow `parent`: any number, or a limited one. The session is locked.

    Raises:
        TurnNotFoundError: the session has no such turn.
        TooManyBranchesError: MAX_SIBLINGS turns follow it.
    """
    if parent and not tx.execute(_OF_SESSION, parent, session_id):
        raise TurnNotFoundError(f"session {session_id} has no turn {parent}")
    tx.change(_NAME_PARENT, parent, session_id)
    [row] = tx.execute(_SIBLINGS, session_id, parent)
    if limited and row.siblings >= MAX_SIBLINGS:
        raise TooManyBranchesError(MAX_SIBLINGS)


def begin_behind(tx: StoreTransaction, session_id: str, turn_id: str, parent: str) -> None:
    """See to it that a turn whose message has waited may follow `parent`. The session is locked.

    It is shown, unless its user looks at another path by now.
    """
    tx.change(_NAME_PARENT, parent, session_id)
    tx.change(_KEEP_LEAF, turn_id, session_id, parent)
