"""Removes from Redis what a deleted session left there: ledgers, channels, turn logs, notifications, facts."""

import logging
from collections.abc import AsyncGenerator, Collection
from typing import Any

import msgspec
from redis.asyncio import Redis

from dialog_engine.chat.archive import DeletedSession
from dialog_engine.chat.personal_data import Traces
from plugins_contract.connections import describe_outage, is_outage
from plugins_contract.keys import Keys
from plugins_contract.messages import NOT_READABLE

log = logging.getLogger(__name__)

PAGE = 1000
EARLIER_MS = 60_000
"""Entries are read from this much before the session began: the clocks of the store and of Redis may differ."""

_Fields = dict[bytes, bytes]


class RedisTraces(Traces):
    """Erases what can be found by the ids of the session's turns and calls."""

    def __init__(self, redis: Redis, keys: Keys, facts: str) -> None:
        """`facts` is the stream of `TurnFinished`."""
        self._redis: Any = redis  # redis-py types its commands only partly
        self._keys = keys
        self._facts = keys.route(facts)

    async def erase(self, session: DeletedSession) -> None:
        try:
            await self._erase(session)
        except Exception as error:
            if not is_outage(error):
                raise
            log.warning(
                "session %s is deleted, and its traces in Redis are not: %s", session.session_id, describe_outage(error)
            )

    async def _erase(self, session: DeletedSession) -> None:
        calls, turns = session.correlation_ids, session.turn_ids
        since = max(0, session.created_at - EARLIER_MS)
        for mailbox in await self._mailboxes(calls):
            await self._drop(mailbox, since, "id", calls)
        # After the mailboxes, which the ledgers name.
        names = [key(call) for call in calls for key in (self._keys.call, self._keys.response)]
        if names := [*names, *(self._keys.turn(turn) for turn in turns)]:
            await self._redis.delete(*names)
        await self._drop(self._keys.dead, since, "correlationId", calls)
        await self._drop(self._facts, since, "turnId", turns)

    async def _mailboxes(self, calls: Collection[str]) -> set[str]:
        pipeline = self._redis.pipeline(transaction=False)
        for call in calls:
            pipeline.hget(self._keys.call(call), "mailbox")
        found: list[bytes | None] = await pipeline.execute()
        return {name.decode() for name in found if name}

    async def _drop(self, stream: str, since: int, name: str, ids: Collection[str]) -> None:
        """Delete the entries that name one of `ids` in a field, or in the JSON of their event."""
        if not ids:
            return
        async for entries in self._pages(stream, since):
            gone = [entry for entry, fields in entries if _value(fields, name) in ids]
            if gone:
                await self._redis.xdel(stream, *gone)

    async def _pages(self, stream: str, since: int) -> AsyncGenerator[list[tuple[bytes, _Fields]], None]:
        start = str(since)
        while True:
            page: list[tuple[bytes, _Fields]] = await self._redis.xrange(stream, start, "+", count=PAGE)
            yield page
            if len(page) < PAGE:
                return
            start = f"({page[-1][0].decode()}"


def _value(fields: _Fields, name: str) -> str:
    if (value := fields.get(name.encode())) is not None:
        return value.decode(errors="replace")
    try:
        return str(msgspec.json.decode(fields.get(b"event", b"{}"), type=dict[str, Any]).get(name, ""))
    except NOT_READABLE:
        return ""
