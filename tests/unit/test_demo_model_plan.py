"""What the scripted demo model does with a question, the tools it is offered and the results it is given."""

from typing import Any

import pytest

from examples.demo_model.conversation import Conversation, Outcome, Plan, Tool, ToolUse
from examples.demo_model.results import Failure, failure
from examples.demo_model.script import plan
from examples.demo_model.toolbox import accepts
from tests.marks import promise

STRING = {"type": "string"}
NUMBER = {"type": "number"}


def tool(name: str, required: dict[str, Any] | None = None, optional: dict[str, Any] | None = None) -> Tool:
    required = required or {}
    properties = {**required, **(optional or {})}
    return Tool(name, f"About {name}", {"type": "object", "properties": properties, "required": list(required)})


TIME = tool("time__get_current_time", {"timezone": STRING})
CONVERT = tool("time__convert_time", {"source_timezone": STRING, "time": STRING, "target_timezone": STRING})
CALCULATE = tool("demo__calculate", {"expression": STRING})
ADD = tool("demo__add", {"a": NUMBER, "b": NUMBER})
ECHO = tool("demo__echo", {"text": STRING})
SLOW = tool("demo__slow_job", optional={"seconds": NUMBER | {"maximum": 600}, "steps": {"type": "integer"}})
COUNTER = tool("demo__increment_counter", optional={"counter": STRING, "token": STRING})
DELETE = tool("demo__delete_everything")
DRAW = tool("demo__draw", optional={"motif": {"enum": ["sunset", "rings"]}, "size": {"type": "integer"}})
FAIL = tool("demo__fail", optional={"reason": STRING})
LARGE = tool("demo__large_result", optional={"kilobytes": {"type": "integer", "minimum": 1, "maximum": 4096}})
WEATHER = tool("demo__weather", {"city": STRING})
NOTE = tool("demo__add_note", {"note": STRING})
TOOLS = (TIME, CONVERT, CALCULATE, ADD, ECHO, SLOW, COUNTER, DELETE, DRAW, FAIL, LARGE, WEATHER, NOTE)


Result = tuple[str, dict[str, Any], str]


def ask(question: str, *tools: Tool) -> Plan:
    return plan(Conversation(question, tools=tools or TOOLS))


def after(question: str, *results: Result, tools: tuple[Tool, ...] = TOOLS) -> Plan:
    """The plan after one round per result."""
    rounds = tuple((Outcome(*result),) for result in results)
    return plan(Conversation(question, rounds, tools, introduced=True))


Call = tuple[str, dict[str, Any]]

ASKED: list[tuple[str, list[Call]]] = [
    ("What time is it in Tokyo and in Paris?", [("time__get_current_time", {"timezone": "Asia/Tokyo"}),
        ("time__get_current_time", {"timezone": "Europe/Paris"})]),
    ("what's the time in new york", [("time__get_current_time", {"timezone": "America/New_York"})]),
    ("What time is it?", [("time__get_current_time", {"timezone": "Etc/UTC"})]),
    ("What is 17 * 23 + 4?", [("demo__calculate", {"expression": "17 * 23 + 4"})]),
    ("add 2 and 3", [("demo__calculate", {"expression": "2 + 3"})]),
    ("run a slow job for 2 minutes in 4 steps", [("demo__slow_job", {"seconds": 120, "steps": 4})]),
    ("Call the failing tool", [("demo__fail", {})]),
    ("show an image of rings", [("demo__draw", {"motif": "rings"})]),
    ("Give me a large result of 200 KB", [("demo__large_result", {"kilobytes": 200})]),
    ("What is the weather in Oslo?", [("demo__weather", {"city": "Oslo"})]),
    ("Delete everything, please", [("demo__delete_everything", {})]),
    ("Add a note: call 2 + 2 people", [("demo__add_note", {"note": "call 2 + 2 people"})]),
    ("echo what is 1 + 1", [("demo__echo", {"text": "what is 1 + 1"})]),
    ('call demo__echo {"text": "hi"}', [("demo__echo", {"text": "hi"})]),
    ("What is 2 + 2, and what time is it in Rome?",
        [("time__get_current_time", {"timezone": "Europe/Rome"}), ("demo__calculate", {"expression": "2 + 2"})]),
    ("Count to 3 with the counter", [("demo__increment_counter", {})]),
    ("Keep calling tools forever", [("demo__echo", {"text": "round 1"})]),
]  # fmt: skip


@promise("the demo model makes two parallel calls for two cities")
@pytest.mark.parametrize(("question", "calls"), ASKED)
def test_a_question_becomes_the_calls_it_asks_for(question: str, calls: list[Call]) -> None:
    assert ask(question).calls == tuple(ToolUse(name, arguments) for name, arguments in calls)


@promise("the demo model picks only tools that it is given")
def test_a_tool_that_is_not_offered_is_never_called() -> None:
    for question in (
        "What time is it in Tokyo?",
        "add 2 and 3",
        "Delete everything",
        "Count to 3",
        "keep calling tools forever",
    ):
        answer = ask(question, WEATHER)
        assert not answer.calls
        assert "`demo__weather`" in answer.text


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Error executing tool fail: Failed on purpose", None),
        ("TIMEOUT: no answer within 30 s", "TIMEOUT"),
        ("Tool failed with OUTCOME_UNKNOWN", "OUTCOME_UNKNOWN"),
        ('{"error": {"code": "LOST", "message": "vanished"}}', "LOST"),
        ('{"isError": true, "text": "no"}', None),
    ],
)
def test_a_failure_is_recognised_and_reported(text: str, code: str | None) -> None:
    failed = failure(text)
    assert isinstance(failed, Failure)
    assert failed.code == code
    answer = after("Draw me a picture", ("demo__draw", {}, text))
    assert not answer.calls
    assert "did not succeed" in answer.text
    assert (code or "reported an error") in answer.text


def test_the_endless_script_goes_on_until_no_tool_is_offered() -> None:
    question, rounds = "keep calling tools forever", [("demo__echo", {"text": "round"}, "round")] * 40
    assert after(question, *rounds).calls == (ToolUse("demo__echo", {"text": "round 41"}),)
    answer = after(question, *rounds, tools=())
    assert not answer.calls
    assert "40 calls were made" in answer.text


def test_a_pattern_of_a_tool_that_nobody_could_wait_for_is_not_matched() -> None:
    text = {"type": "string", "pattern": "^(a+)+$"}
    schema = {"type": "object", "properties": {"pattern": text}, "required": ["pattern"], "additionalProperties": False}
    assert accepts(schema, {"pattern": "a" * 60 + "!"})
    assert not accepts(schema, {})
    assert not accepts({"const": {"pattern": "a"}}, {})
    assert accepts({"$ref": "#/$defs/pattern", "$defs": {"pattern": schema}}, {"pattern": "a"})
    assert not accepts({"$ref": "#"}, {})
    assert not accepts({**schema, "patternProperties": {"^(a+)+$": {}}}, {"pattern": "a", "a" * 60 + "!": 1})
