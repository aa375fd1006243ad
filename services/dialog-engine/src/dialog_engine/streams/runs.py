"""Run leases and shared copies of sessions in Redis. Every step is one script, on the clock of Redis."""

import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import msgspec
from redis.asyncio import Redis

from dialog_engine.chat.copies import SessionCopy, SessionHead, decoded
from dialog_engine.chat.journal import Change, JournalEntry
from dialog_engine.chat.runs import (
    Busy,
    Claim,
    Claimed,
    Forgotten,
    NotTaken,
    Renewal,
    Run,
    Runs,
    RunsUnavailableError,
    SharedCopies,
    Taken,
    UnknownSession,
)
from dialog_engine.model import Turn
from dialog_engine.streams import scripts
from dialog_engine.streams.patience import Patience
from plugins_contract.connections import is_outage
from plugins_contract.keys import Keys

LEASE_MS = 10_000
LONG_LIFE_MS = 60_000
"""From one takeover of a turn to the next: after so long its engine did not die of the turn."""
ANSWER_SECONDS = 2.0
"""How long Redis has to answer; so long a silence is an outage."""
RENEWED_AT_ONCE = 500
TAKEN_AT_ONCE = 16
FORGOTTEN_AT_ONCE = 500
"""Of so many deleted sessions an engine hears at once: one that begins anew hears of all, of many days."""


class RedisRuns(Runs, SharedCopies):
    """The leases of one engine, and the copies. `ttl_seconds` is how long a copy stays after its last change.

    While `available` says no, Redis is not asked: nobody waits for what is known not to answer.
    """

    def __init__(
        self,
        redis: Redis,
        keys: Keys,
        engine_id: str,
        *,
        ttl_seconds: int,
        lease_ms: int = LEASE_MS,
        available: Callable[[], bool] = lambda: True,
        patience: Patience | None = None,
    ) -> None:
        self._redis = redis
        self._keys = keys
        self.engine_id = engine_id
        self._ttl = ttl_seconds
        self._lease_ms = lease_ms
        self._available = available
        self._patience = patience or Patience()

    async def claim(self, turn: Turn, *, known: bool, wait_seconds: float = 0) -> Claim:
        whose = [turn.turn_id, turn.session_id, self.engine_id, turn.subject, int(known)]
        answer = await self._script(
            "claim", self._run_keys(turn), [*whose, self._lease_ms, self._ttl, int(wait_seconds * 1000)]
        )
        match answer:
            case [b"OK", version]:
                return Claimed(version)
            case [b"BUSY", running]:
                return Busy(running.decode())
            case [b"FORGOTTEN"]:
                return Forgotten()
            case _:
                return UnknownSession()

    async def leave(self, turn: Turn) -> None:
        await self._script("leave", [self._keys.waiting(turn.session_id)], [turn.turn_id, *self._ring(turn.session_id)])

    async def renew(self, turns: Sequence[Turn]) -> list[Renewal]:
        renewals: list[Renewal] = []
        for at in range(0, len(turns), RENEWED_AT_ONCE):
            part = turns[at : at + RENEWED_AT_ONCE]
            pairs = [value for turn in part for value in (turn.turn_id, turn.epoch)]
            keys = [self._keys.runs, *(self._keys.run(turn.turn_id) for turn in part)]
            answers = await self._script("renew", keys, [self.engine_id, self._lease_ms, *pairs])
            renewals += [Renewal(answer.decode()) for answer in answers]
        return renewals

    async def run_out(self) -> list[str]:
        async with self._answering():
            seconds, microseconds = await _asked(self._redis.time())
            now = seconds * 1000 + microseconds // 1000
            found = await _asked(self._redis.zrangebyscore(self._keys.runs, 1, now, start=0, num=TAKEN_AT_ONCE))
        return [turn_id.decode() for turn_id in found]

    async def given_up(self) -> list[str]:
        async with self._answering():
            found = await _asked(self._redis.zrangebyscore(self._keys.runs, 0, 0, start=0, num=TAKEN_AT_ONCE))
        return [turn_id.decode() for turn_id in found]

    async def look(self, turn_id: str) -> Run | None:
        async with self._answering():
            found = await _asked(self._redis.hmget(self._keys.run(turn_id), ["session", "engine", "epoch", "ended"]))
        session_id, engine_id, epoch, ended = found
        return None if session_id is None else Run(session_id.decode(), engine_id.decode(), int(epoch), ended == b"1")

    async def take(self, turn_id: str, run: Run) -> Taken | NotTaken:
        answer = await self._script(
            "take",
            [self._keys.runs, self._keys.run(turn_id)],
            [turn_id, self.engine_id, run.epoch, self._lease_ms, self._ttl, LONG_LIFE_MS],
        )
        match answer:
            case [b"OK", epoch, stopped, cut_short]:
                return Taken(epoch, bool(stopped), cut_short)
            case _:
                return NotTaken()

    async def give_up(self, turn: Turn) -> None:
        await self._release(turn, withdraw=False)

    async def withdraw(self, turn: Turn) -> None:
        await self._release(turn, withdraw=True)

    async def stop(self, turn_id: str) -> bool:
        message = msgspec.json.encode({"kind": "stop", "turnId": turn_id})
        return await self._script("stop", [self._keys.run(turn_id)], [self._keys.engines, message]) == [b"ASKED"]

    async def head(self, session_id: str) -> tuple[SessionHead, int] | Forgotten | None:
        [found] = await self._heads([session_id])
        return found

    async def whole(self, session_id: str) -> SessionCopy | Forgotten | None:
        async with self._answering():
            fields: dict[bytes, bytes] = await _asked(self._redis.hgetall(self._keys.session(session_id)))
        known = {name.decode(): value for name, value in fields.items()}
        head = _head(session_id, [known.get(name) for name in _HEAD])
        if not isinstance(head, tuple):
            return head
        return SessionCopy(*head, tuple(decoded(known)))

    async def newest(self, subject: str, *, limit: int, before: int | None) -> list[SessionHead]:
        below = "+inf" if before is None else f"({before}"
        async with self._answering():
            found = await _asked(
                self._redis.zrevrangebyscore(self._keys.sessions_of(subject), below, "-inf", start=0, num=limit)
            )
        heads = await self._heads([session_id.decode() for session_id in found])
        return [head[0] for head in heads if isinstance(head, tuple)]

    async def forget(self, session_id: str, subject: str) -> Busy | UnknownSession | None:
        answer = await self._script(
            "forget",
            [self._keys.session(session_id), self._keys.sessions_of(subject), self._keys.forgotten],
            [session_id, subject, self._ttl],
        )
        match answer:
            case [b"OK"]:
                return None
            case [b"BUSY", running]:
                return Busy(running.decode())
            case _:
                return UnknownSession()

    async def forgotten_since(self, at: int) -> list[tuple[str, int]]:
        async with self._answering():
            found = await _asked(
                self._redis.zrangebyscore(
                    self._keys.forgotten, at, "+inf", start=0, num=FORGOTTEN_AT_ONCE, withscores=True
                )
            )
        return [(session_id.decode(), int(when)) for session_id, when in found]

    def share_command(self, entry: JournalEntry, change: Change) -> tuple[list[str], list[Any]]:
        """Keys and arguments of the script that shares a journal entry."""
        rows = [part for name, row in change.rows.items() for part in (name, bytes(row))]
        keys = [
            self._keys.session(entry.session_id),
            self._keys.run(entry.turn_id),
            self._keys.runs,
            self._keys.sessions_of(change.subject),
            self._keys.waiting(entry.session_id),
        ]
        head = [change.subject, change.title, _or_empty(change.created_at), _or_empty(change.updated_at)]
        owner = [entry.session_id, entry.turn_id, self.engine_id, entry.epoch, entry.step, self._lease_ms, self._ttl]
        return keys, [*owner, *head, *self._ring(entry.session_id), *rows]

    async def _release(self, turn: Turn, *, withdraw: bool) -> None:
        args = [turn.turn_id, self.engine_id, turn.epoch, int(withdraw), *self._ring(turn.session_id)]
        await self._script("release", self._run_keys(turn), args)

    def _run_keys(self, turn: Turn) -> list[str]:
        keys = self._keys
        return [keys.session(turn.session_id), keys.run(turn.turn_id), keys.runs, keys.waiting(turn.session_id)]

    def _ring(self, session_id: str) -> list[Any]:
        """Where those who wait for a session listen, and what they are told."""
        return [self._keys.engines, msgspec.json.encode({"kind": "free", "sessionId": session_id})]

    async def _heads(self, session_ids: Sequence[str]) -> list[tuple[SessionHead, int] | Forgotten | None]:
        pipeline = self._redis.pipeline(transaction=False)
        for session_id in session_ids:
            pipeline.hmget(self._keys.session(session_id), list(_HEAD))
        async with self._answering():
            found = await pipeline.execute() if session_ids else []
        return [_head(session_id, values) for session_id, values in zip(session_ids, found, strict=True)]

    async def _script(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> list[Any]:
        async with self._answering():
            return await scripts.run(self._redis, name, keys, args)

    @contextlib.asynccontextmanager
    async def _answering(self) -> AsyncGenerator[None]:
        if not self._available():
            raise RunsUnavailableError("Redis does not answer")
        try:
            async with self._patience.within(ANSWER_SECONDS):
                yield
        except Exception as error:
            if isinstance(error, TimeoutError) or is_outage(error):
                raise RunsUnavailableError(f"Redis does not answer: {type(error).__name__}") from error
            raise


_HEAD = ("subject", "title", "createdAt", "updatedAt", "running", "version", "forgotten")


def _head(session_id: str, values: Sequence[bytes | None]) -> tuple[SessionHead, int] | Forgotten | None:
    subject, title, created_at, updated_at, running, version, forgotten = values
    if forgotten is not None:
        return Forgotten()
    if subject is None:
        return None
    head = SessionHead(
        session_id,
        subject.decode(),
        (title or b"").decode(),
        int(created_at or 0),
        int(updated_at or 0),
        running.decode() if running else None,
    )
    return head, int(version or 0)


def _or_empty(value: int | None) -> int | str:
    return "" if value is None else value


async def _asked(answer: Any) -> Any:
    """redis-py types some commands as either awaitable or not."""
    return await answer
