"""What this engine keeps of resources that were read: as long as their server says, and for whom it says. Pure."""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plugins_contract.outcomes import MediaBlock, TextBlock, ToolOutcome
from plugins_contract.reads import ResourceRead
from plugins_contract.updates import WATCHED_MS

MAX_BYTES = 32 * 1024 * 1024
MAX_ENTRIES = 1_000
PUBLIC = "public"


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads. What a server calls private is kept for one of them: `roles` decide what a worker lets be read."""

    subject: str
    roles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Entry:
    outcome: ToolOutcome
    ends_at: float
    size: int


class ReadCache:
    """The least recently used entries go first. Whether somebody may read a resource at all is checked before."""

    def __init__(
        self,
        *,
        max_bytes: int = MAX_BYTES,
        max_entries: int = MAX_ENTRIES,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bounded in bytes of content and in entries; `now` is in seconds."""
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._now = now
        self._entries: OrderedDict[tuple[str, str, Reader | None], _Entry] = OrderedDict()
        self._spoilt: Counter[str] = Counter()
        self.size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, server: str, uri: str, reader: Reader) -> ToolOutcome | None:
        """What is kept for this reader."""
        for key in ((server, uri, reader), (server, uri, None)):
            entry = self._entries.get(key)
            if entry is None:
                continue
            if self._now() < entry.ends_at:
                self._entries.move_to_end(key)
                return entry.outcome
            self._remove(key)
        return None

    def mark(self, server: str) -> int:
        """What `put` needs to know of the time before the read."""
        return self._spoilt[server] + self._spoilt[""]

    def put(self, server: str, uri: str, reader: Reader, read: ResourceRead, outcome: ToolOutcome, mark: int) -> None:
        """Keep the outcome of a read, if its server says for how long, and nothing of the server was updated since the
        `mark`. Never for longer than updates of the resource are watched."""
        size = sum(_size(block) for block in outcome.content)
        if not read.ttl_ms or read.ttl_ms < 0 or mark != self.mark(server) or size > self._max_bytes:
            return
        key = (server, uri, None if read.cache_scope == PUBLIC else reader)
        self._remove(key)
        self._entries[key] = _Entry(outcome, self._now() + min(read.ttl_ms, WATCHED_MS) / 1000, size)
        self.size += size
        while self.size > self._max_bytes or len(self._entries) > self._max_entries:
            self._remove(next(iter(self._entries)))

    def spoil(self, server: str, uris: Sequence[str]) -> None:
        """These were updated."""
        self._spoilt[server] += 1
        changed = {*uris}
        for key in [key for key in self._entries if key[0] == server and key[1] in changed]:
            self._remove(key)

    def clear(self) -> None:
        """Updates may have been missed."""
        self._spoilt[""] += 1
        self._entries.clear()
        self.size = 0

    def _remove(self, key: tuple[str, str, Reader | None]) -> None:
        if entry := self._entries.pop(key, None):
            self.size -= entry.size


def _size(block: object) -> int:
    match block:
        case TextBlock(text=text):
            return len(text)
        case MediaBlock(data=data):
            return len(data)
        case _:
            return 0
