"""Sessions in which nothing runs are put back after Redis has lost its data, by every engine that has them in its file.

A turn that runs puts its session back itself. For all others a mark in Redis says that what this engine has shared is
there; when the mark is gone, so is what was shared with it.
"""

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from dialog_engine.chat.journal import Change, JournalEntry, JournalTable, Step
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.streams import scripts
from dialog_engine.streams.runs import ANSWER_SECONDS, RedisRuns
from plugins_contract.connections import is_outage
from plugins_contract.keys import Keys

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
SESSIONS = 1000
"""So many are put back at most, those first that were used last."""
AT_ONCE = 8
PAUSE_SECONDS = 0.02
"""Between some and the next, so that nobody who is answered meanwhile notices."""
MARKED, BEGUN = "marked", "begun"
"""The fields of the mark; the second as long as not all is back."""


class Reseeding:
    """Looks for the mark of one engine. `ttl_seconds` is how long Redis keeps sessions, and so the mark."""

    def __init__(self, table: JournalTable, redis: Redis, keys: Keys, runs: RedisRuns, *, ttl_seconds: int) -> None:
        self._table = table
        self._redis = redis
        self._runs = runs
        self._ttl = ttl_seconds
        self._mark = keys.seeded(runs.engine_id)

    async def run(self) -> None:
        """Look, for ever."""
        while True:
            try:
                await self.look()
            except StorageUnavailableError as error:
                log.warning("sessions cannot be read to be put back: %s", error)
            except Exception as error:
                if not is_outage(error):
                    log.exception("sessions cannot be put back")
            await asyncio.sleep(LOOK_SECONDS * random.uniform(0.75, 1.25))

    async def look(self) -> None:
        """Put back what Redis has lost, if it has.

        Raises:
            RedisError, OSError, StorageUnavailableError: not all of it could be; look again.
        """
        marked, begun = await _asked(self._redis.hmget(self._mark, [MARKED, BEGUN]))
        if marked and not begun:
            return
        await _asked(self._redis.hset(self._mark, mapping={MARKED: 1, BEGUN: 1}))
        await self._redis.expire(self._mark, self._ttl)
        since_ms = round((time.time() - self._ttl) * 1000)
        sessions = await self._table.idle_since(since_ms, SESSIONS)
        for at in range(0, len(sessions), AT_ONCE):
            await self._put_back(sessions[at : at + AT_ONCE])
            await asyncio.sleep(PAUSE_SECONDS)
        # There is no mark to take it from if Redis has lost its data again meanwhile: then all of it is done anew.
        await _asked(self._redis.hdel(self._mark, BEGUN))
        if sessions:
            log.info("%d sessions are shared anew: Redis did not know of this engine", len(sessions))

    async def _put_back(self, session_ids: Sequence[str]) -> None:
        changes = [(session_id, await self._table.ended(session_id)) for session_id in session_ids]
        commands = [self._command(session_id, change) for session_id, change in changes if change is not None]
        async with asyncio.timeout(ANSWER_SECONDS):
            answers = await scripts.run_each(self._redis, scripts.load("share"), commands)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer

    def _command(self, session_id: str, change: Change) -> scripts.Command:
        return self._runs.share_command(JournalEntry(0, session_id, "", 0, Step.AGAIN, b""), change)


async def _asked(answer: Any) -> Any:
    """redis-py types some commands as either awaitable or not."""
    return await answer
