"""Brings this engine's copy of a session up to date, from the copy that all engines share."""

import logging

from dialog_engine.chat.copies import SessionCopy
from dialog_engine.chat.journal import Journal
from dialog_engine.chat.runs import Forgotten, LocalCopies, Runs, RunsUnavailableError, SharedCopies
from dialog_engine.errors import StorageUnavailableError

log = logging.getLogger(__name__)


class Imports:
    """What is needed here is fetched when it is needed. While Redis is away what is here can be told, and of anything
    else nobody knows whether it exists."""

    def __init__(self, runs: Runs, shared: SharedCopies, local: LocalCopies, journal: Journal) -> None:
        self._runs = runs
        self._shared = shared
        self._local = local
        self._journal = journal

    async def fresh(self, session_id: str) -> None:
        """See to it that the newest shared copy of the session is here, if there is one and it can be had.

        Raises:
            StorageUnavailableError: nothing is known of it here, and nobody can be asked.
        """
        try:
            found = await self._shared.head(session_id)
            match found:
                case None:
                    pass
                case Forgotten():
                    await self._local.forget([session_id])
                case (_, version):
                    await self.upto(session_id, version)
        except RunsUnavailableError as error:
            if await self._local.version(session_id) is None:
                raise _nobody_knows("session") from error

    async def fresh_turn(self, turn_id: str) -> None:
        """The same for the session of a turn, unless all of the turn is here already. Raises as `fresh` does."""
        known = await self._local.session_of(turn_id)
        if known is None:
            try:
                run = await self._runs.look(turn_id)
            except RunsUnavailableError as error:
                raise _nobody_knows("turn") from error
            if run is not None:
                await self.fresh(run.session_id)
            return
        session_id, runs_elsewhere = known
        if runs_elsewhere:
            await self.fresh(session_id)

    async def upto(self, session_id: str, version: int) -> None:
        """Fetch the session, unless everything up to `version` is here. Raises RunsUnavailableError."""
        known = await self._local.version(session_id)
        if known is not None and self._journal.version(session_id, known) == version:
            return
        await self.fetch(session_id)

    async def fetch(self, session_id: str) -> SessionCopy | None:
        """Fetch the session as it is shared now. Raises RunsUnavailableError."""
        copy = await self._shared.whole(session_id)
        if not isinstance(copy, SessionCopy):
            return None
        await self._local.merge(copy)
        return copy


def _nobody_knows(what: str) -> StorageUnavailableError:
    """Not "there is none": clients do not come back after that."""
    return StorageUnavailableError(f"this {what} is not known here, and no other engine can be asked now: try again")
