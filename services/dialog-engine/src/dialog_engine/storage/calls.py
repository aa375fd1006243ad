"""Tool calls: a round is committed with its outbox rows, a result with the end of its row."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from dialog_engine.chat import facts
from dialog_engine.chat.copies import OutcomeRow
from dialog_engine.chat.journal import JournalEntry, Step
from dialog_engine.chat.outbox import OutboxRow
from dialog_engine.model import AssistantMessage, ToolCall, Turn, Usage
from dialog_engine.storage.copies import message_row
from dialog_engine.storage.database import Database, Transaction, now_ms
from dialog_engine.storage.journal import OfferEntries, add_entry, add_turn_entry, nobody
from dialog_engine.storage.outbox import add_event
from dialog_engine.storage.results import keep_whole
from dialog_engine.tool_calls.ports import NOTHING_ASKED, NOTHING_SPENT, NOWHERE, CallStore
from dialog_engine.tool_calls.questions import Question
from dialog_engine.tool_calls.rounds import OpenCall
from dialog_engine.tool_calls.texts import WholeResult
from plugins_contract.errors import ErrorCode
from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED
from plugins_contract.messages import ToolCallRequested, UnsupportedEventError, decode_request, encode_request
from plugins_contract.outcomes import CallState, ToolOutcome

OfferRows = Callable[[Sequence[OutboxRow]], None]
"""Told of outbox rows as soon as they are committed."""


def insert_message(tx: Transaction, turn: Turn, role: str, message: AssistantMessage) -> tuple[int, int]:
    """Add a message to the turn's session. Returns its id in this file, and its number in the session.

    Numbers are times, made to rise: should two engines answer the same session while they cannot talk to each other,
    what both said still has its order.
    """
    [(message_id, number)] = tx.execute(
        "INSERT INTO messages (session_id, turn_id, role, content, reasoning, interrupted, created_at, number)"
        " SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, max(?7, 1 + coalesce((SELECT max(number) FROM messages"
        " WHERE session_id = ?1), 0)) RETURNING message_id, number",
        turn.session_id,
        turn.turn_id,
        role,
        message.content,
        message.reasoning,
        message.interrupted,
        now_ms(),
    )
    return message_id, number


class SqliteCalls(CallStore):
    """The tool calls of the turns that run here."""

    def __init__(self, database: Database, offer: OfferRows, share: OfferEntries = nobody) -> None:
        self._database = database
        self._offer = offer
        self._share = share

    async def add_round(
        self,
        turn: Turn,
        message: AssistantMessage,
        requests: Sequence[ToolCallRequested],
        answered: Mapping[str, ToolOutcome],
        questions: Mapping[str, Question] = NOTHING_ASKED,
        servers: Mapping[str, str] = NOWHERE,
        *,
        cost: Usage = NOTHING_SPENT,
    ) -> int:
        of_call = {**servers, **{request.correlation_id: request.server for request in requests}}
        of_call |= {correlation_id: question.server for correlation_id, question in questions.items()}

        def unit(tx: Transaction) -> tuple[int, list[OutboxRow], JournalEntry]:
            message_id, number = insert_message(tx, turn, "assistant", message)
            tx.execute(
                "UPDATE turns SET rounds = rounds + 1, input_tokens = input_tokens + ?,"
                " output_tokens = output_tokens + ? WHERE turn_id = ?",
                cost.input_tokens,
                cost.output_tokens,
                turn.turn_id,
            )
            tx.execute_many(
                "INSERT INTO tool_calls (correlation_id, message_id, turn_id, ordinal, tool_call_id, name, server,"
                " arguments, tool, extra, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        call.correlation_id,
                        message_id,
                        turn.turn_id,
                        ordinal,
                        call.tool_call_id,
                        call.name,
                        of_call.get(call.correlation_id, ""),
                        call.arguments,
                        call.tool,
                        msgspec.json.encode(call.extra) if call.extra else None,
                        now_ms(),
                    )
                    for ordinal, call in enumerate(message.tool_calls)
                ],
            )
            tx.execute_many(
                "INSERT INTO approvals (correlation_id, question) VALUES (?, ?)",
                [(correlation_id, msgspec.json.encode(question)) for correlation_id, question in questions.items()],
            )
            rows = [add_event(tx, TOOL_CALL_REQUESTED, r.correlation_id, encode_request(r)) for r in requests]
            for call in message.tool_calls:
                if outcome := answered.get(call.correlation_id):
                    rows += answer_call(tx, turn, call, outcome)
            entry = add_turn_entry(tx, turn, Step.GOES_ON, [message_row(tx, message_id)])
            return number, rows, entry

        number, rows, entry = await self._database.write(unit)
        self._share([entry])
        self._offer(rows)
        return number

    async def add_result(
        self, turn: Turn, call: ToolCall, outcome: ToolOutcome, whole: WholeResult | None = None
    ) -> bool:
        def unit(tx: Transaction) -> tuple[list[OutboxRow], list[JournalEntry]]:
            rows = answer_call(tx, turn, call, outcome)
            if rows and whole is not None:
                keep_whole(tx, call.correlation_id, whole)
            return rows, [_outcome_entry(tx, turn, call)] if rows else []

        rows, entries = await self._database.write(unit)
        self._share(entries)
        self._offer(rows)
        return bool(rows)

    async def open_calls(self, turn: Turn) -> list[OpenCall]:
        """Committed calls of the turn that have no outcome yet, with the requests that were made of them.

        A request that this release cannot read (another one made it) is answered so: nothing can be done about it.
        """

        def unit(tx: Transaction) -> tuple[list[OpenCall], list[OutboxRow], list[JournalEntry]]:
            rows = tx.execute(
                "SELECT c.tool_call_id, c.correlation_id, c.name, c.arguments, c.tool, o.payload FROM tool_calls c"
                " JOIN outbox o ON o.event_type = ? AND o.event_id = c.correlation_id"
                " WHERE c.turn_id = ? AND c.outcome IS NULL ORDER BY c.message_id, c.ordinal",
                TOOL_CALL_REQUESTED,
                turn.turn_id,
            )
            found: list[OpenCall] = []
            facts: list[OutboxRow] = []
            entries: list[JournalEntry] = []
            for *columns, payload in rows:
                call = call_of(*columns)
                try:
                    found.append(OpenCall(call, decode_request(payload)))
                except UnsupportedEventError as error:
                    facts += answer_call(tx, turn, call, _unreadable(error))
                    entries.append(_outcome_entry(tx, turn, call))
            return found, facts, entries

        # In the writer's queue: a round whose commit is on its way when the user stops the turn must be seen.
        found, facts, entries = await self._database.write(unit)
        self._share(entries)
        self._offer(facts)
        return found


def call_of(tool_call_id: str, correlation_id: str, name: str, arguments: str, tool: str) -> ToolCall:
    """A call from its columns; what its provider wants echoed matters only where it is sent back."""
    return ToolCall(tool_call_id, correlation_id, name, arguments, tool=tool)


def answer_call(tx: Transaction, turn: Turn, call: ToolCall, outcome: ToolOutcome) -> list[OutboxRow]:
    """Store the outcome, unless there is one; the request's row goes, a fact for analytics comes."""
    answered = tx.execute(
        "UPDATE tool_calls SET outcome = ?, answered_at = ? WHERE correlation_id = ? AND outcome IS NULL RETURNING 1",
        msgspec.json.encode(outcome),
        now_ms(),
        call.correlation_id,
    )
    if not answered:
        return []
    tx.execute("DELETE FROM outbox WHERE event_type = ? AND event_id = ?", TOOL_CALL_REQUESTED, call.correlation_id)
    fact = facts.ToolCallFinished(
        correlation_id=call.correlation_id,
        turn_id=turn.turn_id,
        session_id=turn.session_id,
        subject=turn.subject,
        tool_name=call.tool_name,
        state=outcome.state,
        error_code=outcome.error.code if outcome.error else None,
        duration_ms=outcome.duration_ms,
        attempts=outcome.attempts,
        at=now_ms(),
    )
    return [add_event(tx, facts.TOOL_CALL_FINISHED, call.correlation_id, msgspec.json.encode(fact))]


def _outcome_entry(tx: Transaction, turn: Turn, call: ToolCall) -> JournalEntry:
    return add_entry(tx, turn, Step.GOES_ON, [outcome_row(tx, call)])


def outcome_row(tx: Transaction, call: ToolCall) -> OutcomeRow:
    """What came of a call, as it travels."""
    [(outcome, answered_at)] = tx.execute(
        "SELECT outcome, answered_at FROM tool_calls WHERE correlation_id = ?", call.correlation_id
    )
    return OutcomeRow(correlation_id=call.correlation_id, outcome=msgspec.Raw(outcome), answered_at=answered_at)


def _unreadable(error: UnsupportedEventError) -> ToolOutcome:
    message = f"its request cannot be read by this release: {error}; whether it was run is not known"
    return ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, message)
