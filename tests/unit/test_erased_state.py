"""What MCP servers keep for a subject is ended when its data are erased, also after an outage of Redis."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from dialog_engine.personal_data.service import ErasedSession, Left, PersonalData, Traces
from tests.support.waiting import wait_until


class Away(Traces):
    """Redis is away at first."""

    def __init__(self) -> None:
        self.is_back = False
        self.ended = list[str]()

    async def erase(self, sessions: Sequence[ErasedSession]) -> Collection[str]:
        return ()

    async def end_state(self, subject: str = "", session_ids: Sequence[str] = ()) -> bool:
        self.ended += [subject] if self.is_back else []
        return self.is_back


class NoSessions:
    """A store in which the subject has nothing else."""

    async def erase(self, subject: str, **_: object) -> Left:
        return Left(0, 0, ())

    async def due(self) -> Sequence[ErasedSession]:
        return ()

    async def ids(self, subject: str, **_: object) -> Sequence[str]:
        return ()


@pytest.mark.timeout(30)
async def test_the_state_of_an_erased_subject_is_ended_when_redis_is_back() -> None:
    store: Any = NoSessions()
    redis = Away()
    data = PersonalData(store, store, store, redis, store, 0.01)
    running = asyncio.create_task(data.run())
    await data.erase("ada")
    redis.is_back = True
    await wait_until(lambda: redis.ended == ["ada"], what="the end of what is kept for the subject")
    running.cancel()
