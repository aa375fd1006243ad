"""Watches for lost deliveries: requests that the group assigned to a consumer that never got the reply."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from redis import Redis

from plugins_contract.keys import GROUP, Keys

LOOK_SECONDS = 0.2
_LOOK = """
local oldest = {0, ''}
local rows = redis.pcall('XPENDING', KEYS[1], ARGV[1], '-', '+', 10000)
if rows.err then return oldest end
for _, row in ipairs(rows) do
  local entry = redis.call('XRANGE', KEYS[1], row[1], row[1])[1]
  if entry and row[3] > oldest[1] then
    local fields = {}
    for at = 1, #entry[2], 2 do fields[entry[2][at]] = entry[2][at + 1] end
    local call = redis.call('HMGET', ARGV[2] .. fields.correlationId, 'state', 'starts')
    -- A worker begins at once what it takes, unless it has not the server and passes the call on.
    local passed_on = string.find(fields.event, '"server":"' .. ARGV[3] .. '"', 1, true)
    if call[1] == 'published' and call[2] == '0' and not passed_on then oldest = {row[3], fields.correlationId} end
  end
end
return oldest
"""


@dataclass
class LostDeliveries:
    """What was seen so far."""

    oldest_seconds: float = 0.0
    """The longest that a request stood as delivered without being begun."""
    whose: str = ""
    looks: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def watch(self, url: str, passed_on: str) -> None:
        """Look again and again, until stopped."""
        client: Any = Redis.from_url(url, decode_responses=True)
        with client:
            while not self._stop.wait(LOOK_SECONDS):
                idle_ms, call = client.eval(_LOOK, 1, Keys().requests, GROUP, Keys().call(""), passed_on)
                self.looks += 1
                if idle_ms / 1000 > self.oldest_seconds:
                    self.oldest_seconds, self.whose = idle_ms / 1000, call

    def stop(self) -> None:
        """No more looks."""
        self._stop.set()


@contextmanager
def watched(url: str, *, passed_on: str = "") -> Generator[LostDeliveries]:
    """Watch the request stream at `url`, which is not broken itself, for as long as the block.

    `passed_on` is a server that not every worker has.
    """
    lost_deliveries = LostDeliveries()
    thread = threading.Thread(target=lost_deliveries.watch, args=(url, passed_on), name="lost_deliveries")
    thread.start()
    try:
        yield lost_deliveries
    finally:
        lost_deliveries.stop()
        thread.join()
