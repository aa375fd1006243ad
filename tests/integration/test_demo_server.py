"""The demo MCP server through the official client, and together with the demo model."""

import json
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.types import CallToolResult, TextContent

from examples.demo_model.conversation import Conversation, Outcome, Tool
from examples.demo_model.script import plan
from examples.demo_server.arithmetic import ArithmeticExpressionError, evaluate
from examples.demo_server.effects import EffectLog
from examples.demo_server.server import build_server
from tests.marks import exhaustive, promise, smoke

pytestmark = exhaustive("the example's own tools")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where the effects of this test's server go; the folder is not there yet."""
    return tmp_path / "data" / "effects.log"


@pytest.fixture
async def client(log: Path) -> AsyncGenerator[Client]:
    """A client of a demo server in this process."""
    async with Client(build_server(EffectLog(log))) as client:
        yield client


def text_of(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


def effects(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@promise("the demo server has a tool of every kind, annotated truthfully")
async def test_every_increment_is_one_line_in_the_effect_log(client: Client, log: Path) -> None:
    results = [await client.call_tool("increment_counter", {"token": token}) for token in ("a", "b", "b")]
    assert [result.structured_content for result in results] == [{"counter": "demo", "value": n} for n in (1, 2, 3)]
    assert [(effect["value"], effect["token"]) for effect in effects(log)] == [(1, "a"), (2, "b"), (3, "b")]
    assert all(effect["effect"] == "increment_counter" and "time" in effect for effect in effects(log))


@promise("the demo server has a tool of every kind, annotated truthfully")
@smoke
async def test_the_annotations_tell_what_each_tool_does(client: Client) -> None:
    tools = (await client.list_tools()).tools
    hints = {tool.name: tool.annotations for tool in tools if tool.annotations}
    assert len(hints) == len(tools)
    assert all(tool.title and tool.description for tool in tools)
    writes = {name for name, hint in hints.items() if not hint.read_only_hint}
    assert writes == {"increment_counter", "add_note", "delete_everything"}
    assert not any(hints[name].idempotent_hint for name in writes)
    assert [name for name, hint in hints.items() if hint.destructive_hint] == ["delete_everything"]


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("1 / 0", "division by zero"),
        ("9 ** 9 ** 9", "too large"),
        ("1e308 * 10", "too large"),
        ("(-1) ** 0.5", "not a real number"),
        ("2 +", "not an arithmetic expression"),
        ("__import__('os')", "only numbers"),
        ("True + 1", "only numbers"),
        ("1j * 2", "only numbers"),
        ("1" * 300, "longer than"),
        ("*".join(["9**999"] * 20), "too large"),
    ],
)
def test_what_is_no_arithmetic_is_refused_with_the_reason(expression: str, reason: str) -> None:
    with pytest.raises(ArithmeticExpressionError, match=reason):
        evaluate(expression)


async def test_the_demo_model_can_use_every_tool_of_the_demo_server(client: Client) -> None:
    """Each tool is reached by a sentence, accepts the arguments the script makes, and its real result is repeated."""
    sent: dict[str, str] = {
        "echo hello": "> hello",
        "What is 17 * 23 + 4?": "**395**",
        'call add {"a": 2, "b": 3}': "**5**",
        "run a slow job for 0 seconds": "The slow job finished: 5 steps",
        "draw me a picture": "motif 'sunset'",
        "What is the weather in Oslo?": "made-up demo data",
        "Call the failing tool": "Failed on purpose",
        "Give me a large result of 3 KB": "**3,072** characters",
        "Increment the counter": "is now **1**",
        "Add a note: Call home": "Noted: Call home",
        "Delete everything": "Deleted: **4** notes",
    }
    used = Counter[str]()
    offered = (await client.list_tools()).tools
    tools = tuple(Tool(f"demo__{tool.name}", tool.description or "", tool.input_schema) for tool in offered)
    for question, words in sent.items():
        [call] = plan(Conversation(question, tools=tools)).calls
        result = await client.call_tool(call.name.removeprefix("demo__"), call.arguments)
        used[call.name] += 1
        outcome = Outcome(call.name, call.arguments, text_of(result))
        assert words in plan(Conversation(question, ((outcome,),), tools)).text
    assert set(used) == {tool.name for tool in tools}
