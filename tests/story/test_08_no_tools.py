"""ENABLE_MCP=false: no tools are offered, and a call that the model makes all the same is answered with an error."""

from dialog_engine.model import DoneReason, ToolStatus
from dialog_engine.peers.catalog import DisabledTools
from tests.marks import promise
from tests.support.fakes.engine import FakeEngine, done_of, steps_of
from tests.support.fakes.models import ScriptedModel, asks, says


@promise("with ENABLE_MCP=false every call is answered DISABLED and the turn goes on")
async def test_without_tools_a_call_is_refused_and_the_turn_continues() -> None:
    model = ScriptedModel(asks(("time__now", "{}")), says("I have no clock."))
    async with FakeEngine(model, tools=DisabledTools()) as engine:
        events = await engine.turn("What time is it?")

    assert model.requests[0].tools == ()
    assert steps_of(events) == [ToolStatus.PENDING, ToolStatus.REFUSED]
    assert model.requests[1].messages[-1].content.startswith("Error DISABLED: tools are switched off")
    assert done_of(events).reason is DoneReason.STOP
