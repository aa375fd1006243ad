"""How long an answer of Redis is waited for: as long as it may take, unless the watch gets none either."""

import asyncio

import pytest

from dialog_engine.streams import patience
from dialog_engine.streams.patience import Patience

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LATE_SECONDS", "SILENT_SECONDS", "LOOK_AGAIN_SECONDS"):
        monkeypatch.setattr(patience, name, 0.01)


class Watch:
    """One that gets an answer, or none once it was asked to look."""

    def __init__(self, *, answered: bool) -> None:
        self.looks = 0
        self._answered = answered

    def look(self) -> None:
        self.looks += 1

    def silent_for(self) -> float:
        return 60.0 if self.looks and not self._answered else 0.0


async def test_nobody_waits_for_an_answer_when_the_watch_gets_none_either() -> None:
    watch = Watch(answered=False)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(20), Patience(watch.silent_for, watch.look).within(3600):
            await asyncio.Event().wait()
    assert watch.looks == 1


async def test_an_answer_that_is_only_late_is_waited_for() -> None:
    watch = Watch(answered=True)
    begun = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        async with Patience(watch.silent_for, watch.look).within(0.3):
            await asyncio.Event().wait()
    assert asyncio.get_running_loop().time() - begun >= 0.29
    assert watch.looks == 1


async def test_nobody_begins_to_wait_while_redis_is_silent() -> None:
    waited = False
    with pytest.raises(TimeoutError):
        async with Patience(lambda: 1.0).within(3600):
            waited = True
    assert not waited


async def test_an_answer_in_time_is_nobody_elses_business() -> None:
    watch = Watch(answered=False)
    async with Patience(watch.silent_for, watch.look).within(3600):
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)  # longer than the watch would be asked after
    assert not watch.looks
