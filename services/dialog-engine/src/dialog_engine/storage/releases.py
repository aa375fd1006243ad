"""Engines of earlier releases that share the database: what they do not know is not done while one lives."""

import asyncio
import logging

from callstream_runtime.outage_log import OutageLog
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.storage.store import EngineDatabase
from dialog_engine.tool_calls.questions.values import MayAsk

log = logging.getLogger(__name__)

SINCE = (0, 2)
"""The first release that parks turns and knows questions of servers. One before it would ask the model again."""
OTHER_ENGINES = "SELECT release FROM engines WHERE engine_id <> $1 AND lease_until <> 0"
LOOK_SECONDS = 1.0


def is_older(release: str) -> bool:
    """Whether an engine of this release does not know them. A release that cannot be read is taken for one."""
    parts = release.split(".")[:2]
    return not all(part.isdecimal() for part in parts) or tuple(map(int, parts)) < SINCE


class Releases:
    """The releases of the living engines, as this one read them last."""

    def __init__(self, engine: EngineDatabase) -> None:
        self._engine = engine
        self._outages = OutageLog(log, "reading the releases of engines")
        self.may_ask = MayAsk()
        """Allowed while no engine of an earlier release lives."""

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            try:
                rows = await self._engine.read(OTHER_ENGINES, self._engine.engine_id)
                self.may_ask.allowed = not any(is_older(row.release) for row in rows)
            except StorageUnavailableError as error:
                self._outages.failed(error)
            else:
                self._outages.worked()
            await asyncio.sleep(LOOK_SECONDS)
