"""Ends turns that were lost: the engine that ran them is gone, and Redis knows nothing of them any more.

Nobody can take such a turn over. An engine that has read its session has it as running, and would for ever answer that
the session is busy.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from dialog_engine.chat.imports import Imports
from dialog_engine.chat.runs import Runs
from dialog_engine.errors import TurnLostError

log = logging.getLogger(__name__)

LOST_SECONDS = 10.0
"""Of so long an absence: an engine that lives shares its turn anew at its next renewal, or lets others have it."""
AT_ONCE = 16


class TurnsElsewhere(Protocol):
    """Turns that this engine's file has as running, and as those of other engines. Raises StorageUnavailableError."""

    async def running(self, after: str, limit: int) -> Sequence[tuple[str, str]]:
        """Such turns as (session, turn), by session, behind the session `after`."""
        ...

    async def end(self, turn_id: str, error: TurnLostError) -> bool:
        """End the copy of one that still is such a turn, and share what is known of its session where that is missing.
        Whether it was ended."""
        ...


class Orphans:
    """The turns of other engines, some at a look. `clock` tells seconds."""

    def __init__(
        self, turns: TurnsElsewhere, runs: Runs, imports: Imports, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._turns = turns
        self._runs = runs
        self._imports = imports
        self._clock = clock
        self._after = ""
        self._missing: dict[str, float] = {}
        """Since when, of those that were missing at their last look."""
        self._met: dict[str, float] = {}

    async def some(self) -> Sequence[tuple[str, str]]:
        """The next to look at, as (session, turn)."""
        if not self._after:  # a round begins; who was not missing in all of the last one is not missing for long
            self._missing, self._met = self._met, {}
        found = await self._turns.running(self._after, AT_ONCE)
        self._after = found[-1][0] if len(found) == AT_ONCE else ""
        return found

    async def look(self, session_id: str, turn_id: str) -> None:
        """End the turn if nobody has known of it for long; take its end in if it has ended elsewhere.

        Raises:
            RunsUnavailableError, StorageUnavailableError: nobody can tell now.
        """
        run = await self._runs.look(turn_id)
        if run is not None and not run.ended:
            return
        if run is None and not self._long_missing(turn_id):
            return
        await self._imports.fetch(session_id)  # its end may be told there: Redis may have lost the run alone
        if run is None and await self._turns.end(turn_id, TurnLostError()):
            log.warning("turn %s is ended: nobody has known of it for %g seconds", turn_id, LOST_SECONDS)

    def _long_missing(self, turn_id: str) -> bool:
        now = self._clock()
        since = self._missing.get(turn_id, now)
        self._met[turn_id] = since
        return now - since >= LOST_SECONDS
