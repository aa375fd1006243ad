"""Looks for phantoms: requests delivered to a consumer that does not know of it, because the reply was lost."""

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
    local fields = entry[2]
    for at = 1, #fields, 2 do
      if fields[at] == 'correlationId' then
        local call = redis.call('HMGET', ARGV[2] .. fields[at + 1], 'state', 'fence')
        -- A worker begins what it takes at once. A fence that was raised before is a call that was given back.
        if call[1] == 'published' and call[2] == '0' then oldest = {row[3], fields[at + 1]} end
      end
    end
  end
end
return oldest
"""


@dataclass
class Phantoms:
    """What was seen so far."""

    oldest_seconds: float = 0.0
    """The longest that a request stood as delivered without being begun."""
    whose: str = ""
    looks: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def watch(self, url: str) -> None:
        """Look again and again, until stopped."""
        client: Any = Redis.from_url(url, decode_responses=True)
        with client:
            while not self._stop.wait(LOOK_SECONDS):
                idle_ms, call = client.eval(_LOOK, 1, Keys().requests, GROUP, Keys().call(""))
                self.looks += 1
                if idle_ms / 1000 > self.oldest_seconds:
                    self.oldest_seconds, self.whose = idle_ms / 1000, call

    def stop(self) -> None:
        """No more looks."""
        self._stop.set()


@contextmanager
def watched(url: str) -> Generator[Phantoms]:
    """Watch the request stream at `url`, which is not broken itself, for as long as the block."""
    phantoms = Phantoms()
    thread = threading.Thread(target=phantoms.watch, args=(url,), name="phantoms")
    thread.start()
    try:
        yield phantoms
    finally:
        phantoms.stop()
        thread.join()
