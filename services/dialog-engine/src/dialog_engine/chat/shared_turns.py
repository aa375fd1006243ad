"""Turns, whichever engine is asked: one at a time per session, and stopped from anywhere."""

import asyncio
import logging
from contextlib import suppress

from dialog_engine.chat.imports import Imports
from dialog_engine.chat.journal import Journal, NotSharedError
from dialog_engine.chat.runs import (
    Busy,
    Claimed,
    Forgotten,
    LocalCopies,
    Runs,
    RunsUnavailableError,
    UnknownSession,
)
from dialog_engine.chat.turns import RunningTurns
from dialog_engine.errors import SessionNotFoundError, StorageUnavailableError, TurnRunningError
from dialog_engine.model import Turn
from plugins_contract.ids import new_id

log = logging.getLogger(__name__)

ENDING_SECONDS = 0.5
"""How long a turn of another engine may take to be known as ended, after its last event was told."""
QUEUE_SECONDS = 60.0
"""How long a message waits at most for the running turn of its session, when its user asked for that."""
POLL_SECONDS = 0.1


class SharedTurns:
    """What users do with turns."""

    def __init__(self, turns: RunningTurns, runs: Runs, local: LocalCopies, journal: Journal, imports: Imports) -> None:
        self._turns = turns
        self._runs = runs
        self._local = local
        self._journal = journal
        self._imports = imports

    async def start(
        self,
        subject: str,
        session_id: str | None,
        text: str,
        traceparent: str | None = None,
        *,
        queue: bool = False,
    ) -> Turn:
        """Commit the user's message and run the turn here; in a new session when none is given. When this returns every
        engine knows the turn, unless Redis is away.

        Raises:
            SessionNotFoundError, StorageUnavailableError: nothing was begun.
            TurnRunningError: likewise; with `queue`, after having waited for QUEUE_SECONDS.
        """
        if session_id is None:
            turn = await self._turns.start(subject, None, text, traceparent)
        else:
            turn = await self._when_free(subject, session_id, text, traceparent, queue=queue)
        with suppress(NotSharedError):
            await self._journal.settled()
        return turn

    async def cancel(self, turn_id: str) -> None:
        """Stop a turn, wherever it runs, and wait for its end."""
        if await self._turns.cancel(turn_id):
            return
        with suppress(RunsUnavailableError):
            if not await self._runs.stop(turn_id):
                return
            while (run := await self._runs.look(turn_id)) is not None and not run.ended:
                if await self._turns.cancel(turn_id):
                    return  # it was taken over by this engine meanwhile
                await asyncio.sleep(POLL_SECONDS)

    async def _when_free(
        self, subject: str, session_id: str, text: str, traceparent: str | None, *, queue: bool
    ) -> Turn:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while True:
            try:
                return await self._begin(subject, session_id, text, traceparent)
            except TurnRunningError as error:
                patience = QUEUE_SECONDS if queue else 0.0 if self._turns.runs(error.turn_id) else ENDING_SECONDS
                if loop.time() - begun > patience:
                    raise
            await asyncio.sleep(POLL_SECONDS)

    async def _begin(self, subject: str, session_id: str, text: str, traceparent: str | None) -> Turn:
        turn = Turn(new_id(), session_id, subject, traceparent=traceparent)
        known = await self._local.version(session_id) is not None
        try:
            claim = await self._runs.claim(turn, known=known)
        except RunsUnavailableError:
            await self._check_alone(session_id, known=known)
            return await self._turns.start(subject, session_id, text, traceparent, turn_id=turn.turn_id)
        match claim:
            case Busy(running):
                raise TurnRunningError(running)
            case UnknownSession():
                raise SessionNotFoundError(f"there is no session {session_id}")
            case Forgotten():
                await self._local.forget([session_id])
                raise SessionNotFoundError(f"there is no session {session_id}")
            case Claimed(version):
                return await self._begin_claimed(turn, text, version)

    async def _begin_claimed(self, turn: Turn, text: str, version: int) -> Turn:
        try:
            if version:
                await self._imports.upto(turn.session_id, version)
            begun = await self._turns.start(turn.subject, turn.session_id, text, turn.traceparent, turn_id=turn.turn_id)
        except RunsUnavailableError as error:
            raise StorageUnavailableError("what was said in this session cannot be read now: try again") from error
        except BaseException:
            if not self._turns.runs(turn.turn_id):
                await self._withdraw(turn)
            raise
        if not version:
            with suppress(NotSharedError):
                await self._journal.share_whole(begun)
        return begun

    async def _withdraw(self, turn: Turn) -> None:
        try:
            await asyncio.shield(self._runs.withdraw(turn))
        except RunsUnavailableError:
            log.warning("the session of turn %s stays claimed until its lease runs out", turn.turn_id)

    async def _check_alone(self, session_id: str, *, known: bool) -> None:
        """With Redis away a session goes on where its last turn ran: there is its history.

        Raises:
            StorageUnavailableError: that is not here, as far as is known.
        """
        if not known or not await self._local.last_ran_here(session_id):
            raise StorageUnavailableError("this session was answered by another engine, which cannot be asked now")
