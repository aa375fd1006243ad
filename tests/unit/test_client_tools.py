"""Tools of clients beside those of servers, on fakes: what is offered, and what a reader of the turn is shown."""

import pytest

from dialog_engine.errors import ClientToolError
from dialog_engine.model import Brought, ClientTool, ToolStatus, ToolStep, UserMessage, WaitingForUser
from dialog_engine.tool_calls.client_tools import MAX_BYTES, OWN_NAMES, check
from dialog_engine.tool_calls.exposure import gateway
from dialog_engine.tool_calls.exposure.exposure import MAX_TOOLS, Exposure, ExposureMode, Room, found
from dialog_engine.tool_calls.exposure.search import ToolSearch
from dialog_engine.tool_calls.resource_tools import LIST_RESOURCES, READ_RESOURCE
from dialog_engine.tool_calls.results.read_result import ReadResult
from tests.marks import promise
from tests.support.fakes.engine import FakeEngine, is_step
from tests.support.fakes.models import ScriptedModel, asks, says
from tests.support.fakes.stores import MemoryStore
from tests.support.fakes.worker import FakeCatalog, tool

SCHEMA = {"type": "object", "properties": {"of": {"type": "string"}}}
COLOUR = ClientTool("pick_colour", "Picks a colour.", SCHEMA)
FILES = tuple(tool(f"files__{name}") for name in ("read", "list"))


def test_the_names_of_the_engine_s_own_tools_are_not_for_clients() -> None:
    own = {ToolSearch(FakeCatalog()).entry.name, ReadResult(MemoryStore().results, 1).entry.name, gateway.NAME}
    assert own | {LIST_RESOURCES, READ_RESOURCE} == OWN_NAMES
    with pytest.raises(ClientToolError, match="bytes"):
        check([ClientTool("a", "", {"type": "object", "title": "x" * MAX_BYTES})], ())


@promise("no more tools are offered by themselves than providers take")
def test_tools_of_a_client_leave_less_room_to_the_catalog() -> None:
    entries = [COLOUR.entry()]
    many = tuple(tool(f"a__t{n:03}") for n in range(MAX_TOOLS))
    said = UserMessage("Hi")
    offers = [Exposure(mode).offered(many, [said], of_client=entries) for mode in ExposureMode]
    assert [len(each) for each in offers] == [MAX_TOOLS + 1, 2, 2, 2], "direct, gateway, search, auto"
    assert all(each[-1] == entries[0] for each in offers)
    assert Exposure().offered(FILES, [said], of_client=entries) == (*FILES, *entries)
    assert len(found(many, [], Room(1, 0))) == 0


@promise("no tool of a client has the name of another tool, and none changes what others are offered")
async def test_a_tool_that_comes_later_does_not_take_the_place_of_the_client_s() -> None:
    model = ScriptedModel(asks(("files__read", '{"of": 5}'), ("files__read", '{"of": "tea"}')), says("Done."))
    brought = Brought(own_api=True, tools=(ClientTool("files__read", "The page's own.", SCHEMA),))
    async with FakeEngine(model, tools=FakeCatalog(*FILES)) as engine:
        turn = await engine.turns.start("ada", None, "Read it", brought=brought)
        await engine.until(turn, lambda event: isinstance(event, WaitingForUser))
        events = engine.logs.lives[turn.turn_id][-1].events
        [offered] = [each.tools for each in model.requests[:1]]
        assert [(each.name, each.server) for each in offered] == [("files__list", "files"), ("files__read", "client")]
        assert engine.worker.executed == []
        assert any(map(is_step(ToolStatus.FAILED), events)), "arguments that do not fit are answered"
        waits = [each for each in events if isinstance(each, ToolStep) and "waitsFor" in each.details]
        assert [each.details["arguments"] for each in waits] == [{"of": "tea"}]
        assert await engine.restart() == 1
        await engine.until(turn, lambda event: isinstance(event, WaitingForUser))
