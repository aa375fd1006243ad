"""What is made of hundreds of tools holds nobody up: neither the list of a gateway nor the index of a search."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from dialog_engine.model import Turn
from dialog_engine.sideband import SideBand
from dialog_engine.tool_calls import gateway_entry, slices
from dialog_engine.tool_calls.context import TurnContext
from dialog_engine.tool_calls.exposure import Exposure, ExposureMode
from dialog_engine.tool_calls.processors.conversation import ToolPreparation
from dialog_engine.tool_calls.slices import Slices, at_once, in_slices
from dialog_engine.tool_calls.tool_search import ToolSearch
from plugins_contract.catalog import ToolEntry
from tests.support.fakes import FakeCatalog, ScriptedModel, tool

pytestmark = pytest.mark.anyio

MANY = tuple(tool(f"server{n % 20}__tool_{n}", description=f"Does the thing number {n}.") for n in range(100))
TURN = Turn("turn", "session", "subject")
CONTEXT = TurnContext(TURN, ScriptedModel(), SideBand(), ())


def counted(number: int) -> Slices[int]:
    for _ in range(number):
        yield
    return number


async def others_turns(work: Awaitable[object]) -> int:
    """How often somebody else had a turn while `work` was done."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    await work
    beside.cancel()
    with suppress(asyncio.CancelledError):
        await beside
    return turns


async def test_everybody_has_a_turn_after_each_slice_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_SECONDS", 2)
    seconds = itertools.count()

    assert await others_turns(in_slices(counted(100), lambda: next(seconds))) in (49, 50, 51)
    assert at_once(counted(7)) == 7


@pytest.mark.parametrize(
    "work",
    [
        lambda: Exposure(ExposureMode.GATEWAY).prepare(MANY),
        lambda: ToolPreparation(FakeCatalog(*MANY), Exposure(ExposureMode.GATEWAY)).process(CONTEXT),
        lambda: ToolSearch(FakeCatalog(*MANY)).answer(TURN, {"query": "thing"}),
    ],
    ids=["list of the gateway", "list of the gateway, in a turn", "index of the search"],
)
async def test_what_is_made_of_many_tools_lets_others_have_their_turns(
    work: Callable[[], Awaitable[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SLICE_SECONDS", 0)

    assert await others_turns(work()) >= len(MANY)


async def test_it_is_made_once_however_many_turns_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_SECONDS", 0)
    made: list[int] = []

    def entry(catalog: tuple[ToolEntry, ...], budget_tokens: int) -> Slices[ToolEntry]:
        made.append(len(catalog))
        yield
        return catalog[0]

    monkeypatch.setattr(gateway_entry, "entry", entry)
    gateway = Exposure(ExposureMode.GATEWAY)
    await asyncio.gather(*(gateway.prepare(tuple(MANY)) for _ in range(3)))
    gateway.in_force(MANY)

    assert made == [len(MANY)]
