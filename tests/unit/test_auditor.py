"""The audit of waiting calls: only what is certain is reported, and only of calls that were published."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from callstream_runtime.redis_errors import RedisUnavailable
from dialog_engine.calls.mailbox import Auditor
from dialog_engine.chat.outbox import OutboxRow
from dialog_engine.errors import StorageUnavailableError
from plugins_contract.encryption import CLEAR
from plugins_contract.keys import Keys
from plugins_contract.ledger import SILENT_MS, EngineLedger
from plugins_contract.ledger.replies import Loss
from tests.integration.engines import MemoryOutbox, request
from tests.support.publishers import FakePublisher

CERTAIN_SECONDS = 0.1
CERTAIN_AFTER = dict.fromkeys(Loss, CERTAIN_SECONDS)


class Ledger(EngineLedger):
    def __init__(self) -> None:
        unused: Any = None
        super().__init__(unused, Keys(), cipher=CLEAR)
        self.says: list[tuple[str, bytes | Loss]] = [("a", Loss.MISSING)]
        self.away = False

    async def audit(
        self, correlation_ids: Sequence[str], *, silent_ms: int = SILENT_MS
    ) -> list[tuple[str, bytes | Loss]]:
        if self.away:
            raise RedisUnavailable("away")
        return self.says


class FullDisk(MemoryOutbox):
    async def calls(self, correlation_ids: Sequence[str]) -> Sequence[OutboxRow]:
        raise StorageUnavailableError("the disk is full")


@pytest.fixture
async def a_while(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Moves the clock of the event loop on, by more than a loss needs to be certain."""
    loop = asyncio.get_running_loop()
    real, passed = loop.time, 0.0

    def pass_time() -> None:
        nonlocal passed
        passed += 1.5 * CERTAIN_SECONDS

    monkeypatch.setattr(loop, "time", lambda: real() + passed)
    return pass_time


async def test_after_an_outage_workers_have_the_whole_time_again(a_while: Callable[[], None]) -> None:
    ledger = Ledger()
    auditor = Auditor(ledger, MemoryOutbox(), FakePublisher(), CERTAIN_AFTER)
    await auditor.look(["a"])
    ledger.away = True
    with pytest.raises(RedisUnavailable):
        await auditor.look(["a"])
    ledger.away = False
    a_while()
    assert await auditor.look(["a"]) == []
    a_while()
    assert await auditor.look(["a"]) == [("a", Loss.MISSING)]


async def test_after_its_publication_a_call_has_its_whole_time(a_while: Callable[[], None]) -> None:
    outbox = MemoryOutbox()
    outbox.call(msgspec.structs.replace(request(0), correlation_id="a"))
    auditor = Auditor(Ledger(), outbox, FakePublisher(), CERTAIN_AFTER)
    await auditor.look(["a"])
    a_while()
    assert await auditor.look(["a"]) == []
    await outbox.published(await outbox.calls(["a"]))
    assert await auditor.look(["a"]) == []
    a_while()
    assert await auditor.look(["a"]) == [("a", Loss.MISSING)]


async def test_when_the_outbox_cannot_be_read_a_call_may_have_been_published(a_while: Callable[[], None]) -> None:
    auditor = Auditor(Ledger(), FullDisk(), FakePublisher(), CERTAIN_AFTER)
    assert await auditor.unpublished(["a"]) == {}
    await auditor.look(["a"])
    a_while()
    assert await auditor.look(["a"]) == [("a", Loss.MISSING)]
