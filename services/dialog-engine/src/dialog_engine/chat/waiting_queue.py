"""Begins the messages that wait, and wakes those who follow one.

Most begin in the transaction that ends the turn before them. Each engine looks once a second for what is left: after
the end of a turn by an engine of an earlier release, after the death of one, and where a place was missing.
"""

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from callstream_runtime.outage_log import OutageLog
from dialog_engine.chat.ports import Credentials, TurnLimits, TurnSlot
from dialog_engine.chat.waiting_messages import Candidate, HeldReason, WaitingStore
from dialog_engine.errors import LimitExceededError, StorageUnavailableError

log = logging.getLogger(__name__)

LOOKED_AT = 100
"""How many sessions one look begins a message in at most."""


@dataclass(slots=True)
class Attempt:
    """A candidate with its place among the running turns of its subject. `begun` is set when it was committed."""

    candidate: Candidate
    slot: TurnSlot | None
    begun: bool = False


class WaitingQueue:
    """The messages that wait, as one engine sees them. Once `closed` it begins none."""

    def __init__(self, store: WaitingStore, credentials: Credentials, limits: TurnLimits, look_seconds: float) -> None:
        self._look_seconds = look_seconds
        self.closed = False
        self.store = store
        self._credentials = credentials
        self._limits = limits
        self._followers: defaultdict[str, dict[asyncio.Event, str]] = defaultdict(dict)
        """By session: what wakes each of them, and the message that it follows."""
        self._outages = OutageLog(log, "looking for messages that wait")

    @asynccontextmanager
    async def attempt(self, session_id: str) -> AsyncGenerator[Attempt | None]:
        """The first message of a session with the rights that its sender has now; None when none may begin.

        Its place is given back at the end of the block, unless it has begun.
        """
        attempt = None if self.closed else await self._attempt(session_id)
        try:
            yield attempt
        finally:
            if attempt and attempt.slot and not attempt.begun:
                await attempt.slot.release()

    async def _attempt(self, session_id: str) -> Attempt | None:
        message = await self.store.first(session_id)
        if message is None:
            return None
        turn = message.turn
        rights = await self._credentials.rights(turn)
        if isinstance(rights, HeldReason):
            return Attempt(Candidate(turn, message.version, rights), None)
        try:
            await self._limits.tokens_left(turn.subject)
        except LimitExceededError:
            return Attempt(Candidate(turn, message.version, HeldReason.LIMIT_EXCEEDED), None)
        try:
            slot = await self._limits.turn(turn.subject)
        except LimitExceededError:
            return None  # a later look finds it
        return Attempt(Candidate(replace(turn, roles=rights), message.version), slot)

    def begun(self, attempt: Attempt, when_ended: Callable[[str, Callable[[int], None]], None]) -> None:
        """The turn runs here: count it, and wake those who follow its message."""
        if attempt.slot:
            self._limits.count_until_end(attempt.slot, attempt.candidate.turn, when_ended)
        self.wake(attempt.candidate.turn.session_id)

    async def run(self, begin: Callable[[str], Awaitable[None]]) -> None:
        """Look for what may begin, and call `begin` with its session; runs until cancelled."""
        while True:
            await asyncio.sleep(self._look_seconds * random.uniform(0.75, 1.0))
            try:
                if not self.closed:
                    for session_id in await self.store.due(LOOKED_AT):
                        await begin(session_id)
                await self._wake_changed()
            except StorageUnavailableError as error:
                self._outages.failed(error)
            else:
                self._outages.worked()

    async def _wake_changed(self) -> None:
        followed = {turn_id for each in self._followers.values() for turn_id in each.values()}
        waiting = await self.store.waiting(followed) if followed else ()
        for followers in self._followers.values():
            for woken, turn_id in followers.items():
                if turn_id in followed and turn_id not in waiting:
                    woken.set()

    def wake(self, session_id: str) -> None:
        """Some engine has begun or withdrawn a message of this session: wake those who follow one there."""
        for woken in self._followers.get(session_id, ()):
            woken.set()

    async def withdraw(self, subject: str, turn_id: str, *, key_id: str = "") -> str:
        """Withdraw a message. Returns its session, where another one may begin. Raises as `WaitingStore.withdraw`."""
        session_id = await self.store.withdraw(subject, turn_id, key_id=key_id)
        self.wake(session_id)
        return session_id

    async def follow(self, session_id: str, turn_id: str) -> AsyncGenerator[None]:
        """An item whenever the message may not wait any more, and one at the beginning; ends when the engine does."""
        woken = asyncio.Event()
        self._followers[session_id][woken] = turn_id
        try:
            while not self.closed:
                woken.clear()
                yield
                await woken.wait()
        finally:
            del self._followers[session_id][woken]
            if not self._followers[session_id]:
                del self._followers[session_id]

    def close(self) -> None:
        """The engine shuts down: begin nothing more. What waits is for the other engines, or its next life."""
        self.closed = True

    def release_followers(self) -> None:
        """End `follow` for all, who ask again at another engine."""
        self.closed = True
        for session_id in self._followers:
            self.wake(session_id)
