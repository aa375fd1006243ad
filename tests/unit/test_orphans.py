"""When a turn that another engine ran counts as lost."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from dialog_engine.chat import orphans
from dialog_engine.chat.imports import Imports
from dialog_engine.chat.orphans import LOST_SECONDS, Orphans, TurnsElsewhere
from dialog_engine.chat.runs import Run, Runs, RunsUnavailableError
from dialog_engine.errors import TurnLostError

pytestmark = pytest.mark.anyio
LIVES, ENDED = Run("s1", "other", 1, ended=False), Run("s1", "other", 1, ended=True)


class World(TurnsElsewhere):
    """The file, Redis and the clock, all in one. `runs` is what Redis knows of turns, `shared` of sessions' ends."""

    def __init__(self, *sessions: str) -> None:
        self.now = 100.0
        self.here = [(session_id, f"turn of {session_id}") for session_id in sessions]
        self.runs: dict[str, Run] = {}
        self.shared: set[str] = set()
        self.fetched: list[str] = []
        self.ended: list[str] = []
        self.away = False
        me = cast("Any", self)
        self.orphans = Orphans(self, cast("Runs", me), cast("Imports", me), clock=lambda: self.now)

    async def running(self, after: str, limit: int) -> Sequence[tuple[str, str]]:
        return [each for each in self.here if each[0] > after][:limit]

    async def end(self, turn_id: str, error: TurnLostError) -> bool:
        found = [each for each in self.here if each[1] == turn_id]
        self.here = [each for each in self.here if each[1] != turn_id]
        self.ended += [turn_id] * len(found)
        return bool(found)

    async def look(self, turn_id: str) -> Run | None:
        return self.runs.get(turn_id)

    async def fetch(self, session_id: str) -> None:
        if self.away:
            raise RunsUnavailableError("away")
        self.fetched.append(session_id)
        if session_id in self.shared:
            self.here = [each for each in self.here if each[0] != session_id]

    async def after(self, seconds: float) -> list[str]:
        """The turns that a look so much later has ended."""
        self.now += seconds
        before = len(self.ended)
        for session_id, turn_id in await self.orphans.some():
            await self.orphans.look(session_id, turn_id)
        return self.ended[before:]


async def test_it_is_ended_once_when_nobody_has_known_of_it_for_long() -> None:
    world = World("s1")
    assert await world.after(0) == []
    assert await world.after(LOST_SECONDS - 1) == []
    assert world.fetched == []
    assert await world.after(1) == ["turn of s1"]
    assert await world.after(LOST_SECONDS) == []


async def test_one_that_somebody_runs_is_let_be() -> None:
    world = World("s1")
    world.runs["turn of s1"] = LIVES
    for _ in range(3):
        assert await world.after(LOST_SECONDS) == []
    assert world.fetched == []


async def test_it_is_missing_for_long_only_when_it_was_all_the_time() -> None:
    world = World("s1")
    await world.after(0)
    world.runs["turn of s1"] = LIVES
    await world.after(LOST_SECONDS / 2)
    del world.runs["turn of s1"]
    assert await world.after(LOST_SECONDS / 2) == []
    assert await world.after(LOST_SECONDS) == ["turn of s1"]


@pytest.mark.parametrize("run", [ENDED, None])
async def test_an_end_that_another_engine_has_shared_is_taken_in(run: Run | None) -> None:
    world = World("s1")
    world.shared = {"s1"}
    if run is not None:
        world.runs["turn of s1"] = run
    await world.after(0)
    assert await world.after(LOST_SECONDS) == []
    assert (world.here, world.fetched) == ([], ["s1"])


async def test_one_that_has_ended_is_not_lost_whatever_is_not_shared_of_it() -> None:
    world = World("s1")
    world.runs["turn of s1"] = ENDED
    assert await world.after(0) == []
    assert world.fetched == ["s1"], "at once"
    assert await world.after(LOST_SECONDS) == []


async def test_while_nobody_can_tell_how_its_session_is_doing_it_is_not_ended() -> None:
    world = World("s1")
    await world.after(0)
    world.away = True
    with pytest.raises(RunsUnavailableError):
        await world.after(LOST_SECONDS)
    assert world.ended == []
    world.away = False
    assert await world.after(1) == ["turn of s1"]


async def test_of_many_some_are_looked_at_at_a_time_and_all_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "AT_ONCE", 2)
    world = World("s1", "s2", "s3")
    world.runs = {turn_id: LIVES for _, turn_id in world.here[:2]}
    for _ in range(2):
        assert await world.after(LOST_SECONDS / 2) == []
    assert await world.after(LOST_SECONDS / 2) == []
    assert await world.after(LOST_SECONDS / 2) == ["turn of s3"]
