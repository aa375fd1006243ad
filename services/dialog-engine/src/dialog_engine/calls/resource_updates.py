"""Updates of resources, as workers announce them: they spoil what is kept, and go to turns and readers of events."""

import asyncio
from collections.abc import Callable

import msgspec

from dialog_engine.calls.read_cache import ReadCache
from plugins_contract.reads import MAX_URI_CHARS
from plugins_contract.updates import MAX_WATCHED, ResourcesUpdated

MAX_PENDING = 1_000
"""How many announcements may wait to be passed on; more are dropped, but have spoilt what is kept."""


class ResourceUpdates:
    """Receives announcements, and passes them on in a loop of its own."""

    def __init__(self, cache: ReadCache) -> None:
        self._cache = cache
        self._pending: list[ResourcesUpdated] = []
        self._news = asyncio.Event()

    def receive(self, update: ResourcesUpdated | None) -> None:
        """An announcement has come; None: some may have been missed."""
        if update is None:
            self._cache.clear()
            return
        uris = tuple(uri for uri in update.uris[:MAX_WATCHED] if len(uri) <= MAX_URI_CHARS)
        self._cache.spoil(update.server, uris)
        if len(self._pending) < MAX_PENDING:
            self._pending.append(msgspec.structs.replace(update, uris=uris))
            self._news.set()

    async def run(self, *receivers: Callable[[ResourcesUpdated], None]) -> None:
        """Pass on what has come, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            pending, self._pending = self._pending, []
            for update in pending:
                for receive in receivers:
                    receive(update)
