"""Questions of servers: a row for each round of a call that ended with some.

The row is committed with the deletion of the round's request from the outbox, and the last answer with the request of
the next round: neither a wiped Redis nor a dead engine loses anything. Any engine commits an answer; the owner of the
turn finds it in the store, and a parked turn is its engine's from then on.
"""

from collections.abc import Callable
from dataclasses import replace

import msgspec

from dialog_engine.chat.audit import AuditAction, AuditEvent
from dialog_engine.model import QuestionStatus, ToolCall, Turn
from dialog_engine.storage.approvals import TURN, NotOpenError, if_open, may_have_run
from dialog_engine.storage.calls import REQUEST_ID, add_requests, answer_call, call_of
from dialog_engine.storage.database import Row
from dialog_engine.storage.fence import fence
from dialog_engine.storage.requests import note_answer
from dialog_engine.storage.store import SealedDatabase, SealedTransaction, Store, StoreTransaction
from dialog_engine.storage.turns import roles_of, take, turn_of
from dialog_engine.tool_calls.questions.values import (
    Answer,
    Answers,
    AskedRound,
    Asking,
    FoundRound,
    MakeNext,
    ParkedQuestion,
    QuestionStore,
    RoundState,
)
from dialog_engine.tool_calls.values import AnswerKey, Committed
from plugins_contract.ledger import NEVER_OFFERED
from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED
from plugins_contract.messages import ToolCallRequested, decode_request
from plugins_contract.outcomes import ToolOutcome

_ROUND = "c.tool_call_id, c.correlation_id, c.name, c.arguments, c.tool, q.round_number, q.asking, q.given"
_OF_CALL = f"SELECT {_ROUND} FROM questions q JOIN tool_calls c USING (correlation_id)"
OPEN_IN = (
    f"{_OF_CALL} WHERE c.turn_id = $1 AND c.outcome IS NULL AND q.settled_at IS NULL ORDER BY c.message_id, c.ordinal"
)
"""The rounds of a turn with an open question, for `rounds_from`."""
_STATE = (
    f"SELECT {_ROUND}, c.outcome, o.payload FROM questions q JOIN tool_calls c USING (correlation_id)"
    f" LEFT JOIN outbox o ON o.event_type = $1 AND o.event_id = {REQUEST_ID}"
    " WHERE q.correlation_id = $2 AND q.round_number = $3"
)
_ROUNDS = (
    f"SELECT {_ROUND}, t.session_id, t.turn_id, t.credential, t.status = 'running' AND c.outcome IS NULL AS is_running"
    " FROM questions q JOIN tool_calls c USING (correlation_id) JOIN turns t USING (turn_id)"
)
_FOUND = f"{_ROUNDS} JOIN sessions s ON s.session_id = t.session_id WHERE s.subject = $1"
_WAITING = (
    "SELECT c.correlation_id FROM tool_calls c JOIN turns t USING (turn_id)"
    " WHERE c.correlation_id = $1 AND c.outcome IS NULL AND t.status = 'running'"
)
_PENDING = (
    f"{_FOUND} AND t.status = 'running' AND c.outcome IS NULL AND q.settled_at IS NULL"
    " ORDER BY c.message_id, c.ordinal LIMIT $2"
)
# From the index of the open ones.
_PARKED = (
    "SELECT q.correlation_id, t.turn_id, c.name, c.tool, s.subject, t.roles FROM questions q"
    " JOIN tool_calls c USING (correlation_id) JOIN turns t USING (turn_id)"
    " JOIN sessions s ON s.session_id = t.session_id WHERE q.settled_at IS NULL AND q.correlation_id > $1"
    " AND c.outcome IS NULL AND t.status = 'running' AND t.owner = '' ORDER BY q.correlation_id LIMIT $2"
)
_ASK = (
    "INSERT INTO questions (correlation_id, round_number, asking, expires_at)"
    " VALUES ($correlation_id, $round_number, $asking, $expires_at)"
)
_ANSWER = (
    "UPDATE questions SET given = $given, settled_at = CASE WHEN $settled = 1 THEN now_ms() END"
    " WHERE correlation_id = $correlation_id AND round_number = $round_number AND settled_at IS NULL"
)
_SENT = "SELECT payload FROM outbox WHERE event_type = $1 AND event_id = $2"
_UNSENT = "DELETE FROM outbox WHERE event_type = $1 AND event_id = $2"
_ASKED = "UPDATE tool_calls SET asked = $1 WHERE correlation_id = $2 AND outcome IS NULL"
_LOCKED = (
    f"{_OF_CALL} WHERE q.correlation_id = $1 AND q.round_number = $2 AND q.settled_at IS NULL AND c.outcome IS NULL"
)


class SqlQuestions(QuestionStore):
    """The questions of all turns."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def ask(self, turn: Turn, call: ToolCall, request: ToolCallRequested, make: Callable[[str], Asking]) -> None:
        number = request.next_round.number if request.next_round else 1

        def unit(tx: StoreTransaction) -> None:
            fence(tx, turn)
            [sent] = tx.execute(_SENT, TOOL_CALL_REQUESTED, request.correlation_id)
            asking = make(sent.payload.decode())
            tx.change(
                _ASK,
                correlation_id=call.correlation_id,
                round_number=number,
                asking=msgspec.json.encode(asking),
                expires_at=asking.expires_at,
            )
            tx.change(_ASKED, number, call.correlation_id)
            tx.change(_UNSENT, TOOL_CALL_REQUESTED, request.correlation_id)
            tx.change_session(turn.session_id)
            tx.audit(_event(turn, call, asking, QuestionStatus.ASKED))

        await self._store.write(unit)

    async def state(self, asked: AskedRound) -> RoundState | None:
        rows = await self._store.read(_STATE, TOOL_CALL_REQUESTED, asked.call.correlation_id, asked.number)
        if not rows:
            return None
        row, found = rows[0], round_of(rows[0])
        outcome = row.outcome
        request = None if found.is_open or row.payload is None else decode_request(row.payload)
        return RoundState(found, request, msgspec.json.decode(outcome, type=ToolOutcome) if outcome else None)

    async def find(self, subject: str, turn_id: str, correlation_id: str, number: int) -> FoundRound | None:
        only = " AND t.turn_id = $2 AND q.correlation_id = $3 AND q.round_number = $4"
        rows = await self._store.read(_FOUND + only, subject, turn_id, correlation_id, number)
        return _found(rows[0]) if rows else None

    async def waiting(self, correlation_id: str, number: int) -> tuple[bool, FoundRound | None]:
        if not await self._store.read(_WAITING, correlation_id):
            return False, None
        only = " WHERE q.correlation_id = $1 AND q.round_number = $2"
        rows = await self._store.read(_ROUNDS + only, correlation_id, number)
        return True, _found(rows[0]) if rows else None

    async def pending(self, subject: str, limit: int) -> list[FoundRound]:
        return [_found(row) for row in await self._store.read(_PENDING, subject, limit)]

    async def answer(
        self,
        turn_id: str,
        asked: AskedRound,
        answers: Answers,
        request: MakeNext | None,
        outcome: ToolOutcome | None,
        answer_key: AnswerKey | None = None,
    ) -> Committed | None:
        def unit(tx: StoreTransaction) -> Committed:
            note_answer(tx, turn_id, answer_key)
            if not (found := tx.execute(TURN, turn_id)):
                raise NotOpenError
            turn, owner = turn_of(tx, found[0]), found[0].owner
            now = tx.execute(_LOCKED, asked.call.correlation_id, asked.number)
            if not now or round_of(now[0]).answers != asked.answers:
                raise NotOpenError
            _settle(tx, turn, asked, answers)
            tx.change_session(turn.session_id)
            if taken := take(tx, turn_id):  # also for one answer of several: the turn's readers are shown it
                turn, owner = taken, tx.engine_id
            if request is not None:
                addressed = msgspec.structs.replace(request(turn), mailbox=tx.mailbox_of(owner))
                offered_to = None if may_have_run(tx, asked.call.correlation_id) else NEVER_OFFERED
                add_requests(tx, turn, [addressed], [offered_to], owner)
            if outcome is not None:
                answer_call(tx, turn, asked.call, outcome, owner)
            return Committed(taken)

        return await if_open(self._store, unit)

    async def parked(self, after: str, limit: int) -> list[ParkedQuestion]:
        return [
            ParkedQuestion(row.correlation_id, row.turn_id, row.tool or row.name, row.subject, roles_of(row))
            for row in await self._store.read(_PARKED, after, limit)
        ]

    async def close(
        self, turn: Turn, answer: Answer, outcome_of: Callable[[ToolCall], ToolOutcome]
    ) -> list[tuple[AskedRound, ToolOutcome]]:
        def unit(tx: StoreTransaction) -> list[tuple[AskedRound, ToolOutcome]]:
            fence(tx, turn)
            closed = end_open(tx, turn, answer, outcome_of)
            if closed:
                tx.change_session(turn.session_id)
            return closed

        return await self._store.write(unit)


def open_in(tx: SealedTransaction, turn_id: str) -> list[AskedRound]:
    """The rounds of the turn with an open question."""
    return [round_of(row) for row in tx.execute(OPEN_IN, turn_id)]


def end_open(
    tx: StoreTransaction, turn: Turn, answer: Answer, outcome_of: Callable[[ToolCall], ToolOutcome], owner: str = ""
) -> list[tuple[AskedRound, ToolOutcome]]:
    """End the open questions of a turn with this answer, and their calls. `owner` runs the turn; this engine without.
    The rounds as they are then, and the outcomes."""
    ended: list[tuple[AskedRound, ToolOutcome]] = []
    for each in open_in(tx, turn.turn_id):
        answers, outcome = each.ended(answer), outcome_of(each.call)
        _settle(tx, turn, each, answers)
        answer_call(tx, turn, each.call, outcome, owner)
        ended.append((replace(each, answers=answers), outcome))
    return ended


async def rounds_of(store: SealedDatabase, correlation_id: str) -> list[AskedRound]:
    """The rounds of a call that ended with questions, in their order."""
    rows = await store.read(f"{_OF_CALL} WHERE q.correlation_id = $1 ORDER BY q.round_number", correlation_id)
    return [round_of(row) for row in rows]


def round_of(row: Row) -> AskedRound:
    """What a row says of a round."""
    given = row.given
    answers = msgspec.json.decode(given, type=dict[int, Answer]) if given is not None else {}
    return AskedRound(call_of(row), row.round_number, msgspec.json.decode(row.asking, type=Asking), answers)


def _found(row: Row) -> FoundRound:
    return FoundRound(row.session_id, row.turn_id, round_of(row), bool(row.is_running), row.credential)


def _settle(tx: StoreTransaction, turn: Turn, asked: AskedRound, answers: Answers) -> None:
    complete = len(answers) == len(asked.asking.asked.questions)
    changed = {"correlation_id": asked.call.correlation_id, "round_number": asked.number, "settled": int(complete)}
    tx.change(_ANSWER, given=msgspec.json.encode(answers), **changed)
    for place in sorted(answers.keys() - asked.answers.keys()):
        tx.audit(_event(turn, asked.call, asked.asking, answers[place].status, answers[place].key_id))


def _event(turn: Turn, call: ToolCall, asking: Asking, status: QuestionStatus, key_id: str = "") -> AuditEvent:
    return AuditEvent(
        AuditAction.QUESTION_ASKED if status is QuestionStatus.ASKED else AuditAction.QUESTION_ENDED,
        turn.subject,
        key_id=key_id,
        session_id=turn.session_id,
        turn_id=turn.turn_id,
        correlation_id=call.correlation_id,
        server=asking.server,
        tool=call.tool_name,
        outcome=status,
    )
