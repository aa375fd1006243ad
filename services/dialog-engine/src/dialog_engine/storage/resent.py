"""Finds the turns whose questions a client sends again, by the keyed digests of the questions."""

from collections.abc import Sequence

from callstream_runtime.long_texts import reading
from dialog_engine.chat.resent import Found, ResentStore, normalised
from dialog_engine.storage.audit import AuditTrail
from dialog_engine.storage.branches import PARENT
from dialog_engine.storage.brought import brought_of
from dialog_engine.storage.database import Row
from dialog_engine.storage.store import SealedDatabase

CANDIDATES = 8
"""How many turns with the same question are compared, the newest."""
_SAME = (
    "SELECT t.turn_id, t.session_id FROM turns t JOIN sessions s USING (session_id)"
    " WHERE t.question_digest = $1 AND s.subject = $2 AND {} ORDER BY t.created_at DESC, t.turn_id DESC LIMIT $3"
)
_IN_SESSION = _SAME.format("t.session_id = $4")
_UNLISTED = _SAME.format("s.stateless = 1")
_PATH = (
    "WITH RECURSIVE path (turn_id, depth) AS (SELECT CAST($1 AS TEXT), 1 UNION ALL"
    f" SELECT (SELECT {PARENT} FROM turns t WHERE t.turn_id = path.turn_id), depth + 1 FROM path"
    " WHERE turn_id <> '' AND depth <= $2)"
    " SELECT path.turn_id, t.question_digest, b.brought FROM path LEFT JOIN turns t ON t.turn_id = path.turn_id"
    " LEFT JOIN turn_inputs b ON b.turn_id = path.turn_id ORDER BY depth"
)
_ANSWER = "SELECT turn_id, role, content FROM messages WHERE turn_id = $1 AND role = 'assistant' ORDER BY number"


def question_digest(trail: AuditTrail, subject: str, question: str) -> str:
    """The digest by which a question of a subject is found."""
    return trail.digest({"subject": subject, "question": normalised(question)})


class SqlResent(ResentStore):
    """The turns of all sessions. `trail` has the key of the digests."""

    def __init__(self, store: SealedDatabase, trail: AuditTrail) -> None:
        self._store = store
        self._trail = trail

    async def find(self, subject: str, session_id: str | None, questions: Sequence[str]) -> Sequence[Found]:
        size = sum(map(len, questions))
        digests = await reading(size, self._digests, subject, questions[::-1])
        if session_id is None:
            rows = await self._store.read(_UNLISTED, digests[0], subject, CANDIDATES)
        else:
            rows = await self._store.read(_IN_SESSION, digests[0], subject, CANDIDATES, session_id)
        return [await self._compared(row, subject, digests) for row in rows]

    async def _compared(self, row: Row, subject: str, digests: Sequence[str]) -> Found:
        rows = await self._store.read(_PATH, row.turn_id, len(digests) + 1)
        size = sum(len(each.brought or b"") for each in rows)
        stored = await reading(size, self._questions, subject, rows, len(digests))
        agrees = len(stored) >= len(digests) and stored[: len(digests)] == digests
        answer = "".join([each.content for each in await self._store.read(_ANSWER, row.turn_id)])
        return Found(row.session_id, row.turn_id, agrees, len(stored) == len(digests), answer)

    def _digests(self, subject: str, questions: Sequence[str]) -> list[str]:
        return [question_digest(self._trail, subject, each) for each in questions]

    def _questions(self, subject: str, path: Sequence[Row], count: int) -> list[str]:
        """The digests of the questions on the path to a turn, the last one first: `count` and one more at most, if
        there are as many. What a client has said before a turn belongs to the path."""
        found: list[str] = []
        for row in path:
            if not row.turn_id or len(found) > count:
                break
            found.append(row.question_digest or "")
            said = brought_of(row).questions()[::-1]
            found += self._digests(subject, said[: count + 1 - len(found)])
        return found
