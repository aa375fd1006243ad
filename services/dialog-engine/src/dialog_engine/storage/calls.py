"""Tool calls and their results: a round is committed with its outbox rows, a result with the deletion of its row."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dialog_engine.chat.audit import AuditAction, AuditEvent
from dialog_engine.chat.outbox import ToolCallFinished
from dialog_engine.model import CLIENT_SERVER, AssistantMessage, ToolCall, Turn, Usage
from dialog_engine.storage import token_counts
from dialog_engine.storage.audit import NAME_MAX, fitted
from dialog_engine.storage.database import Row
from dialog_engine.storage.fence import fence
from dialog_engine.storage.large_results import forget_large
from dialog_engine.storage.media import keep_media, split
from dialog_engine.storage.store import SealedTransaction, Store, StoreTransaction
from dialog_engine.tool_calls.exposure import gateway
from dialog_engine.tool_calls.ports import NO_COST, NO_QUESTIONS, NO_SERVERS, NO_TITLES, CallStore
from dialog_engine.tool_calls.values import CLIENT_CLASS, OpenCall, Question, WholeResult, timed
from plugins_contract.errors import ErrorCode
from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED
from plugins_contract.messages import ToolCallRequested, UnsupportedEventError, decode_request
from plugins_contract.outcomes import CallState, ToolOutcome
from plugins_contract.questions import round_id

_ADD_ROUND = f", rounds = rounds + 1, {token_counts.ADD}, model = coalesce($model, model)"
_ADD_MESSAGE = (
    "INSERT INTO messages (session_id, turn_id, role, content, reasoning, interrupted, created_at, number)"
    " VALUES ($session_id, $turn_id, $role, $content, $reasoning, $interrupted, now_ms(),"
    " 1 + coalesce((SELECT max(number) FROM messages WHERE session_id = $session_id), 0)) RETURNING message_id, number"
)
_ADD_CALL = (
    "INSERT INTO tool_calls (correlation_id, message_id, turn_id, ordinal, tool_call_id, name, server, arguments, tool,"
    " tool_title, extra, execution_class, created_at) VALUES ($correlation_id, $message_id, $turn_id, $ordinal,"
    " $tool_call_id, $name, $server, $arguments, $tool, $tool_title, $extra, $execution_class, now_ms())"
)
_ANSWER = (
    "UPDATE tool_calls SET outcome = $outcome, answered_at = now_ms(), ran = $ran"
    " WHERE correlation_id = $correlation_id AND outcome IS NULL RETURNING answered_at, server, asked"
)
REQUEST_ID = "CASE WHEN c.asked = 0 THEN c.correlation_id ELSE c.correlation_id || ':' || CAST(c.asked + 1 AS TEXT) END"
"""The id of the newest request of a call `c`: that of the round after the last one that its server ended by asking."""
_OPEN = (
    "SELECT c.tool_call_id, c.correlation_id, c.name, c.arguments, c.tool, o.payload FROM tool_calls c"
    f" JOIN outbox o ON o.event_type = $1 AND o.event_id = {REQUEST_ID}"
    " WHERE c.turn_id = $2 AND c.outcome IS NULL ORDER BY c.message_id, c.ordinal"
)


def insert_message(tx: StoreTransaction, turn: Turn, role: str, message: AssistantMessage) -> Row:
    """Add a message to the turn's session. Returns its `message_id` in the table, and its `number` in the session."""
    [row] = tx.execute(
        _ADD_MESSAGE,
        session_id=turn.session_id,
        turn_id=turn.turn_id,
        role=role,
        content=message.content,
        reasoning=message.reasoning,
        interrupted=int(message.interrupted),
    )
    return row


class SqlCalls(CallStore):
    """The tool calls of the turns that this engine runs."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def add_round(
        self,
        turn: Turn,
        message: AssistantMessage,
        requests: Sequence[ToolCallRequested],
        answered: Mapping[str, ToolOutcome],
        questions: Mapping[str, Question] = NO_QUESTIONS,
        servers: Mapping[str, str] = NO_SERVERS,
        titles: Mapping[str, str] = NO_TITLES,
        *,
        cost: Usage = NO_COST,
        model: str = "",
    ) -> int:
        offered_to = self._store.offers_to(requests)
        of_call = {**servers, **{request.correlation_id: request.server for request in requests}}
        of_call |= {correlation_id: question.server for correlation_id, question in questions.items()}
        classes: dict[str, str] = {request.correlation_id: request.execution_class for request in requests}
        classes |= {each: CLIENT_CLASS for each, question in questions.items() if question.by_client}

        def unit(tx: StoreTransaction) -> int:
            fence(tx, turn, _ADD_ROUND, **token_counts.parameters(cost), model=model or None)
            added = insert_message(tx, turn, "assistant", message)
            tx.execute_many(
                _ADD_CALL,
                [
                    {
                        "correlation_id": call.correlation_id,
                        "message_id": added.message_id,
                        "turn_id": turn.turn_id,
                        "ordinal": ordinal,
                        "tool_call_id": call.tool_call_id,
                        "name": call.name,
                        "server": of_call.get(call.correlation_id, ""),
                        "arguments": call.arguments,
                        "tool": call.tool,
                        "tool_title": titles.get(call.correlation_id, ""),
                        "extra": msgspec.json.encode(call.extra) if call.extra else None,
                        "execution_class": classes.get(call.correlation_id, ""),
                    }
                    for ordinal, call in enumerate(message.tool_calls)
                ],
            )
            tx.execute_many(
                "INSERT INTO approvals (correlation_id, question) VALUES ($correlation_id, $question)",
                [
                    {"correlation_id": call, "question": msgspec.json.encode(question)}
                    for call, question in questions.items()
                ],
            )
            if questions:
                tx.change_session(turn.session_id)
            add_requests(tx, turn, requests, offered_to)
            tx.audit(
                *(
                    _accepted(tx, turn, call.correlation_id, CLIENT_SERVER, call.name, question.arguments)
                    for call in message.tool_calls
                    if (question := questions.get(call.correlation_id)) and question.by_client
                )
            )
            for call in message.tool_calls:
                if outcome := answered.get(call.correlation_id):
                    answer_call(tx, turn, call, outcome)
            return added.number

        return await self._store.write(unit)

    async def add_result(
        self, turn: Turn, call: ToolCall, outcome: ToolOutcome, whole: WholeResult | None = None
    ) -> bool:
        def unit(tx: StoreTransaction) -> bool:
            fence(tx, turn)
            answered = answer_call(tx, turn, call, outcome)
            if answered and whole is not None:
                keep_whole(tx, call.correlation_id, whole)
            return answered

        return await self._store.write(unit)


def call_of(row: Row) -> ToolCall:
    """The call of a row, without `extra`, which matters only in the history for the model."""
    return ToolCall(row.tool_call_id, row.correlation_id, row.name, row.arguments, tool=row.tool)


def requested_calls(tx: StoreTransaction, turn: Turn) -> list[OpenCall]:
    """The calls of the turn that have a request and no outcome.

    A call whose request this release cannot read, because another release wrote it, is answered as unknown.
    """
    found: list[OpenCall] = []
    for row in tx.execute(_OPEN, TOOL_CALL_REQUESTED, turn.turn_id):
        call = call_of(row)
        try:
            found.append(OpenCall(call, decode_request(row.payload)))
        except UnsupportedEventError as error:
            answer_call(tx, turn, call, _unreadable(call, error))
    return found


def add_requests(
    tx: StoreTransaction,
    turn: Turn,
    requests: Sequence[ToolCallRequested],
    offered_to: Sequence[str | None],
    owner: str = "",
) -> None:
    """Publish the requests of calls, each with the incarnation of Redis that it will be offered to; None for one that
    may have been offered to any. `owner`: see `StoreTransaction.publish`."""
    for request, incarnation in zip(requests, offered_to, strict=True):
        tx.publish(request, owner=owner, offered_to=incarnation)
    tx.audit(
        *(_accepted(tx, turn, each.correlation_id, each.server, each.tool_name, each.arguments) for each in requests)
    )


def _accepted(
    tx: StoreTransaction, turn: Turn, correlation_id: str, server: str, tool: str, arguments: Mapping[str, Any]
) -> AuditEvent:
    return AuditEvent(
        AuditAction.CALL_ACCEPTED,
        turn.subject,
        session_id=turn.session_id,
        turn_id=turn.turn_id,
        correlation_id=correlation_id,
        server=server,
        tool=tool,
        digest=tx.trail.digest(arguments),
    )


def answer_call(tx: StoreTransaction, turn: Turn, call: ToolCall, outcome: ToolOutcome, owner: str = "") -> bool:
    """Store the outcome unless there is one, delete the request from the outbox, and publish a fact for analytics.

    Returns whether it was stored. `owner`: see `StoreTransaction.publish`.
    """
    kept, media = split(msgspec.structs.replace(outcome, kept="") if outcome.kept else outcome)
    answered = tx.execute(
        _ANSWER,
        outcome=msgspec.json.encode(kept),
        correlation_id=call.correlation_id,
        ran=int(outcome.attempts > 0 or outcome.state is CallState.UNKNOWN),
    )
    if not answered:
        return False
    [row] = answered
    invented = not row.server and call.name != gateway.NAME
    keep_media(tx, call.correlation_id, media)
    if outcome.kept:
        forget_large(tx, call.correlation_id)
    request_id = round_id(call.correlation_id, row.asked + 1)
    tx.change("DELETE FROM outbox WHERE event_type = $1 AND event_id = $2", TOOL_CALL_REQUESTED, request_id)
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
        at=row.answered_at,
    )
    ended = AuditEvent(
        AuditAction.CALL_ENDED,
        turn.subject,
        session_id=turn.session_id,
        turn_id=turn.turn_id,
        correlation_id=call.correlation_id,
        server=row.server,
        tool=tx.trail.unknown(call.tool_name) if invented else call.tool_name,
        outcome=f"{outcome.state} {outcome.error.code}" if outcome.error else outcome.state,
    )
    tx.publish(fact, owner=owner)
    tx.audit(ended)
    return True


def _unreadable(call: ToolCall, error: UnsupportedEventError) -> ToolOutcome:
    message = f"its request cannot be read by this release: {error}; whether it was run is not known"
    outcome = ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, message)
    return timed(outcome, call.correlation_id)


def keep_whole(tx: SealedTransaction, correlation_id: str, whole: WholeResult) -> None:
    """Store the whole text of a result."""
    tx.change(
        "INSERT INTO whole_results (correlation_id, whole) VALUES ($correlation_id, $whole) ON CONFLICT DO NOTHING",
        correlation_id=correlation_id,
        whole=msgspec.json.encode(whole),
    )
