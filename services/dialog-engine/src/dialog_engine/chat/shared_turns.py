"""Turns, whichever engine is asked: one at a time per session, and stopped from anywhere."""

import asyncio
import logging
from contextlib import suppress

from dialog_engine.chat.imports import Imports
from dialog_engine.chat.journal import Journal, NotSharedError
from dialog_engine.chat.lines import Lines
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
from dialog_engine.model import Choice, Turn
from plugins_contract.ids import new_id

log = logging.getLogger(__name__)

ENDING_SECONDS = 0.5
"""How long a turn of another engine may take to be known as ended, after its last event was told."""
QUEUE_SECONDS = 60.0
"""How long a message waits at most for the running turn of its session, when its user asked for that."""
ASK_AGAIN_SECONDS = 2.0
"""How often one that waits asks whether it is next, should it not be told."""
KEPT_SECONDS = 8.0
"""How long its place is kept without that: the engine it waits at is gone."""
POLL_SECONDS = 0.1


class SharedTurns:
    """What users do with turns."""

    def __init__(self, turns: RunningTurns, runs: Runs, local: LocalCopies, journal: Journal, imports: Imports) -> None:
        self._turns = turns
        self._runs = runs
        self._local = local
        self._journal = journal
        self._imports = imports
        self.lines = Lines()
        turns.on_end = lambda turn: self.lines.ring(turn.session_id)

    async def start(
        self,
        subject: str,
        session_id: str | None,
        text: str,
        traceparent: str | None = None,
        *,
        queue: bool = False,
        choice: Choice = Choice(),
    ) -> Turn:
        """Commit the user's message and run the turn here; in a new session when none is given. When this returns every
        engine knows the turn, unless Redis is away.

        With `queue` the message waits for its turn behind those that came before it, at whichever engine; one whose
        caller goes away meanwhile (is cancelled) is not accepted.

        Raises:
            SessionNotFoundError, StorageUnavailableError: nothing was begun.
            TurnRunningError: likewise; with `queue`, after having waited for QUEUE_SECONDS.
        """
        if session_id is None:
            begun = await self._turns.start(subject, None, text, traceparent, choice=choice)
        else:
            turn = Turn(new_id(), session_id, subject, traceparent=traceparent, choice=choice)
            begun = await (self._in_line(turn, text) if queue else self._now(turn, text))
        with suppress(NotSharedError):
            await self._journal.settled()
        return begun

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

    async def _now(self, turn: Turn, text: str) -> Turn:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while True:
            try:
                return await self._begin(turn, text)
            except TurnRunningError as error:
                if self._turns.runs(error.turn_id) or loop.time() - begun > ENDING_SECONDS:
                    raise
            await asyncio.sleep(POLL_SECONDS)

    async def _in_line(self, turn: Turn, text: str) -> Turn:
        loop = asyncio.get_running_loop()
        gives_up_at = loop.time() + QUEUE_SECONDS
        with self.lines.place(turn) as place:
            try:
                while True:
                    try:
                        return await self._begin(turn, text, wait_seconds=KEPT_SECONDS)
                    except TurnRunningError as error:
                        left = gives_up_at - loop.time()
                        if left <= 0:
                            raise TurnRunningError(error.turn_id, waited_seconds=QUEUE_SECONDS) from None
                    await place.rung(min(left, ASK_AGAIN_SECONDS))
                    with suppress(NotSharedError):
                        await self._journal.settled()  # the end of the turn that ran here may be on its way
            except BaseException:
                await self._leave(turn)
                raise

    async def _leave(self, turn: Turn) -> None:
        with suppress(RunsUnavailableError):
            await asyncio.shield(self._runs.leave(turn))

    async def _begin(self, turn: Turn, text: str, *, wait_seconds: float = 0) -> Turn:
        known = await self._local.version(turn.session_id) is not None
        try:
            claim = await self._runs.claim(turn, known=known, wait_seconds=wait_seconds)
        except RunsUnavailableError:
            await self._check_alone(turn, known=known)
            return await self._start(turn, text)
        except asyncio.CancelledError:
            await self._withdraw(turn)  # it may have been granted, and nobody would use it or give it back
            raise
        match claim:
            case Busy(running):
                raise TurnRunningError(running)
            case UnknownSession():
                raise SessionNotFoundError(f"there is no session {turn.session_id}")
            case Forgotten():
                await self._local.forget([turn.session_id])
                raise SessionNotFoundError(f"there is no session {turn.session_id}")
            case Claimed(version):
                return await self._begin_claimed(turn, text, version)

    async def _start(self, turn: Turn, text: str) -> Turn:
        return await self._turns.start(
            turn.subject, turn.session_id, text, turn.traceparent, turn_id=turn.turn_id, choice=turn.choice
        )

    async def _begin_claimed(self, turn: Turn, text: str, version: int) -> Turn:
        try:
            if version:
                await self._imports.upto(turn.session_id, version)
            begun = await self._start(turn, text)
        except BaseException as error:
            if not self._turns.runs(turn.turn_id):
                await self._withdraw(turn)
            if isinstance(error, RunsUnavailableError):
                raise StorageUnavailableError("what was said in this session cannot be read now: try again") from error
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

    async def _check_alone(self, turn: Turn, *, known: bool) -> None:
        """With Redis away a session goes on where its last turn ran: there is its history.

        Raises:
            StorageUnavailableError: that is not here, as far as is known.
            TurnRunningError: somebody else came before it.
        """
        if not known:
            raise StorageUnavailableError(
                "this session is not known here, and no other engine can be asked now: try again"
            )
        if not await self._local.last_ran_here(turn.session_id):
            raise StorageUnavailableError("this session was answered by another engine, which cannot be asked now")
        first = self.lines.first(turn.session_id)
        if first is not None and first is not turn:
            raise TurnRunningError(first.turn_id)
