"""Removes from Redis what erased sessions left: ledgers, channels, turn logs, notifications, dead letters, facts, and
which workers keep the state of MCP servers for them: these end that.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from typing import Any

import msgspec
from redis.asyncio import Redis

from callstream_runtime.outage_log import OutageLog
from callstream_runtime.redis_errors import RedisUnavailable
from dialog_engine.personal_data.service import ErasedSession, Traces
from plugins_contract.keys import Keys
from plugins_contract.ledger.session_leases import forget_sessions
from plugins_contract.messages import NOT_READABLE
from plugins_contract.outcomes import CallState
from plugins_contract.sessions import SessionMode, owner

log = logging.getLogger(__name__)

PAGE = 1000
EARLIER_MS = 60_000
"""Entries are read from this much before a session began: the clocks of the store and of Redis may differ."""

_Fields = dict[bytes, bytes]


class _Event(msgspec.Struct, rename="camel"):
    """What a request and a fact have in common."""

    turn_id: str = ""


_event_decoder = msgspec.json.Decoder(_Event)


class RedisEraser(Traces):
    """Erases what can be found by the ids of turns and calls. Each stream is read once, however many sessions there
    are."""

    def __init__(self, redis: Redis, keys: Keys, facts: Iterable[str]) -> None:
        """`facts` are the streams of `TurnFinished` and `ToolCallFinished`."""
        self._redis: Any = redis  # redis-py types its commands only partly
        self._keys = keys
        self._facts = sorted({keys.route(stream) for stream in facts})
        self._outages = OutageLog(log, "Redis for erasures")

    async def erase(self, sessions: Sequence[ErasedSession]) -> Collection[str]:
        try:
            clean = await self._erase(sessions)
        except RedisUnavailable as error:
            self._outages.failed(error)
            return ()
        self._outages.worked()
        return clean

    async def end_state(self, subject: str = "", session_ids: Sequence[str] = ()) -> bool:
        owners = [owner(SessionMode.SUBJECT, subject)] if subject else []
        owners += [owner(SessionMode.CONVERSATION, each) for each in session_ids]
        try:
            for some in _in_pages(owners):
                await forget_sessions(self._redis, self._keys, some)
        except RedisUnavailable as error:
            self._outages.failed(error)
            return False
        return True

    async def _erase(self, sessions: Sequence[ErasedSession]) -> Collection[str]:
        calls = {call: session.session_id for session in sessions for call in session.correlation_ids}
        turns = frozenset[str]().union(*(session.turn_ids for session in sessions))
        since = max(0, min(session.created_at for session in sessions) - EARLIER_MS)

        def is_theirs(fields: _Fields) -> bool:
            return fields.get(b"correlationId", b"").decode(errors="replace") in calls or _turn_of(fields) in turns

        owners = [owner(SessionMode.CONVERSATION, session.session_id) for session in sessions]
        for some in _in_pages(owners):
            await forget_sessions(self._redis, self._keys, some)
        mailboxes, running = await self._ledgers([*calls])
        for mailbox in sorted(mailboxes):
            await self._drop(mailbox, since, lambda fields: fields.get(b"id", b"").decode(errors="replace") in calls)
        # After the mailboxes, which the ledgers name.
        ended = [call for call in calls if call not in running]
        names = [key(call) for call in ended for key in (self._keys.call, self._keys.response)]
        names += map(self._keys.turn, turns)
        for some in _in_pages(names):
            await self._redis.delete(*some)
        for stream in (self._keys.dead, *self._facts):
            await self._drop(stream, since, is_theirs)
        return {session.session_id for session in sessions} - {calls[call] for call in running}

    async def _ledgers(self, calls: Sequence[str]) -> tuple[set[str], set[str]]:
        """The mailboxes of these calls, and those of the calls that have not ended: they may still become dead letters,
        and their ledger keeps them from being run twice."""
        mailboxes, running = set[str](), set[str]()
        for some in _in_pages(calls):
            pipeline = self._redis.pipeline(transaction=False)
            for call in some:
                pipeline.hmget(self._keys.call(call), "state", "mailbox")
            answers: list[list[bytes | None]] = await pipeline.execute()
            for call, (state, mailbox) in zip(some, answers, strict=True):
                if mailbox:
                    mailboxes.add(mailbox.decode())
                if state in (CallState.PUBLISHED.encode(), CallState.STARTED.encode()):
                    running.add(call)
        return mailboxes, running

    async def _drop(self, stream: str, since: int, is_theirs: Callable[[_Fields], bool]) -> None:
        async for entries in self._pages(stream, since):
            if gone := [entry for entry, fields in entries if is_theirs(fields)]:
                await self._redis.xdel(stream, *gone)

    async def _pages(self, stream: str, since: int) -> AsyncGenerator[list[tuple[bytes, _Fields]], None]:
        start = str(since)
        while True:
            page: list[tuple[bytes, _Fields]] = await self._redis.xrange(stream, start, "+", count=PAGE)
            yield page
            if len(page) < PAGE:
                return
            start = f"({page[-1][0].decode()}"


def _in_pages(names: Sequence[str]) -> Iterable[Sequence[str]]:
    return (names[at : at + PAGE] for at in range(0, len(names), PAGE))


def _turn_of(fields: _Fields) -> str:
    try:
        return _event_decoder.decode(fields.get(b"event", b"{}")).turn_id
    except NOT_READABLE:
        return ""
