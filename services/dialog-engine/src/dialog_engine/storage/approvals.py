"""Approvals: a question beside its call, and the decision with what follows from it, in one transaction."""

from collections.abc import Sequence

import msgspec

from dialog_engine.chat.copies import ApprovalRow, SessionRow
from dialog_engine.chat.journal import JournalEntry, Step
from dialog_engine.chat.outbox import OutboxRow
from dialog_engine.model import ToolCall, Turn
from dialog_engine.storage.calls import OfferRows, answer_call, call_of, outcome_row
from dialog_engine.storage.copies import raw
from dialog_engine.storage.database import Database, Transaction
from dialog_engine.storage.journal import OfferEntries, add_entry, nobody
from dialog_engine.storage.outbox import add_event
from dialog_engine.tool_calls.ports import ApprovalStore
from dialog_engine.tool_calls.questions import Asked, Decision, Question
from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED
from plugins_contract.messages import ToolCallRequested, encode_request
from plugins_contract.outcomes import ToolOutcome

_WAITING = (
    "SELECT c.tool_call_id, c.correlation_id, c.name, c.arguments, c.tool, a.question FROM approvals a"
    " JOIN tool_calls c USING (correlation_id)"
    " WHERE c.turn_id = ? AND c.outcome IS NULL AND a.decision IS NULL ORDER BY c.message_id, c.ordinal"
)
# Of a question that still stands: undecided, the very one that was answered, and of a turn that is ours to run.
_UPDATE = (
    "UPDATE approvals SET {} = ? WHERE correlation_id = ? AND question = ? AND decision IS NULL AND EXISTS"
    " (SELECT 1 FROM tool_calls c JOIN turns t USING (turn_id) WHERE c.correlation_id = approvals.correlation_id"
    " AND c.outcome IS NULL AND t.status = 'running' AND t.owned AND t.epoch = ?) RETURNING 1"
)
_DECIDE = _UPDATE.format("decision")
_ASK_AGAIN = _UPDATE.format("question")


class SqliteApprovals(ApprovalStore):
    """The approvals of the turns that run here."""

    def __init__(self, database: Database, offer: OfferRows, share: OfferEntries = nobody) -> None:
        self._database = database
        self._offer = offer
        self._share = share

    async def waiting(self, turn: Turn) -> list[Asked]:
        return await self._database.write(lambda tx: _waiting(tx, turn))

    async def decide(
        self,
        turn: Turn,
        asked: Asked,
        decision: Decision,
        request: ToolCallRequested | None,
        outcome: ToolOutcome | None,
    ) -> bool:
        def unit(tx: Transaction) -> tuple[list[OutboxRow], JournalEntry] | None:
            call = asked.call
            taken = tx.execute(
                _DECIDE,
                msgspec.json.encode(decision),
                call.correlation_id,
                msgspec.json.encode(asked.question),
                turn.epoch,
            )
            if not taken:
                return None
            offered: list[OutboxRow] = []
            if request is not None:
                offered.append(add_event(tx, TOOL_CALL_REQUESTED, call.correlation_id, encode_request(request)))
            rows: list[SessionRow] = [approval_row(tx, call)]
            if outcome is not None:
                offered += answer_call(tx, turn, call, outcome)
                rows.append(outcome_row(tx, call))
            return offered, add_entry(tx, turn, Step.GOES_ON, rows)

        taken = await self._database.write(unit)
        if taken is None:
            return False
        offered, entry = taken
        self._share([entry])
        self._offer(offered)
        return True

    async def ask_again(self, turn: Turn, asked: Asked, question: Question) -> bool:
        def unit(tx: Transaction) -> JournalEntry | None:
            taken = tx.execute(
                _ASK_AGAIN,
                msgspec.json.encode(question),
                asked.call.correlation_id,
                msgspec.json.encode(asked.question),
                turn.epoch,
            )
            return add_entry(tx, turn, Step.GOES_ON, [approval_row(tx, asked.call)]) if taken else None

        entry = await self._database.write(unit)
        self._share([entry] if entry else [])
        return entry is not None

    async def close(self, turn: Turn, outcome: ToolOutcome) -> Sequence[Asked]:
        def unit(tx: Transaction) -> tuple[list[Asked], list[OutboxRow], list[JournalEntry]]:
            closed = _waiting(tx, turn)
            facts: list[OutboxRow] = []
            entries: list[JournalEntry] = []
            for each in closed:
                facts += answer_call(tx, turn, each.call, outcome)
                entries.append(add_entry(tx, turn, Step.GOES_ON, [outcome_row(tx, each.call)]))
            return closed, facts, entries

        closed, facts, entries = await self._database.write(unit)
        self._share(entries)
        self._offer(facts)
        return closed


def _waiting(tx: Transaction, turn: Turn) -> list[Asked]:
    return [
        Asked(call_of(*call), msgspec.json.decode(question, type=Question))
        for *call, question in tx.execute(_WAITING, turn.turn_id)
    ]


def approval_row(tx: Transaction, call: ToolCall) -> ApprovalRow:
    """How the approval of a call stands, as it travels."""
    [(question, decision, request)] = tx.execute(
        "SELECT a.question, a.decision, o.payload FROM approvals a"
        " LEFT JOIN outbox o ON o.event_type = ? AND o.event_id = a.correlation_id WHERE a.correlation_id = ?",
        TOOL_CALL_REQUESTED,
        call.correlation_id,
    )
    return ApprovalRow(
        correlation_id=call.correlation_id,
        question=raw(question),
        decision=raw(decision),
        request=raw(request),
    )
