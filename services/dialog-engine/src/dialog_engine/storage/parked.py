"""Parked turns: they run, all their open calls wait for people, and no engine owns them.

A call is open for a person when it has an undecided question, and otherwise for a worker. A turn is parked by its
owner, in a transaction that finds no call of the second kind; a transaction that lets it go on gives it to its engine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dialog_engine.chat.parked import Declined, ParkedStore
from dialog_engine.chat.requests import StartingRequest
from dialog_engine.model import Turn
from dialog_engine.storage.approvals import WAITING, asked_from, asked_of, refuse
from dialog_engine.storage.branches import open_branch
from dialog_engine.storage.brought import keep_brought
from dialog_engine.storage.fence import fence_look
from dialog_engine.storage.questions import OPEN_IN, end_open, open_in, round_of
from dialog_engine.storage.releases import OTHER_ENGINES, is_older
from dialog_engine.storage.requests import note_message
from dialog_engine.storage.store import Store, StoreTransaction
from dialog_engine.storage.turns import PARKED, TURN_COLUMNS, in_session, take, turn_of
from dialog_engine.storage.waiting import add_waiting
from dialog_engine.tool_calls.questions.rules import dropped
from dialog_engine.tool_calls.questions.values import Answer, AskedRound
from dialog_engine.tool_calls.values import CLIENT_CLASS, Asked, Decision, timed

_OPEN_FOR_A_WORKER = (
    "SELECT 1 FROM tool_calls c WHERE c.turn_id = $1 AND c.outcome IS NULL AND NOT EXISTS"
    " (SELECT 1 FROM approvals a WHERE a.correlation_id = c.correlation_id AND a.decision IS NULL) AND NOT EXISTS"
    " (SELECT 1 FROM questions q WHERE q.correlation_id = c.correlation_id AND q.settled_at IS NULL) LIMIT 1"
)
_PARK = (
    "UPDATE turns SET owner = '', crashes = 0, parked_until = $1, ttft_ms = $2 WHERE turn_id = $3 AND owner = $4"
    " AND epoch = $5 AND status = 'running' AND stop_requested = 0"
)
_DUE = (
    f"SELECT turn_id, 0 AS stop FROM turns WHERE {PARKED} AND parked_until <= $1"
    " UNION ALL SELECT t.turn_id, 1 FROM erasures e JOIN turns t ON t.session_id = e.session_id"
    " WHERE e.traces IS NULL AND t.status = 'running' AND t.owner = '' LIMIT $2"
)
# From credential to credential: one with many turns costs no more than one with one.
_NEXT_CREDENTIAL = f"(SELECT min(credential) FROM turns WHERE {PARKED} AND credential > {{}})"
_CREDENTIALS = (
    f"WITH RECURSIVE found (credential) AS (SELECT {_NEXT_CREDENTIAL.format('$1')} UNION ALL"
    f" SELECT {_NEXT_CREDENTIAL.format('found.credential')} FROM found WHERE found.credential IS NOT NULL)"
    " SELECT credential FROM found WHERE credential IS NOT NULL LIMIT $2"
)
_OF_CREDENTIAL = f"SELECT turn_id FROM turns WHERE {PARKED} AND credential = $1 LIMIT $2"
_OPEN_QUESTIONS = (
    " FROM questions q JOIN tool_calls c USING (correlation_id) JOIN turns t USING (turn_id)"
    " WHERE q.settled_at IS NULL AND c.outcome IS NULL AND t.status = 'running')"
)
_COUNT = (
    f"SELECT count(*) AS parked, now_ms() - min(parked_until) AS overdue_ms, (SELECT count(*){_OPEN_QUESTIONS} AS"
    f" questions, (SELECT now_ms() - min(q.expires_at){_OPEN_QUESTIONS} AS expired_ms, (SELECT count(*) FROM turns t"
    " JOIN tool_calls c USING (turn_id) JOIN approvals a USING (correlation_id)"
    " WHERE t.status = 'running' AND c.outcome IS NULL AND a.decision IS NULL"
    f" AND c.execution_class <> '{CLIENT_CLASS}') AS approvals"
    f" FROM turns WHERE {PARKED}"
)
_RUNNING = "SELECT turn_id FROM turns WHERE session_id = $1 AND status = 'running'"
_STOPPED = (
    f"UPDATE turns SET stop_requested = 1 WHERE turn_id = $1 AND status = 'running' RETURNING {TURN_COLUMNS}, owner"
)


@dataclass(frozen=True, slots=True)
class Backlog:
    """So many `turns` are parked. `approvals` is how many calls wait for approval, and `questions` how many for answers
    to questions of their servers, also in turns that are not parked. One waits for `overdue_ms` longer than it may."""

    turns: int
    overdue_ms: int
    approvals: int
    questions: int


class _NothingOpenError(Exception):
    """There is nothing to decline: what the transaction has written is taken back."""


class SqlParked(ParkedStore):
    """The parked turns of all engines."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def park(self, turn: Turn, shown: Mapping[str, str], ttft_ms: int | None) -> bool:
        def unit(tx: StoreTransaction) -> bool:
            fence_look(tx, turn)
            if any(is_older(row.release) for row in tx.execute(OTHER_ENGINES, tx.engine_id)):
                return False
            asked = asked_of(tx, turn.turn_id)
            rounds = open_in(tx, turn.turn_id)
            open_now = {each.call.correlation_id: each.question.hash for each in asked}
            open_now |= {each.id: str(len(each.answers)) for each in rounds}
            if open_now != shown or tx.execute(_OPEN_FOR_A_WORKER, turn.turn_id):
                return False
            until = min([each.question.expires_at for each in asked] + [each.asking.expires_at for each in rounds])
            return bool(tx.change(_PARK, until, ttft_ms, turn.turn_id, tx.engine_id, turn.epoch))

        return await self._store.write(unit)

    async def open_questions(self, turn_id: str) -> Sequence[Asked | AskedRound]:
        if await self._store.read(_OPEN_FOR_A_WORKER, turn_id):
            return ()
        asked = asked_from(await self._store.read(WAITING, turn_id))
        return [*asked, *map(round_of, await self._store.read(OPEN_IN, turn_id))]

    async def take(self, turn_id: str, *, stop: bool = False) -> Turn | None:
        return await self._store.write(lambda tx: take(tx, turn_id, stop=stop))

    async def due(self, now_ms: int, limit: int) -> Sequence[tuple[str, bool]]:
        rows = await self._store.read(_DUE, now_ms, limit)
        return [(row.turn_id, bool(row.stop)) for row in rows]

    async def credentials(self, after: str, limit: int) -> Sequence[str]:
        return [row.credential for row in await self._store.read(_CREDENTIALS, after, limit)]

    async def of_credential(self, credential: str, limit: int) -> Sequence[str]:
        return [row.turn_id for row in await self._store.read(_OF_CREDENTIAL, credential, limit)]

    async def backlog(self) -> Backlog:
        """What waits for people, at all engines."""
        [row] = await self._store.read(_COUNT)
        overdue_ms = max(0, row.overdue_ms or 0, row.expired_ms or 0)
        return Backlog(row.parked, overdue_ms, row.approvals, row.questions)

    async def decline(
        self,
        sender: Turn,
        text: str,
        decision: Decision,
        answer: Answer,
        *,
        request: StartingRequest = StartingRequest(),
    ) -> Declined | None:
        def unit(tx: StoreTransaction) -> Declined:
            note_message(tx, sender, text, request)
            running = tx.execute(_RUNNING, sender.session_id)
            # The turn's row is locked before that of its session: see `fence`.
            if not running or not (found := tx.execute(_STOPPED, running[0].turn_id)):
                raise _NothingOpenError
            message = keep_brought(tx, in_session(tx, sender, text))
            turn, owner = turn_of(tx, found[0]), found[0].owner
            waits = asked_of(tx, turn.turn_id) or open_in(tx, turn.turn_id)
            if not waits or tx.execute(_OPEN_FOR_A_WORKER, turn.turn_id):
                raise _NothingOpenError
            if sender.parent is not None:
                open_branch(tx, sender.session_id, sender.parent, limited=sender.of_own_api)
            taken = take(tx, turn.turn_id)
            owner = owner or tx.engine_id
            refused = refuse(tx, taken or turn, decision, owner)
            rounds = end_open(
                tx, taken or turn, answer, lambda call: timed(dropped(answer.reason), call.correlation_id), owner
            )
            add_waiting(tx, message, text, first=True)
            return Declined(turn.turn_id, taken, refused, rounds)

        try:
            return await self._store.write(unit)
        except _NothingOpenError:
            return None
