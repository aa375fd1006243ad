"""Many tools: when there are too many to offer all, a gateway or a search is offered. Users see no difference."""

from dialog_engine.model import AssistantMessage, ToolMessage
from dialog_engine.tool_calls.exposure.exposure import Exposure, ExposureMode
from tests.marks import promise
from tests.support.fakes.engine import FakeEngine, steps_of
from tests.support.fakes.models import ScriptedModel, asks, says
from tests.support.fakes.worker import FakeCatalog, FakeWorker, gives, succeeded, tool

CATALOG = FakeCatalog(
    *(tool(f"shop__{what}", description=f"About {what}.") for what in ("prices", "orders", "opening_hours"))
)


@promise("one gateway tool can stand for all")
async def test_a_gateway_is_one_tool_whose_calls_are_resolved_to_the_real_tools() -> None:
    call = '{"resource": "shop", "operation": "prices", "params": {"of": "tea"}}'
    model = ScriptedModel(asks(("mcp_query", call)), says("Tea is 3 euros."))
    worker = FakeWorker({"shop__prices": gives(succeeded("3 euros"))})
    exposure = Exposure(ExposureMode.GATEWAY)
    async with FakeEngine(model, tools=CATALOG, worker=worker, exposure=exposure) as engine:
        events = await engine.turn("What is tea?")

    [gateway] = model.requests[0].tools
    assert "  prices() - About prices." in gateway.description
    assert steps_of(events, "shop__prices")[-1] == "succeeded"
    _, asked, result = model.requests[1].messages
    assert isinstance(asked, AssistantMessage)
    assert (asked.tool_calls[0].name, asked.tool_calls[0].arguments) == ("mcp_query", call)
    assert result == ToolMessage("call_1", "mcp_query", "3 euros")


@promise("tools are searched when the catalog outgrows its budget")
async def test_tools_that_a_search_finds_are_offered_from_the_next_request_on() -> None:
    model = ScriptedModel(
        asks(("tool_search", '{"query": "when is it open"}')), asks(("shop__opening_hours", "")), says("Now.")
    )
    async with FakeEngine(model, tools=CATALOG, exposure=Exposure(ExposureMode.SEARCH)) as engine:
        events = await engine.turn("Are you open?")

    offered = [[entry.name for entry in request.tools] for request in model.requests]
    assert offered == [["tool_search"], *[["tool_search", "shop__opening_hours"]] * 2]
    assert steps_of(events, "tool_search") == ["pending", "succeeded"]
    assert steps_of(events, "shop__opening_hours")[-1] == "succeeded"
