"""The journal table, and the rows of a session as they are committed here."""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from dialog_engine.chat.copies import SessionCopy, SessionRow, encoded
from dialog_engine.chat.journal import Change, JournalEntry, JournalTable, SharedVersions, Step
from dialog_engine.errors import SessionNotFoundError
from dialog_engine.model import Turn
from dialog_engine.storage.copies import ended_rows, session_head, session_rows, turn_row
from dialog_engine.storage.database import Database, Transaction

OfferEntries = Callable[[Sequence[JournalEntry]], None]
"""Told of journal entries as soon as they are committed."""


def nobody(_: Sequence[JournalEntry]) -> None:
    """For an engine whose journal is not being shared: it stays in the file."""


def add_entry(tx: Transaction, turn: Turn, step: Step, rows: Iterable[SessionRow]) -> JournalEntry:
    """Note a change that `turn` made, as part of the transaction that makes it. Its beginning and its end carry
    what is known of the session too."""
    change = Change(subject=turn.subject)
    if step is not Step.GOES_ON:
        change = _head(tx, turn.session_id)
    change = msgspec.structs.replace(change, rows=_raw(rows))
    return _insert(tx, turn.session_id, turn.turn_id, turn.epoch, step, change)


def add_turn_entry(tx: Transaction, turn: Turn, step: Step, rows: Iterable[SessionRow] = ()) -> JournalEntry:
    """The same, with how the turn itself is doing."""
    return add_entry(tx, turn, step, [turn_row(tx, turn.turn_id), *rows])


def add_session_entry(tx: Transaction, session_id: str) -> JournalEntry:
    """Note that there is a new session."""
    return _insert(tx, session_id, "", 0, Step.GOES_ON, _head(tx, session_id))


def add_again_entry(tx: Transaction, session_id: str) -> JournalEntry:
    """Have all ended turns of a session shared, where that is missing."""
    change = msgspec.structs.replace(_head(tx, session_id), rows=_raw(ended_rows(tx, session_id)))
    return _insert(tx, session_id, "", 0, Step.AGAIN, change)


def change_of(copy: SessionCopy) -> Change:
    """A whole session as one change."""
    return Change(
        subject=copy.head.subject,
        title=copy.head.title,
        created_at=copy.head.created_at,
        updated_at=copy.head.updated_at,
        rows=_raw(copy.rows),
    )


class SqliteJournal(JournalTable):
    """The journal of this engine."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def waiting(self, after: int, limit: int) -> Sequence[JournalEntry]:
        rows = await self._database.read(
            "SELECT seq, session_id, turn_id, epoch, step, payload FROM journal WHERE seq > ? ORDER BY seq LIMIT ?",
            after,
            limit,
        )
        return [
            JournalEntry(seq, session_id, turn_id, epoch, Step(step), payload)
            for seq, session_id, turn_id, epoch, step, payload in rows
        ]

    async def shared(self, entries: Sequence[JournalEntry], versions: Sequence[SharedVersions]) -> None:
        def unit(tx: Transaction) -> None:
            tx.execute_many("DELETE FROM journal WHERE seq = ?", [(entry.seq,) for entry in entries])
            for each in versions:
                tx.execute(
                    "INSERT INTO copies (session_id, version) SELECT session_id, 0 FROM sessions WHERE session_id = ?"
                    " ON CONFLICT DO NOTHING",
                    each.session_id,
                )
                tx.execute(
                    "UPDATE copies SET version = ? WHERE session_id = ? AND version = ?",
                    each.last,
                    each.session_id,
                    each.before,
                )

        await self._database.write(unit)

    async def whole(self, session_id: str) -> Change | None:
        return await self._change(session_id, session_rows)

    async def ended(self, session_id: str) -> Change | None:
        return await self._change(session_id, ended_rows)

    async def idle_since(self, at: int, limit: int) -> Sequence[str]:
        rows = await self._database.read(
            "SELECT session_id FROM sessions s WHERE updated_at >= ? AND NOT EXISTS (SELECT 1 FROM turns t"
            " WHERE t.session_id = s.session_id AND t.status = 'running' AND t.owned)"
            " ORDER BY updated_at DESC LIMIT ?",
            at,
            limit,
        )
        return [session_id for (session_id,) in rows]

    async def _change(self, session_id: str, rows: Callable[[Transaction, str], list[SessionRow]]) -> Change | None:
        def unit(tx: Transaction) -> Change | None:
            head = session_head(tx, session_id)
            if head is None:
                return None
            return change_of(SessionCopy(head, 0, tuple(rows(tx, session_id))))

        # In the writer's queue, so that it is of one moment.
        return await self._database.write(unit)


def _head(tx: Transaction, session_id: str) -> Change:
    head = session_head(tx, session_id)
    if head is None:
        raise SessionNotFoundError(f"there is no session {session_id}")
    return Change(subject=head.subject, title=head.title, created_at=head.created_at, updated_at=head.updated_at)


def _raw(rows: Iterable[SessionRow]) -> dict[str, msgspec.Raw]:
    return {name: msgspec.Raw(data) for name, data in encoded(rows).items()}


def _insert(tx: Transaction, session_id: str, turn_id: str, epoch: int, step: Step, change: Change) -> JournalEntry:
    payload = msgspec.json.encode(change)
    [(seq,)] = tx.execute(
        "INSERT INTO journal (session_id, turn_id, epoch, step, payload) VALUES (?, ?, ?, ?, ?) RETURNING seq",
        session_id,
        turn_id,
        epoch,
        step,
        payload,
    )
    return JournalEntry(seq, session_id, turn_id, epoch, step, payload)
