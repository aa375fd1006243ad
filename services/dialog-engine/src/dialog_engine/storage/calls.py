"""Tool calls and their results: a round is committed with its outbox rows, a result with the deletion of its row."""

from collections.abc import Mapping, Sequence

import msgspec

from dialog_engine.chat.audit import AuditAction, AuditEvent
from dialog_engine.chat.outbox import (
    TOOL_CALL_FINISHED,
    OfferRows,
    OffersTo,
    OutboxRow,
    ToolCallFinished,
    not_yet,
)
from dialog_engine.model import AssistantMessage, ToolCall, Turn, Usage, timed
from dialog_engine.storage.audit import NAME_MAX, AuditTrail, fitted
from dialog_engine.storage.database import Database, Row, Transaction, fence, fence_look
from dialog_engine.storage.media import keep_media, split
from dialog_engine.storage.outbox import add_event
from dialog_engine.storage.sealed import open_data, open_text, owner
from dialog_engine.tool_calls.execution import OpenCall
from dialog_engine.tool_calls.exposure import gateway
from dialog_engine.tool_calls.ports import (
    NO_COST,
    NO_QUESTIONS,
    NO_SERVERS,
    CallStore,
    KeptResult,
    ResultStore,
)
from dialog_engine.tool_calls.results.shortening import whole_of
from dialog_engine.tool_calls.values import Question, WholeResult
from plugins_contract.encryption import CLEAR, Cipher, seal_request
from plugins_contract.errors import ErrorCode
from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED
from plugins_contract.messages import ToolCallRequested, UnsupportedEventError, decode_request, encode_request
from plugins_contract.outcomes import CallState, ToolOutcome

_ADD_ROUND = (
    ", rounds = rounds + 1, input_tokens = input_tokens + $4, output_tokens = output_tokens + $5,"
    " estimated = estimated | $6, model = coalesce($7, model)"
)
_ADD_CALL = (
    "INSERT INTO tool_calls (correlation_id, message_id, turn_id, ordinal, tool_call_id, name, server, arguments, tool,"
    " extra, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, now_ms())"
)
_OPEN = (
    "SELECT c.tool_call_id, c.correlation_id, c.name, c.arguments, c.tool, o.payload FROM tool_calls c"
    " JOIN outbox o ON o.event_type = $1 AND o.event_id = c.correlation_id"
    " WHERE c.turn_id = $2 AND c.outcome IS NULL ORDER BY c.message_id, c.ordinal"
)


def insert_message(
    tx: Transaction, cipher: Cipher, turn: Turn, role: str, message: AssistantMessage
) -> tuple[int, int]:
    """Add a message to the turn's session. Returns its id in the table, and its number in the session."""
    [(message_id, number)] = tx.execute(
        "INSERT INTO messages (session_id, turn_id, role, content, reasoning, interrupted, created_at, number)"
        " VALUES ($1, $2, $3, $4, $5, $6, now_ms(),"
        " 1 + coalesce((SELECT max(number) FROM messages WHERE session_id = $1), 0)) RETURNING message_id, number",
        turn.session_id,
        turn.turn_id,
        role,
        cipher.seal_text(message.content, owner("messages.content", turn.turn_id, role)),
        cipher.seal_text(message.reasoning, owner("messages.reasoning", turn.turn_id, role)),
        int(message.interrupted),
    )
    return message_id, number


class SqlCalls(CallStore):
    """The tool calls of the turns that this engine runs."""

    def __init__(
        self,
        database: Database,
        engine_id: str,
        offer: OfferRows,
        audit: AuditTrail,
        cipher: Cipher = CLEAR,
        *,
        offers_to: OffersTo = not_yet,
    ) -> None:
        self._database = database
        self._engine_id = engine_id
        self._offer = offer
        self._offers_to = offers_to
        self._audit = audit
        self._cipher = cipher

    async def add_round(
        self,
        turn: Turn,
        message: AssistantMessage,
        requests: Sequence[ToolCallRequested],
        answered: Mapping[str, ToolOutcome],
        questions: Mapping[str, Question] = NO_QUESTIONS,
        servers: Mapping[str, str] = NO_SERVERS,
        *,
        cost: Usage = NO_COST,
        model: str = "",
    ) -> int:
        seal, seal_text = self._cipher.seal, self._cipher.seal_text
        offered_to = self._offers_to(requests)
        of_call = {**servers, **{request.correlation_id: request.server for request in requests}}
        of_call |= {correlation_id: question.server for correlation_id, question in questions.items()}

        def unit(tx: Transaction) -> tuple[int, list[OutboxRow]]:
            spent = cost.input_tokens, cost.output_tokens, int(cost.estimated)
            fence(tx, turn, self._engine_id, _ADD_ROUND, *spent, model or None)
            message_id, number = insert_message(tx, self._cipher, turn, "assistant", message)
            tx.execute_many(
                _ADD_CALL,
                [
                    (
                        call.correlation_id,
                        message_id,
                        turn.turn_id,
                        ordinal,
                        call.tool_call_id,
                        call.name,
                        of_call.get(call.correlation_id, ""),
                        seal_text(call.arguments, owner("tool_calls.arguments", call.correlation_id)),
                        call.tool,
                        seal(msgspec.json.encode(call.extra), owner("tool_calls.extra", call.correlation_id))
                        if call.extra
                        else None,
                    )
                    for ordinal, call in enumerate(message.tool_calls)
                ],
            )
            tx.execute_many(
                "INSERT INTO approvals (correlation_id, question) VALUES ($1, $2)",
                [
                    (i, seal(msgspec.json.encode(question), owner("approvals.question", i)))
                    for i, question in questions.items()
                ],
            )
            rows = add_requests(tx, self._audit, self._cipher, self._engine_id, turn, requests, offered_to)
            for call in message.tool_calls:
                if outcome := answered.get(call.correlation_id):
                    rows += answer_call(tx, self._audit, self._cipher, self._engine_id, turn, call, outcome)
            return number, rows

        number, rows = await self._database.write(unit)
        self._offer(rows)
        return number

    async def add_result(
        self, turn: Turn, call: ToolCall, outcome: ToolOutcome, whole: WholeResult | None = None
    ) -> bool:
        def unit(tx: Transaction) -> list[OutboxRow]:
            fence(tx, turn, self._engine_id)
            rows = answer_call(tx, self._audit, self._cipher, self._engine_id, turn, call, outcome)
            if rows and whole is not None:
                keep_whole(tx, self._cipher, call.correlation_id, whole)
            return rows

        rows = await self._database.write(unit)
        self._offer(rows)
        return bool(rows)

    async def open_calls(self, turn: Turn) -> list[OpenCall]:
        """The committed calls of the turn that have no outcome, with their requests.

        A call whose request this release cannot read, because another release wrote it, is answered as unknown.
        """

        def unit(tx: Transaction) -> tuple[list[OpenCall], list[OutboxRow]]:
            # In the order of the turn's writes: a round that is being committed when the user stops the turn is seen.
            fence_look(tx, turn, self._engine_id)
            found: list[OpenCall] = []
            facts: list[OutboxRow] = []
            for *columns, payload in tx.execute(_OPEN, TOOL_CALL_REQUESTED, turn.turn_id):
                call = call_of(self._cipher, *columns)
                try:
                    found.append(OpenCall(call, decode_request(payload)))
                except UnsupportedEventError as error:
                    facts += answer_call(
                        tx, self._audit, self._cipher, self._engine_id, turn, call, _unreadable(call, error)
                    )
            return found, facts

        found, facts = await self._database.write(unit)
        self._offer(facts)
        return found


def call_of(cipher: Cipher, tool_call_id: str, correlation_id: str, name: str, arguments: str, tool: str) -> ToolCall:
    """A call from its columns, without `extra`, which matters only in the history for the model."""
    arguments = open_text(cipher, arguments, "tool_calls.arguments", correlation_id)
    return ToolCall(tool_call_id, correlation_id, name, arguments, tool=tool)


def add_requests(
    tx: Transaction,
    audit: AuditTrail,
    cipher: Cipher,
    owned_by: str,
    turn: Turn,
    requests: Sequence[ToolCallRequested],
    offered_to: Sequence[str | None],
) -> list[OutboxRow]:
    """Put the requests of calls into the outbox, each with the incarnation of Redis that it will be offered to; None
    for one that may have been offered to any.

    Returns the rows to publish.
    """
    rows = [
        add_event(
            tx,
            owned_by,
            turn.turn_id,
            TOOL_CALL_REQUESTED,
            request.correlation_id,
            encode_request(seal_request(request, cipher)),
            incarnation,
        )
        for request, incarnation in zip(requests, offered_to, strict=True)
    ]
    accepted = (
        AuditEvent(
            AuditAction.CALL_ACCEPTED,
            turn.subject,
            session_id=turn.session_id,
            turn_id=turn.turn_id,
            correlation_id=request.correlation_id,
            server=request.server,
            tool=request.tool_name,
            digest=audit.digest(request.arguments),
        )
        for request in requests
    )
    return rows + audit.add(tx, *accepted)


def answer_call(
    tx: Transaction,
    audit: AuditTrail,
    cipher: Cipher,
    owned_by: str,
    turn: Turn,
    call: ToolCall,
    outcome: ToolOutcome,
) -> list[OutboxRow]:
    """Store the outcome unless there is one, delete the request from the outbox, and add a fact for analytics.

    Returns the rows to publish; none when there was an outcome.
    """
    kept, media = split(outcome)
    answered = tx.execute(
        "UPDATE tool_calls SET outcome = $1, answered_at = now_ms(), ran = $3 WHERE correlation_id = $2"
        " AND outcome IS NULL RETURNING answered_at, server",
        cipher.seal(msgspec.json.encode(kept), owner("tool_calls.outcome", call.correlation_id)),
        call.correlation_id,
        int(outcome.attempts > 0 or outcome.state is CallState.UNKNOWN),
    )
    if not answered:
        return []
    [(at, server)] = answered
    invented = not server and call.name != gateway.NAME
    keep_media(tx, cipher, call.correlation_id, media)
    tx.execute("DELETE FROM outbox WHERE event_type = $1 AND event_id = $2", TOOL_CALL_REQUESTED, call.correlation_id)
    fact = ToolCallFinished(
        correlation_id=call.correlation_id,
        turn_id=turn.turn_id,
        session_id=turn.session_id,
        subject=turn.subject,
        tool_name=fitted(call.tool_name, NAME_MAX) if invented else call.tool_name,
        state=outcome.state,
        error_code=outcome.error.code if outcome.error else None,
        duration_ms=outcome.duration_ms,
        attempts=outcome.attempts,
        at=at,
    )
    ended = AuditEvent(
        AuditAction.CALL_ENDED,
        turn.subject,
        session_id=turn.session_id,
        turn_id=turn.turn_id,
        correlation_id=call.correlation_id,
        server=server,
        tool=audit.unknown(call.tool_name) if invented else call.tool_name,
        outcome=f"{outcome.state} {outcome.error.code}" if outcome.error else outcome.state,
    )
    payload = msgspec.json.encode(fact)
    return [
        add_event(tx, owned_by, turn.turn_id, TOOL_CALL_FINISHED, call.correlation_id, payload),
        *audit.add(tx, ended),
    ]


def _unreadable(call: ToolCall, error: UnsupportedEventError) -> ToolOutcome:
    message = f"its request cannot be read by this release: {error}; whether it was run is not known"
    outcome = ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, message)
    return timed(outcome, call.correlation_id)


MIN_NAME = 8
"""The least number of characters of a correlation id that name a result: its end, which an index finds."""
_FROM = (
    "FROM {} c JOIN turns t USING (turn_id)"
    " JOIN sessions s USING (session_id) LEFT JOIN whole_results w USING (correlation_id)"
    " WHERE s.session_id = $1 AND s.subject = $2 AND c.outcome IS NOT NULL"
)
NAMED = (
    "WITH named AS MATERIALIZED (SELECT * FROM tool_calls"
    " WHERE substr(correlation_id, length(correlation_id) - 7) = $3)"
    f" SELECT c.correlation_id, c.name, c.outcome, w.whole {_FROM.format('named')}"
    " AND substr(c.correlation_id, length(c.correlation_id) - length($4) + 1) = $4 LIMIT 1"
)
_CUT = (
    f"SELECT c.correlation_id, c.name {_FROM.format('tool_calls')} AND w.whole IS NOT NULL"
    " ORDER BY c.answered_at DESC LIMIT 10"
)


def keep_whole(tx: Transaction, cipher: Cipher, correlation_id: str, whole: WholeResult) -> None:
    """Store the whole text of a result."""
    tx.execute(
        "INSERT INTO whole_results (correlation_id, whole) VALUES ($1, $2) ON CONFLICT DO NOTHING",
        correlation_id,
        cipher.seal(msgspec.json.encode(whole), owner("whole_results.whole", correlation_id)),
    )


class SqlResults(ResultStore):
    """The results of all sessions."""

    def __init__(self, database: Database, cipher: Cipher = CLEAR) -> None:
        self._database = database
        self._cipher = cipher

    async def result(self, turn: Turn, name: str) -> KeptResult | None:
        if len(name) < MIN_NAME:
            return None
        rows = await self._database.read(NAMED, turn.session_id, turn.subject, name[-MIN_NAME:], name)
        return _kept(self._cipher, rows[0]) if rows else None

    async def cut_results(self, turn: Turn) -> Sequence[tuple[str, str]]:
        rows = await self._database.read(_CUT, turn.session_id, turn.subject)
        return [(correlation_id, name) for correlation_id, name in rows]


def _kept(cipher: Cipher, row: Row) -> KeptResult:
    """A row, whose whole text is stored separately where the outcome has a part."""
    correlation_id, name, outcome, whole = row
    if whole is not None:
        return KeptResult(correlation_id, name, read_whole(cipher, correlation_id, whole))
    data = open_data(cipher, outcome, "tool_calls.outcome", correlation_id)
    return KeptResult(correlation_id, name, whole_of(msgspec.json.decode(data, type=ToolOutcome)))


def read_whole(cipher: Cipher, correlation_id: str, whole: bytes) -> WholeResult:
    """The whole text of a result from its column."""
    data = open_data(cipher, whole, "whole_results.whole", correlation_id)
    return msgspec.json.decode(data, type=WholeResult)
