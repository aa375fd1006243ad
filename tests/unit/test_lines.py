"""The line of a session at one engine while the engines cannot talk to each other: nobody passes anybody."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from dialog_engine.chat.runs import RunsUnavailableError
from dialog_engine.chat.shared_turns import SharedTurns
from dialog_engine.errors import TurnRunningError
from dialog_engine.model import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


class Alone:
    """What an engine has around its turns while Redis is away. One turn runs at a time, while it is `busy`."""

    def __init__(self) -> None:
        self.busy = True
        self.begun: list[str] = []
        self.on_end: Callable[[Turn], None] = lambda _: None

    async def start(self, subject: str, session_id: str, text: str, *_: Any, turn_id: str, **__: Any) -> Turn:
        if self.busy:
            raise TurnRunningError("running")
        self.busy = True
        self.begun.append(text)
        return Turn(turn_id, session_id, subject)

    def runs(self, turn_id: str) -> bool:
        return True

    async def version(self, session_id: str) -> int:
        return 1

    async def last_ran_here(self, session_id: str) -> bool:
        return True

    async def settled(self) -> bool:
        return True

    async def claim(self, turn: Turn, **_: Any) -> Any:
        raise RunsUnavailableError

    leave = claim


@pytest.fixture
def alone() -> Alone:
    return Alone()


@pytest.fixture
def turns(alone: Alone) -> SharedTurns:
    part = cast("Any", alone)
    return SharedTurns(part, part, part, part, part)


async def test_a_message_that_comes_as_the_session_is_free_does_not_pass_one_that_waits(
    alone: Alone, turns: SharedTurns
) -> None:
    first = asyncio.create_task(turns.start("ada", "session", "first", queue=True))
    await wait_until(lambda: len(turns.lines) == 1)
    await asyncio.sleep(0)
    alone.busy = False  # and nobody has been told yet
    with pytest.raises(TurnRunningError):
        await turns.start("ada", "session", "impatient")
    second = asyncio.create_task(turns.start("ada", "session", "second", queue=True))
    await wait_until(lambda: len(turns.lines) == 2)
    for _ in range(2):
        turns.lines.ring("session")
        await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
        alone.busy = False
    await asyncio.gather(first, second)
    assert alone.begun == ["first", "second"]


async def test_another_session_has_a_line_of_its_own(alone: Alone, turns: SharedTurns) -> None:
    waiting = asyncio.create_task(turns.start("ada", "session", "first", queue=True))
    await wait_until(lambda: len(turns.lines) == 1)
    alone.busy = False
    await turns.start("ada", "other", "elsewhere", queue=True)
    assert alone.begun == ["elsewhere"]
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert len(turns.lines) == 0
