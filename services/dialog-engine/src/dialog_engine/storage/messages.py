"""Messages with their calls: pages of a session, one turn, one call. Nothing here reads a whole session."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import msgspec

from dialog_engine.chat.archive import CallRecord, MessageRecord, Page
from dialog_engine.model import ToolCall
from dialog_engine.storage.database import Row
from dialog_engine.storage.media import StoredMedia, holds_media
from dialog_engine.storage.store import SealedDatabase
from dialog_engine.tool_calls.values import Approval, Decision, Question
from plugins_contract.outcomes import ToolOutcome

LARGE = 256 * 1024
"""Bytes of an outcome that is read by itself, because it may have media that are not split off."""
_CALL = (
    "c.tool_call_id, c.correlation_id, c.name, c.arguments, c.tool, c.extra, c.server,"
    f" c.outcome IS NOT NULL AS ended, CASE WHEN length(c.outcome) <= {LARGE} THEN c.outcome END AS outcome,"
    " a.question, a.decision"
)
_MESSAGES = (
    f"SELECT m.number, m.turn_id, m.role, m.content, m.interrupted, m.created_at, m.reasoning, {_CALL} FROM {{}}"
    " LEFT JOIN tool_calls c ON c.message_id = m.message_id"
    " LEFT JOIN approvals a ON a.correlation_id = c.correlation_id"
    " WHERE {} ORDER BY m.number, m.message_id, c.ordinal"
)
_OF_TURN = _MESSAGES.format("messages m", "m.turn_id = $1")
_OUTCOME = "SELECT correlation_id, outcome FROM tool_calls WHERE correlation_id = $1"
_CALL_BYTES = 1_000
"""What a call counts in a page beside its texts."""
# A walk from message to message: what lies beyond the page is not even measured.
_PAGE = (
    "WITH RECURSIVE page (number, room, places) AS ("
    "SELECT {0}(number), CAST($3 AS bigint), CAST($4 AS bigint) FROM messages WHERE session_id = $1 AND number {1} $2"
    " UNION ALL SELECT (SELECT {0}(number) FROM messages WHERE session_id = $1 AND number {1} page.number), page.room"
    " - (SELECT max(length(content) + length(reasoning)) FROM messages WHERE session_id = $1 AND number = page.number)"
    f" - coalesce((SELECT sum({_CALL_BYTES} + length(c.arguments) + CASE WHEN length(c.outcome) <= {LARGE}"
    " THEN length(c.outcome) ELSE 0 END) FROM messages m"
    " JOIN tool_calls c ON c.message_id = m.message_id WHERE m.session_id = $1 AND m.number = page.number), 0),"
    " page.places - 1 FROM page WHERE page.number IS NOT NULL AND page.room > 0 AND page.places > 1) "
)
_IN_PAGE = _MESSAGES.format(
    "page CROSS JOIN messages m", "m.session_id = $1 AND m.number = page.number AND page.room > 0"
)
_OLDER, _NEWER = (_PAGE.format(*way) + _IN_PAGE for way in (("max", "<"), ("min", ">")))
_BEYOND = 2**62
# Of several calls with one id those that wait for approval first, then the newest.
_ASKED = (
    f"SELECT {_CALL} FROM tool_calls c JOIN approvals a ON a.correlation_id = c.correlation_id"
    " WHERE c.turn_id = $1 AND (c.correlation_id = $2 OR c.tool_call_id = $2) ORDER BY c.correlation_id = $2 DESC,"
    " c.outcome IS NULL AND a.decision IS NULL DESC, c.message_id DESC, c.ordinal DESC LIMIT 2"
)


class StoredMessages:
    """The messages of all sessions. Who may read them is checked by its users."""

    def __init__(self, store: SealedDatabase) -> None:
        self._store = store
        self._media = StoredMedia(store)

    async def older(self, session_id: str, *, before: int | None, limit: int, size: int) -> Page:
        """The messages before the number `before`, from the newest back: at most `limit`, and only as many as reach
        `size` bytes, but one at least."""
        rows = await self._store.read(_OLDER, session_id, before or _BEYOND, size, limit)
        messages = await self._messages(rows)
        return Page(messages, more=bool(messages) and messages[0].message_id > 1)

    async def newer(self, session_id: str, *, after: int, limit: int, size: int) -> Sequence[MessageRecord]:
        """Likewise those after the number `after`, from the oldest on."""
        return await self._messages(await self._store.read(_NEWER, session_id, after, size, limit))

    async def of_turn(self, turn_id: str) -> Sequence[MessageRecord]:
        """Every message of a turn, oldest first."""
        return await self._messages(await self._store.read(_OF_TURN, turn_id))

    async def asked(self, turn_id: str, call_id: str) -> Sequence[CallRecord]:
        """The calls of a turn with that id, the correlation id or the provider's, that need or needed approval: at most
        two, first the one with that correlation id, then those that wait, then the newest."""
        return await self._calls(await self._store.read(_ASKED, turn_id, call_id))

    async def outcome(self, turn_id: str, correlation_id: str) -> ToolOutcome | None:
        """The outcome of one call of the turn; None when there is none (yet)."""
        rows = await self._store.read(f"{_OUTCOME} AND turn_id = $2", correlation_id, turn_id)
        outcome = _outcome(rows[0]) if rows else None
        if outcome and holds_media(outcome):
            await self._media.split([correlation_id])
        return outcome

    async def _messages(self, rows: Sequence[Row]) -> list[MessageRecord]:
        records: list[MessageRecord] = []
        for number, group in groupby(rows, key=lambda row: row.number):
            of_message = [*group]
            row = of_message[0]
            calls = await self._calls([each for each in of_message if each.correlation_id is not None])
            records.append(
                MessageRecord(
                    number,
                    row.turn_id,
                    row.role,
                    row.content,
                    bool(row.interrupted),
                    row.created_at,
                    tuple(calls),
                    row.reasoning,
                )
            )
        return records

    async def _calls(self, rows: Sequence[Row]) -> list[CallRecord]:
        """Outcomes that still have media are split now; a large one is read after that, and alone."""
        calls: list[CallRecord] = []
        for row in rows:
            outcome = _outcome(row)
            if row.ended and outcome is None:
                await self._media.split([row.correlation_id])
                found = await self._store.read(_OUTCOME, row.correlation_id)
                outcome = _outcome(found[0]) if found else None
            calls.append(_call(row, outcome))
        inline = [each.call.correlation_id for each in calls if each.outcome and holds_media(each.outcome)]
        if inline:
            await self._media.split(inline)
        return calls


def _call(row: Row, outcome: ToolOutcome | None) -> CallRecord:
    extra, question = row.extra, row.question
    echoed = msgspec.json.decode(extra) if extra else None
    call = ToolCall(row.tool_call_id, row.correlation_id, row.name, row.arguments, echoed, row.tool)
    return CallRecord(call, row.server, outcome, _approval(question, row.decision) if question else None)


def _approval(question: bytes, decision: bytes | None) -> Approval:
    asked = Approval(msgspec.json.decode(question, type=Question))
    return replace(asked, decision=msgspec.json.decode(decision, type=Decision)) if decision else asked


def _outcome(row: Row) -> ToolOutcome | None:
    data = row.outcome
    return None if data is None else msgspec.json.decode(data, type=ToolOutcome)
