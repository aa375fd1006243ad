"""Where the question of a client belongs that sends its conversation again."""

from dataclasses import dataclass

import msgspec

from callstream_runtime.long_texts import reading
from dialog_engine.chat.resent import Resent, find_place, normalised
from dialog_engine.http.services import Services
from dialog_engine.model import Brought


@dataclass(frozen=True, slots=True)
class Place:
    """Where a question belongs: its session, None for a new one, the turn that it follows, and what it brings."""

    session_id: str | None
    parent: str | None
    brought: Brought


async def place_of_question(
    brought: Brought, session_id: str | None, engine: Services, subject: str, *, named: bool, alone: bool
) -> Place:
    """Where the question belongs: behind the turn with the conversation that was sent again, or at the beginning of
    another branch, with that in the client's words. `session_id` is that of a `named` session, None for a new one. A
    question that is `alone` belongs to nothing else."""
    resent = Resent.of(brought)
    if resent.questions and not alone and (session_id or not named):
        if found := await find_place(engine.resent, subject, session_id, resent, named=named):
            return Place(found.session_id, found.turn_id, msgspec.structs.replace(brought, said=()))
        if session_id and await _waits(resent.questions[-1], session_id, engine, subject):
            return Place(session_id, None, msgspec.structs.replace(brought, said=()))
    if session_id is None:
        return Place(None, None, msgspec.structs.replace(brought, stateless=not named))
    return Place(session_id, "", brought)


async def _waits(question: str, session_id: str, engine: Services, subject: str) -> bool:
    """Whether it is the last message that waits in the session, so that the new one follows it in any case."""
    waiting = await engine.turns.queue.store.of_session(subject, session_id)
    text = waiting[-1].text if waiting else ""
    compared = await reading(len(text) + len(question), lambda: normalised(text) == normalised(question))
    return bool(waiting) and compared
