"""Turns that begin, for tests of what comes after."""

from dialog_engine.chat.ports import TurnStore
from dialog_engine.model import Turn
from plugins_contract.messages import new_id


async def begin(
    turns: TurnStore, subject: str, session_id: str | None, text: str, traceparent: str | None = None
) -> Turn:
    """Commit a question; in a new session when none is given."""
    turn = Turn(new_id(), session_id or new_id(), subject, traceparent=traceparent)
    await turns.begin(turn, text, new_session=session_id is None)
    return turn
