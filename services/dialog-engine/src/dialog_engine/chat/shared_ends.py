"""The end of a turn is told only when it is where every engine finds it."""

from contextlib import suppress

from dialog_engine.chat.journal import Journal, NotSharedError
from dialog_engine.chat.ports import TurnStore
from dialog_engine.model import AssistantMessage, Done, Turn, TurnFailed


class SharedEnds(TurnStore):
    """A store of turns, behind the journal. Who has heard `done` does not come back: had this engine died before it
    shared the end, another one would go on with the turn, and say and do what nobody waits for any more."""

    def __init__(self, store: TurnStore, journal: Journal) -> None:
        self._store = store
        self._journal = journal

    async def begin(self, turn: Turn, text: str, *, new_session: bool = False) -> None:
        await self._store.begin(turn, text, new_session=new_session)

    async def finish(
        self, turn: Turn, message: AssistantMessage | None, done: Done, failure: TurnFailed | None
    ) -> int | None:
        number = await self._store.finish(turn, message, done, failure)
        with suppress(NotSharedError):  # with Redis away nobody takes a turn over
            await self._journal.settled()
        return number
