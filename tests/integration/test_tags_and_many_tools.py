"""Models without function calling with many tools: each dialect, with a gateway and with a search."""

import json
from pathlib import Path

import pytest

from dialog_engine.model import ToolCall
from tests.integration.engines import Event, Model, publish, running_engine, settings
from tests.marks import promise
from tests.support.fakes.worker import tool
from tests.support.tags import DIALECTS
from tests.support.waiting import wait_until

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FORECAST = tool("weather__forecast", CITY, description="Tells what the days will be like.")
TOOLS = (FORECAST, *(tool(f"mail__folder_{number}", description="A folder of mail.") for number in range(30)))

dialects = pytest.mark.parametrize("dialect", DIALECTS)


def written(dialect: str, name: str, **arguments: object) -> str:
    """A call as a model of that dialect writes it."""
    return f"Let me see.\n{DIALECTS[dialect].calls([ToolCall('', '', name, json.dumps(arguments))])}"


def described(content: str) -> list[str]:
    """The tools that a system message describes."""
    return [part.partition("</name>")[0] for part in content.split("<tool>\n<name>")[1:]]


# --- A whole engine, by its settings ---------------------------------------------------------------------------------


@promise("prompt mode: in both dialects, behind a gateway and with a search")
@dialects
@pytest.mark.parametrize(
    ("exposure", "name", "arguments", "answer"),
    [
        ("gateway", "mcp_query", {"resource": "weather", "operation": "help"}, "forecast(city: string)"),
        ("search", "tool_search", {"query": "the days", "limit": 1}, FORECAST.name),
    ],
)
async def test_tool_modes_and_exposures_can_be_combined(
    dialect: str,
    exposure: str,
    name: str,
    arguments: dict[str, object],
    answer: str,
    tmp_path: Path,
    redis_url: str,
    model: Model,
) -> None:
    model.will_say(written(dialect, name, **arguments))
    model.will_say("That is what there is.")
    publish(redis_url, *TOOLS)
    configured = settings(tmp_path, redis_url, model.url, tool_mode=dialect, tool_exposure=exposure)
    async with running_engine(configured) as engine:
        await wait_until(lambda: engine.offers(len(TOOLS)), what="the tools")
        events = await engine.chat("What can you do?")

    first, second = model.asked
    assert all("tools" not in request for request in (first, second))
    assert described(first["messages"][0]["content"]) == [name]
    assert first["stop"] == [DIALECTS[dialect].stop]
    assert answer in second["messages"][-1]["content"]
    assert second["messages"][-1]["role"] == "user"
    assert said(events) == "Let me see.\nThat is what there is."
    assert [event.data["status"] for event in events if event.data.get("toolName") == name] == ["pending", "succeeded"]


def said(events: list[Event]) -> str:
    return "".join(event.data["delta"] for event in events if event.name == "text")
