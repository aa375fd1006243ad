"""Lets go of what is not this engine's any more: turns that moved to another engine, sessions that were deleted."""

import asyncio
import logging
from collections.abc import Callable

from dialog_engine.chat.copies import SessionCopy
from dialog_engine.chat.runs import LocalCopies, RunsUnavailableError, SharedCopies
from dialog_engine.chat.turns import RunningTurns
from dialog_engine.errors import StorageUnavailableError

log = logging.getLogger(__name__)

RETRY_SECONDS = 2.5


class Departures:
    """What is to go from here. `note` is told of each turn that is "lost" to another engine."""

    def __init__(
        self,
        turns: RunningTurns,
        *,
        shared: SharedCopies,
        local: LocalCopies,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._turns = turns
        self._shared = shared
        self._local = local
        self._note = note
        self._moved: dict[str, None] = {}
        self._forgotten: dict[str, None] = {}
        self._forgotten_at = 0
        self._wake = asyncio.Event()

    def __contains__(self, turn_id: str) -> bool:
        """Whether that turn moved, and is in this engine's file as its own."""
        return turn_id in self._moved

    def moved(self, turn_id: str, epoch: int) -> bool:
        """Another engine has run the turn since that epoch was ours. False when it is ours again, in a later one."""
        if any(turn.turn_id == turn_id and turn.epoch > epoch for turn in self._turns.running()):
            return False
        self._turns.passed_over(turn_id)
        self._moved[turn_id] = None
        self._wake.set()
        return True

    def forgotten(self, session_id: str) -> None:
        """The session was deleted by another engine."""
        self._forgotten[session_id] = None
        self._wake.set()

    async def run(self) -> None:
        """Let go, for ever."""
        self._wake.set()  # of what an earlier run has left, too
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                while self._moved:
                    await self._lose(next(iter(self._moved)))
                while self._forgotten:
                    await self._forget(next(iter(self._forgotten)))
            except StorageUnavailableError as error:
                log.warning("a turn that moved is still here: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()

    async def look_for_deleted(self) -> None:
        """Forget sessions of which nobody said that they were deleted: they are read from Redis, some at a time.

        Raises:
            RunsUnavailableError, StorageUnavailableError: it cannot be done now.
        """
        deleted = await self._shared.forgotten_since(self._forgotten_at)
        here = [session_id for session_id, _ in deleted if await self._local.version(session_id) is not None]
        if here:
            await self._local.forget(here)
        self._forgotten_at = max((at for _, at in deleted), default=self._forgotten_at)

    async def _lose(self, turn_id: str) -> None:
        log.info("turn %s runs on another engine", turn_id)
        self._note("lost")
        await self._turns.drop(turn_id)
        await self._local.give_away(turn_id, await self._shared_copy(turn_id))
        del self._moved[turn_id]

    async def _shared_copy(self, turn_id: str) -> SessionCopy | None:
        """The session as the turn's new owner shares it; None when it cannot be had now: it is fetched when somebody
        asks for it."""
        known = await self._local.session_of(turn_id)
        if known is None:
            return None
        try:
            copy = await self._shared.whole(known[0])
        except RunsUnavailableError:
            return None
        except Exception:  # rows of a later release
            log.exception("the session of turn %s cannot be read", turn_id)
            return None
        return copy if isinstance(copy, SessionCopy) else None

    async def _forget(self, session_id: str) -> None:
        for turn in self._turns.running():
            if turn.session_id == session_id:
                await self._turns.drop(turn.turn_id)
        await self._local.forget([session_id])
        del self._forgotten[session_id]
