"""The sessions of subjects, as users list them."""

from collections.abc import Sequence

from dialog_engine.chat.archive import SessionPlace, SessionRecord, Sessions
from dialog_engine.chat.requests import SessionName, StartingRequest
from dialog_engine.errors import SentBeforeError, SessionNotFoundError, TurnNotFoundError
from dialog_engine.storage import branches
from dialog_engine.storage.database import Row
from dialog_engine.storage.requests import name_key, note_key
from dialog_engine.storage.store import Store, StoreTransaction
from dialog_engine.storage.turns import add_session
from dialog_engine.tool_calls.values import CLIENT_CLASS
from plugins_contract.choice import ToolChoice, decode_choice, encode_choice
from plugins_contract.messages import new_id

_OPEN = (
    "EXISTS (SELECT 1 FROM turns t JOIN tool_calls c USING (turn_id) JOIN {} o USING (correlation_id)"
    " WHERE t.session_id = s.session_id AND t.status = 'running' AND c.outcome IS NULL"
)
_UNDECIDED = f"{_OPEN.format('approvals')} AND o.decision IS NULL"
SESSION = (
    "SELECT s.session_id, s.title, s.created_at, s.updated_at, s.revision, s.chosen_tools,"
    f" {branches.LEAF} AS leaf_turn_id,"
    " (SELECT turn_id FROM turns t WHERE t.session_id = s.session_id AND t.status = 'running') AS running_turn_id,"
    f" {_UNDECIDED} AND c.execution_class <> '{CLIENT_CLASS}') AS awaits_approval,"
    f" {_UNDECIDED} AND c.execution_class = '{CLIENT_CLASS}') AS awaits_client,"
    f" {_OPEN.format('questions')} AND o.settled_at IS NULL) AS awaits_answer,"
    " (SELECT count(*) FROM waiting_messages w WHERE w.session_id = s.session_id AND w.withdrawn_at IS NULL)"
    " AS waiting, (SELECT held FROM waiting_messages w WHERE w.session_id = s.session_id AND w.withdrawn_at IS NULL"
    " ORDER BY place LIMIT 1) AS held FROM sessions s"
)
"""Sessions as `session_record` reads them."""
_NEWEST = SessionPlace(2**62)
_CHOOSE = ", chosen_tools = $chosen_tools"
_MOVE_LEAF = f", leaf_turn_id = $leaf_turn_id, leaf_moved_after = {branches.NEWEST.format('$session_id')}"


_NAMED = (
    "SELECT session_id FROM sessions WHERE session_id = $1 AND subject = $2"
    " UNION ALL SELECT session_id FROM session_names WHERE name_key = $3"
)


class SqlSessions(Sessions):
    """The sessions of all subjects."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def create(self, subject: str, request: StartingRequest = StartingRequest()) -> str:
        session_id = new_id()

        def unit(tx: StoreTransaction) -> None:
            note_key(tx, subject, request, session_id=session_id)
            add_session(tx, session_id, subject, "")

        try:
            await self._store.write(unit)
        except SentBeforeError as before:
            return before.session_id
        return session_id

    async def find_named(self, subject: str, name: SessionName) -> str | None:
        rows = await self._store.read(_NAMED, name.name, subject, name_key(self._store.trail, subject, name))
        return rows[0].session_id if rows else None

    async def list(self, subject: str, *, limit: int, before: SessionPlace | None) -> list[SessionRecord]:
        place = before or _NEWEST
        rows = await self._store.read(
            f"{SESSION} WHERE s.subject = $1 AND s.stateless = 0 AND (s.updated_at, s.session_id) < ($2, $3)"
            " ORDER BY s.updated_at DESC, s.session_id DESC LIMIT $4",
            subject,
            place.updated_at,
            place.session_id,
            limit,
        )
        return [*map(session_record, rows)]

    async def move_leaf(self, subject: str, session_id: str, turn_id: str) -> str:
        found = await self._store.read(branches.END_OF_BRANCH, turn_id, session_id, subject)
        if not found:
            raise TurnNotFoundError(f"session {session_id} has no turn {turn_id}")
        leaf: str = found[0].turn_id

        def unit(tx: StoreTransaction) -> None:
            if not tx.change_session(session_id, _MOVE_LEAF, leaf_turn_id=leaf):
                raise TurnNotFoundError(f"session {session_id} has no turn {turn_id}")

        await self._store.write(unit)
        return leaf

    async def choose_tools(self, subject: str, session_id: str, tools: ToolChoice | None) -> None:
        values = {"subject": subject, "chosen_tools": encode_choice(tools)}

        def unit(tx: StoreTransaction) -> None:
            if not tx.change_session(session_id, _CHOOSE, " AND subject = $subject", **values):
                raise SessionNotFoundError(f"there is no session {session_id}")

        await self._store.write(unit)

    async def ids(self, subject: str, *, after: str, limit: int) -> Sequence[str]:
        query = "SELECT session_id FROM sessions WHERE subject = $1 AND session_id > $2 ORDER BY session_id LIMIT $3"
        return [row.session_id for row in await self._store.read(query, subject, after, limit)]


def session_record(row: Row) -> SessionRecord:
    """A row of SESSION."""
    return SessionRecord(
        row.session_id,
        row.title,
        row.created_at,
        row.updated_at,
        row.running_turn_id,
        bool(row.awaits_approval),
        row.revision,
        row.leaf_turn_id,
        row.waiting,
        row.held or "",
        decode_choice(row.chosen_tools),
        bool(row.awaits_answer),
        bool(row.awaits_client),
    )
