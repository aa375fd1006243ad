"""Tool calls: a round is committed with its outbox rows, a result with the end of its row."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from dialog_engine.chat import facts
from dialog_engine.chat.outbox import OutboxRow
from dialog_engine.model import AssistantMessage, ToolCall, Turn
from dialog_engine.storage.database import Database, Transaction, now_ms
from dialog_engine.storage.outbox import add_event
from dialog_engine.tool_calls.ports import CallStore
from dialog_engine.tool_calls.rounds import OpenCall
from plugins_contract.errors import ErrorCode
from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED
from plugins_contract.messages import ToolCallRequested, UnsupportedEventError, decode_request, encode_request
from plugins_contract.outcomes import CallState, ToolOutcome

OfferRows = Callable[[Sequence[OutboxRow]], None]
"""Told of outbox rows as soon as they are committed."""


async def insert_message(tx: Transaction, turn: Turn, role: str, message: AssistantMessage) -> int:
    """Add a message to the turn's session. Returns its id."""
    [(message_id,)] = await tx.execute(
        "INSERT INTO messages (session_id, turn_id, role, content, reasoning, interrupted, created_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING message_id",
        turn.session_id,
        turn.turn_id,
        role,
        message.content,
        message.reasoning,
        message.interrupted,
        now_ms(),
    )
    return message_id


class SqliteCalls(CallStore):
    """The tool calls of the turns that run here."""

    def __init__(self, database: Database, offer: OfferRows) -> None:
        self._database = database
        self._offer = offer

    async def add_round(
        self,
        turn: Turn,
        message: AssistantMessage,
        requests: Sequence[ToolCallRequested],
        answered: Mapping[str, ToolOutcome],
    ) -> int:
        servers = {request.correlation_id: request.server for request in requests}

        async def unit(tx: Transaction) -> tuple[int, list[OutboxRow]]:
            message_id = await insert_message(tx, turn, "assistant", message)
            await tx.execute("UPDATE turns SET rounds = rounds + 1 WHERE turn_id = ?", turn.turn_id)
            await tx.execute_many(
                "INSERT INTO tool_calls (correlation_id, message_id, turn_id, ordinal, tool_call_id, name, server,"
                " arguments, extra, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        call.correlation_id,
                        message_id,
                        turn.turn_id,
                        ordinal,
                        call.tool_call_id,
                        call.name,
                        servers.get(call.correlation_id, ""),
                        call.arguments,
                        msgspec.json.encode(call.extra) if call.extra else None,
                        now_ms(),
                    )
                    for ordinal, call in enumerate(message.tool_calls)
                ],
            )
            rows = [await add_event(tx, TOOL_CALL_REQUESTED, r.correlation_id, encode_request(r)) for r in requests]
            for call in message.tool_calls:
                if outcome := answered.get(call.correlation_id):
                    rows += await _answer(tx, turn, call, outcome)
            return message_id, rows

        message_id, rows = await self._database.write(unit)
        self._offer(rows)
        return message_id

    async def add_result(self, turn: Turn, call: ToolCall, outcome: ToolOutcome) -> bool:
        async def unit(tx: Transaction) -> list[OutboxRow]:
            return await _answer(tx, turn, call, outcome)

        rows = await self._database.write(unit)
        self._offer(rows)
        return bool(rows)

    async def open_calls(self, turn: Turn) -> list[OpenCall]:
        """Committed calls of the turn that have no outcome yet, with the requests that were made of them.

        A request that this release cannot read (another one made it) is answered so: nothing can be done about it.
        """

        async def unit(tx: Transaction) -> tuple[list[OpenCall], list[OutboxRow]]:
            rows = await tx.execute(
                "SELECT c.tool_call_id, c.correlation_id, c.name, c.arguments, o.payload FROM tool_calls c"
                " JOIN outbox o ON o.event_type = ? AND o.event_id = c.correlation_id"
                " WHERE c.turn_id = ? AND c.outcome IS NULL ORDER BY c.message_id, c.ordinal",
                TOOL_CALL_REQUESTED,
                turn.turn_id,
            )
            found: list[OpenCall] = []
            facts: list[OutboxRow] = []
            for *call, payload in rows:
                try:
                    found.append(OpenCall(ToolCall(*call), decode_request(payload)))
                except UnsupportedEventError as error:
                    facts += await _answer(tx, turn, ToolCall(*call), _unreadable(error))
            return found, facts

        # In the writer's queue: a round whose commit is on its way when the user stops the turn must be seen.
        found, facts = await self._database.write(unit)
        self._offer(facts)
        return found


async def _answer(tx: Transaction, turn: Turn, call: ToolCall, outcome: ToolOutcome) -> list[OutboxRow]:
    """Store the outcome, unless there is one; the request's row goes, a fact for analytics comes."""
    answered = await tx.execute(
        "UPDATE tool_calls SET outcome = ?, answered_at = ? WHERE correlation_id = ? AND outcome IS NULL RETURNING 1",
        msgspec.json.encode(outcome),
        now_ms(),
        call.correlation_id,
    )
    if not answered:
        return []
    await tx.execute(
        "DELETE FROM outbox WHERE event_type = ? AND event_id = ?", TOOL_CALL_REQUESTED, call.correlation_id
    )
    fact = facts.ToolCallFinished(
        correlation_id=call.correlation_id,
        turn_id=turn.turn_id,
        session_id=turn.session_id,
        subject=turn.subject,
        tool_name=call.name,
        state=outcome.state,
        error_code=outcome.error.code if outcome.error else None,
        duration_ms=outcome.duration_ms,
        attempts=outcome.attempts,
        at=now_ms(),
    )
    return [await add_event(tx, facts.TOOL_CALL_FINISHED, call.correlation_id, msgspec.json.encode(fact))]


def _unreadable(error: UnsupportedEventError) -> ToolOutcome:
    message = f"its request cannot be read by this release: {error}; whether it was run is not known"
    return ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, message)
