"""What `dialog-engine trace` says of questions of servers: when each was asked, and how it ended. No text of either."""

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from dialog_engine.operators.audit import Query
from dialog_engine.storage.database import Row
from dialog_engine.storage.statements import open_value
from dialog_engine.tool_calls.questions.values import Answer, Asking
from plugins_contract.encryption import Cipher, DecryptionError
from plugins_contract.messages import NOT_READABLE

_ROUNDS = (
    "SELECT q.correlation_id, q.round_number, q.asking, q.given, q.expires_at FROM questions q"
    " JOIN tool_calls c USING (correlation_id) WHERE c.turn_id = $1 AND ($2 = '' OR c.correlation_id = $2)"
    " ORDER BY q.correlation_id, q.round_number LIMIT $3"
)


def questions_of(
    query: Query, cipher: Cipher, turn_id: str, only: str, limit: int
) -> Iterator[tuple[str, int, list[tuple[int, str]]]]:
    """Each round of the calls of a turn that ended with questions, or of the call `only`: its call, its number, and
    what happened when, in Unix milliseconds."""
    for row in query(_ROUNDS, turn_id, only, limit):
        try:
            yield row.correlation_id, row.round_number, _said(cipher, row)
        except (DecryptionError, *NOT_READABLE) as error:
            why = "is encrypted (ENCRYPTION_KEYS_FILE)" if isinstance(error, DecryptionError) else "cannot be read"
            said = f"of round {row.round_number} its server asked; the question, which expires now, {why}"
            yield row.correlation_id, row.round_number, [(row.expires_at, said)]


def _said(cipher: Cipher, row: Row) -> list[tuple[int, str]]:
    key = row.correlation_id, row.round_number
    asking = msgspec.json.decode(open_value(cipher, bytes(row.asking), "questions.asking", *key), type=Asking)
    given = open_value(cipher, bytes(row.given), "questions.given", *key) if row.given is not None else b"{}"
    until = datetime.fromtimestamp(asking.expires_at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    asked = f"server {asking.server} asked {len(asking.asked.questions)} questions in round {row.round_number}"
    said = [(asking.asked_at, f"{asked}, open until {until}")]
    for place, answer in sorted(msgspec.json.decode(given, type=dict[int, Answer]).items()):
        why = f": {answer.reason}" if answer.reason else ""
        said.append((answer.at, f"question {place} of round {row.round_number} was {answer.status}{why}"))
    return said
