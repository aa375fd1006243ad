"""Hears what engines tell each other about a turn. A stop that is missed is found at the next renewal; who waits for a
decision to be taken is told that nobody did, and asks again; who waits for a session asks every few seconds anyway."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing

import msgspec
from redis.asyncio import Redis

from plugins_contract.announcements import announcements
from plugins_contract.connections import is_outage
from plugins_contract.keys import Keys

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0


class _Word(msgspec.Struct, rename="camel"):
    kind: str
    turn_id: str = ""
    session_id: str = ""


class Bell:
    """Tells which turn is to be stopped, for which a decision was left, and which session is free. `redis` is a
    blocking client made for announcements."""

    def __init__(
        self,
        redis: Redis,
        keys: Keys,
        on_stop: Callable[[str], None],
        on_decision: Callable[[str], None],
        on_free: Callable[[str], None],
    ) -> None:
        self._redis = redis
        self._keys = keys
        self._on_stop = on_stop
        self._on_decision = on_decision
        self._on_free = on_free

    async def run(self) -> None:
        """Listen, for ever."""
        while True:
            try:
                async with aclosing(announcements(self._redis, self._keys.engines)) as words:
                    async for data in words:
                        if data is not None:
                            self._hear(data)
            except Exception as error:
                if not is_outage(error):
                    log.exception("other engines cannot be heard")
            await asyncio.sleep(RETRY_SECONDS)

    def _hear(self, data: bytes) -> None:
        try:
            word = msgspec.json.decode(data, type=_Word)
        except msgspec.DecodeError:
            log.warning("another engine said what cannot be read: %.100r", data)
            return
        match word.kind:
            case "stop":
                self._on_stop(word.turn_id)
            case "decision":
                self._on_decision(word.turn_id)
            case "free":
                self._on_free(word.session_id)
            case _:
                pass  # of a newer release
