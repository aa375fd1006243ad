"""Sessions, messages and turns as the model and users read them. Nothing here reads a whole session."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import msgspec

from dialog_engine.chat.archive import (
    Archive,
    Asked,
    CallRecord,
    MadeCall,
    MessageRecord,
    Page,
    Transcript,
    TurnRecord,
)
from dialog_engine.chat.ports import History, OpenCalls
from dialog_engine.errors import SessionNotFoundError, TurnNotFoundError
from dialog_engine.model import NOTHING_BROUGHT, MediaInStore, MediaOfUser, ToolCall, Turn, TurnFailed
from dialog_engine.storage import token_counts
from dialog_engine.storage.branches import LEAF, PARENT, PATH, PATH_BEFORE, PREVIOUS
from dialog_engine.storage.brought import brought_of, image_of
from dialog_engine.storage.database import Row, placeholders
from dialog_engine.storage.media import StoredMedia
from dialog_engine.storage.open_calls import SqlOpenCalls
from dialog_engine.storage.questions import rounds_of
from dialog_engine.storage.sessions import SESSION, session_record
from dialog_engine.storage.store import SealedDatabase
from dialog_engine.storage.waiting import waiting_in
from dialog_engine.tool_calls.ports import OWN_SERVER
from dialog_engine.tool_calls.questions.values import AskedRound
from dialog_engine.tool_calls.results.texts import whole_of
from dialog_engine.tool_calls.values import Approval, Decision, Question, WholeResult
from plugins_contract.outcomes import MediaBlock, ToolOutcome

PAGE_BYTES = 1_000_000
"""A page of a transcript ends with the message that reaches this many bytes."""
LARGE = 256 * 1024
"""Bytes of an outcome that is read by itself, because it may have media that are not split off."""
_CALL = (
    "c.tool_call_id, c.correlation_id, c.name, c.arguments, c.tool, c.extra, c.server, c.tool_title, c.asked,"
    f" c.outcome IS NOT NULL AS ended, CASE WHEN length(c.outcome) <= {LARGE} THEN c.outcome END AS outcome,"
    " a.question, a.decision"
)
_MESSAGES = (
    f"SELECT m.number, m.turn_id, m.role, m.content, m.interrupted, m.created_at, m.reasoning, {PATH_BEFORE} AS before,"
    f" b.brought, {_CALL} FROM {{}} JOIN turns t ON t.turn_id = m.turn_id"
    " LEFT JOIN turn_inputs b ON b.turn_id = m.turn_id AND m.role = 'user'"
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
    "SELECT {}, CAST($3 AS bigint), CAST($4 AS bigint) UNION ALL SELECT {}, page.room"
    " - (SELECT max(length(content) + length(reasoning)) FROM messages WHERE session_id = $1 AND number = page.number)"
    f" - coalesce((SELECT sum({_CALL_BYTES} + length(c.arguments) + CASE WHEN length(c.outcome) <= {LARGE}"
    " THEN length(c.outcome) ELSE 0 END) FROM messages m"
    " JOIN tool_calls c ON c.message_id = m.message_id WHERE m.session_id = $1 AND m.number = page.number), 0)"
    " - coalesce((SELECT length(b.brought) FROM messages m JOIN turn_inputs b ON b.turn_id = m.turn_id"
    " WHERE m.session_id = $1 AND m.number = page.number AND m.role = 'user'), 0),"
    " page.places - 1 FROM page WHERE page.number IS NOT NULL AND page.room > 0 AND page.places > 1) "
)
_IN_PAGE = _MESSAGES.format(
    "page CROSS JOIN messages m", "m.session_id = $1 AND m.number = page.number AND page.room > 0"
)
_NEXT = "(SELECT min(number) FROM messages WHERE session_id = $1 AND number > {})"
_STEP_BACK = PREVIOUS.format("page.number")
_NEWER = _PAGE.format(_NEXT.format("$2"), _NEXT.format("page.number")) + _IN_PAGE
_OLDER = _PAGE.format(PREVIOUS.format("$2"), _STEP_BACK) + _IN_PAGE
_NEWEST = _PAGE.format("(SELECT max(number) FROM messages WHERE turn_id = $2)", _STEP_BACK) + _IN_PAGE
# Of several calls with one id those that wait for approval first, then the newest.
_ASKED = (
    f"SELECT {_CALL} FROM tool_calls c JOIN approvals a ON a.correlation_id = c.correlation_id"
    " WHERE c.turn_id = $1 AND (c.correlation_id = $2 OR c.tool_call_id = $2) ORDER BY c.correlation_id = $2 DESC,"
    " c.outcome IS NULL AND a.decision IS NULL DESC, c.message_id DESC, c.ordinal DESC LIMIT 2"
)
_TURN = (
    f"SELECT turn_id, s.session_id, status, reason, {token_counts.COLUMNS}, ttft_ms, error_code,"
    " error_message, t.created_at, finished_at, t.model,"
    " (SELECT count(*) FROM tool_calls c WHERE c.turn_id = t.turn_id) AS tool_calls, credential, left_out,"
    f" {PARENT} AS parent, t.owner, t.epoch FROM turns t JOIN sessions s USING (session_id)"
)
_CHILDREN = (
    "SELECT parent_turn_id, turn_id FROM turns WHERE session_id = $1 AND parent_turn_id IN ({})"
    " ORDER BY created_at, turn_id"
)
_ASKED_IN = (
    f"SELECT m.turn_id, m.role, m.content, {PARENT} AS parent, b.brought FROM turns t JOIN sessions s"
    " USING (session_id) JOIN messages m ON m.turn_id = t.turn_id LEFT JOIN turn_inputs b ON b.turn_id = t.turn_id"
    " WHERE t.turn_id = $1 AND t.session_id = $2 AND s.subject = $3"
    " ORDER BY m.number LIMIT 1"
)
_MADE = (
    PATH.format(f"(SELECT {LEAF} FROM sessions s WHERE s.session_id = $1)", "$2")
    + f"SELECT c.turn_id, c.execution_class, {_CALL} FROM (SELECT turn_id FROM path"
    " WHERE EXISTS (SELECT 1 FROM path WHERE turn_id = $2) UNION SELECT CAST($2 AS TEXT)) AS gone"
    " JOIN tool_calls c ON c.turn_id = gone.turn_id LEFT JOIN approvals a ON a.correlation_id = c.correlation_id"
    f" WHERE coalesce(c.ran, 1) = 1 AND c.server <> '{OWN_SERVER}' AND c.execution_class <> 'repeatable'"
    " AND (c.execution_class <> '' OR c.outcome IS NOT NULL OR a.correlation_id IS NULL)"
    " ORDER BY c.message_id, c.ordinal LIMIT $3"
)


class SqlArchive(Archive, History):
    """Messages and turns, for the model and for users."""

    def __init__(self, store: SealedDatabase, open_calls: SqlOpenCalls) -> None:
        self._store = store
        self._open_calls = open_calls
        self._media = StoredMedia(store)

    async def transcript(
        self, subject: str, session_id: str, *, limit: int, before: int | None = None, after: int | None = None
    ) -> Transcript:
        found = await self._store.read(f"{SESSION} WHERE s.session_id = $1 AND s.subject = $2", session_id, subject)
        if not found:
            raise SessionNotFoundError(f"there is no session {session_id}")
        if after is None:
            leaf = found[0].leaf_turn_id
            page = (await self.page(session_id, leaf, before=before, limit=limit, size=PAGE_BYTES)).from_a_question()
        else:
            newer = await self._messages(await self._store.read(_NEWER, session_id, after, PAGE_BYTES, limit))
            page = Page(newer, more=bool(newer))
        ids = sorted({message.turn_id for message in page.messages})
        rows = await self._store.read(
            f"{_TURN} WHERE turn_id IN ({placeholders(1, len(ids))}) ORDER BY t.created_at, turn_id", *ids
        )
        turns = await self._with_siblings(session_id, [*map(_turn_record, rows)])
        session = session_record(found[0])
        waiting = await waiting_in(self._store, subject, session_id) if session.waiting else ()
        return Transcript(session, page, turns, waiting)

    async def _with_siblings(self, session_id: str, turns: Sequence[TurnRecord]) -> list[TurnRecord]:
        parents = sorted({each.parent_turn_id for each in turns})
        siblings = defaultdict[str, list[str]](list)
        query = _CHILDREN.format(placeholders(2, len(parents)))
        for row in await self._store.read(query, session_id, *parents):
            siblings[row.parent_turn_id].append(row.turn_id)
        return [replace(each, siblings=siblings[each.parent_turn_id] or [each.turn_id]) for each in turns]

    async def question(self, subject: str, session_id: str, turn_id: str) -> Asked:
        rows = await self._store.read(_ASKED_IN, turn_id, session_id, subject)
        if not rows:
            raise TurnNotFoundError(f"session {session_id} has no turn {turn_id}")
        brought = brought_of(rows[0])
        return Asked(rows[0].content, rows[0].parent, None if brought is NOTHING_BROUGHT else brought)

    async def made_calls(self, subject: str, turn_id: str, limit: int) -> Sequence[MadeCall]:
        turn = await self.turn(subject, turn_id)
        rows = await self._store.read(_MADE, turn.session_id, turn_id, limit)
        calls = zip(rows, await self._calls(rows), strict=True)
        return [MadeCall(row.turn_id, each.call, each.server, row.execution_class, each.outcome) for row, each in calls]

    async def turn(self, subject: str, turn_id: str) -> TurnRecord:
        rows = await self._store.read(f"{_TURN} WHERE turn_id = $1 AND subject = $2", turn_id, subject)
        if not rows:
            raise TurnNotFoundError(f"there is no turn {turn_id}")
        return _turn_record(rows[0])

    async def asked(self, turn_id: str, call_id: str) -> Sequence[CallRecord]:
        return await self._calls(await self._store.read(_ASKED, turn_id, call_id))

    async def outcome(self, subject: str, turn_id: str, correlation_id: str) -> ToolOutcome | None:
        await self.turn(subject, turn_id)
        rows = await self._store.read(f"{_OUTCOME} AND turn_id = $2", correlation_id, turn_id)
        outcome = _outcome(rows[0]) if rows else None
        if outcome and _holds_media(outcome):
            await self._media.split([correlation_id])
        return outcome

    async def media(self, subject: str, turn_id: str, correlation_id: str, number: int) -> MediaBlock | None:
        outcome = await self.outcome(subject, turn_id, correlation_id)
        if outcome is None or not 0 <= number < len(outcome.content):
            return None
        block = outcome.content[number]
        if not isinstance(block, MediaBlock) or block.data:
            return block if isinstance(block, MediaBlock) else None
        data = await self._media.fetch(correlation_id, number)
        return None if data is None else msgspec.structs.replace(block, data=data)

    async def image(self, turn_id: str, number: int) -> MediaBlock | None:
        return await image_of(self._store, turn_id, number)

    async def fetched(self, media: MediaInStore | MediaOfUser) -> MediaBlock:
        if isinstance(media, MediaOfUser):
            return await image_of(self._store, media.turn_id, media.number) or media
        data = await self._media.fetch(media.correlation_id, media.number)
        return MediaBlock(media.mime_type, data or "", media.uri)

    async def whole(self, subject: str, turn_id: str, correlation_id: str) -> WholeResult | None:
        outcome = await self.outcome(subject, turn_id, correlation_id)
        if outcome is None or not outcome.truncated:
            return outcome and whole_of(outcome)
        query = "SELECT correlation_id, whole FROM whole_results WHERE correlation_id = $1"
        rows = await self._store.read(query, correlation_id)
        return msgspec.json.decode(rows[0].whole, type=WholeResult) if rows else None

    async def page(self, session_id: str, turn_id: str, *, before: int | None, limit: int, size: int) -> Page:
        if before is None:
            rows = await self._store.read(_NEWEST, session_id, turn_id, size, limit)
        else:
            rows = await self._store.read(_OLDER, session_id, before, size, limit)
        left = rows[0].before if rows else 0
        return Page(await self._messages(rows), more=left > 0, before=left)

    async def turn_messages(self, turn_id: str) -> Sequence[MessageRecord]:
        return await self._messages(await self._store.read(_OF_TURN, turn_id))

    async def open_calls(self, turn: Turn) -> OpenCalls:
        return await self._open_calls.open_calls(turn)

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
                    NOTHING_BROUGHT if row.brought is None else brought_of(row),
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
            rounds = await rounds_of(self._store, row.correlation_id) if row.asked else ()
            calls.append(_call(row, outcome, rounds))
        inline = [each.call.correlation_id for each in calls if each.outcome and _holds_media(each.outcome)]
        if inline:
            await self._media.split(inline)
        return calls


def _holds_media(outcome: ToolOutcome) -> bool:
    """Whether there is something to split."""
    return any(isinstance(block, MediaBlock) and block.data for block in outcome.content)


def _call(row: Row, outcome: ToolOutcome | None, rounds: Sequence[AskedRound]) -> CallRecord:
    extra, question = row.extra, row.question
    echoed = msgspec.json.decode(extra) if extra else None
    call = ToolCall(row.tool_call_id, row.correlation_id, row.name, row.arguments, echoed, row.tool)
    approval = _approval(question, row.decision) if question else None
    return CallRecord(call, row.server, outcome, approval, row.tool_title, rounds)


def _approval(question: bytes, decision: bytes | None) -> Approval:
    asked = Approval(msgspec.json.decode(question, type=Question))
    return replace(asked, decision=msgspec.json.decode(decision, type=Decision)) if decision else asked


def _outcome(row: Row) -> ToolOutcome | None:
    data = row.outcome
    return None if data is None else msgspec.json.decode(data, type=ToolOutcome)


def _turn_record(row: Row) -> TurnRecord:
    return TurnRecord(
        row.turn_id,
        row.session_id,
        row.status,
        row.reason,
        token_counts.usage_of(row),
        row.ttft_ms,
        TurnFailed(row.error_code, row.error_message or "") if row.error_code else None,
        row.created_at,
        row.finished_at,
        row.model,
        row.tool_calls,
        row.credential,
        row.left_out,
        row.parent,
        parked=row.status == "running" and not row.owner,
        epoch=row.epoch,
    )
