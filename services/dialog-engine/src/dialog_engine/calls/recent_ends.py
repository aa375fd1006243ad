"""The calls that this engine ended last, before any worker began them.

A server of Redis that lost such an end has the request on its stream, as if nobody had ended it, and a worker that was
not notified of the end would run it. So each new server gets these ends again; workers start no `once` call of an
earlier server before that (`STOPS_MS`).
"""

import asyncio
import logging
import time
from collections import deque

import msgspec

from callstream_runtime.clock import RedisWatch
from callstream_runtime.redis_errors import RedisUnavailable
from plugins_contract.ledger import RECENT_SECONDS, EngineLedger
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import ToolOutcome

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
_MOST_RECENT = 10_000
_AT_ONCE = 500


class RecentEnds:
    """What one engine ended in the last RECENT_SECONDS in which Redis was the same server."""

    def __init__(self, ledger: EngineLedger, watch: RedisWatch) -> None:
        self._ledger = ledger
        self._watch = watch
        self._server: str | None = None
        """The run id of the server that has all ends."""
        self._kept: deque[tuple[float, ToolCallRequested, ToolOutcome]] = deque(maxlen=_MOST_RECENT)

    def add(self, request: ToolCallRequested, outcome: ToolOutcome) -> None:
        """The call was ended with `outcome`, and no worker had begun it."""
        self._kept.append((time.monotonic(), msgspec.structs.replace(request, arguments={}), outcome))

    async def run(self) -> None:
        """Write the ends to each new server, until cancelled."""
        while True:
            if self._watch.available and self._watch.run_id == self._server:
                self._forget_old()
            elif self._watch.available:
                await self._write_again(self._watch.run_id)
            await asyncio.sleep(LOOK_SECONDS)

    def _forget_old(self) -> None:
        until = time.monotonic() - RECENT_SECONDS
        while self._kept and self._kept[0][0] < until:
            self._kept.popleft()

    async def _write_again(self, server: str | None) -> None:
        ends = [(request, outcome) for _, request, outcome in self._kept]
        for at in range(0, len(ends), _AT_ONCE):
            answers = await asyncio.gather(
                *(self._ledger.cancel(request, outcome) for request, outcome in ends[at : at + _AT_ONCE]),
                return_exceptions=True,
            )
            for error in answers:
                if isinstance(error, RedisUnavailable):
                    return
                if isinstance(error, Exception):
                    log.error("the end of a call cannot be written again", exc_info=error)
        self._server = server
