"""The end of a turn is told only when it is where every engine finds it."""

from contextlib import suppress

from dialog_engine.chat.journal import Journal, NotSharedError
from dialog_engine.chat.ports import TurnStore
from dialog_engine.model import AssistantMessage, Choice, Done, Turn, TurnFailed


class SharedEnds(TurnStore):
    """A store of turns, behind the journal. Who has heard `done` does not come back: had this engine died before it
    shared the end, another one would go on with the turn, and say and do what nobody waits for any more."""

    def __init__(self, store: TurnStore, journal: Journal) -> None:
        self._store = store
        self._journal = journal

    async def begin(
        self,
        subject: str,
        session_id: str | None,
        text: str,
        traceparent: str | None,
        *,
        turn_id: str | None = None,
        choice: Choice = Choice(),
    ) -> Turn:
        return await self._store.begin(subject, session_id, text, traceparent, turn_id=turn_id, choice=choice)

    async def finish(
        self, turn: Turn, message: AssistantMessage | None, done: Done, failure: TurnFailed | None
    ) -> int | None:
        number = await self._store.finish(turn, message, done, failure)
        with suppress(NotSharedError):  # with Redis away nobody takes a turn over
            await self._journal.settled()
        return number
