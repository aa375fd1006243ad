"""What the scripted demo model does with a question, the tools it is offered and the results it is given."""

from typing import Any

import pytest

from examples.demo_model.conversation import Conversation, Outcome, Plan, Tool, ToolUse
from examples.demo_model.results import Failure, failure
from examples.demo_model.script import plan
from examples.demo_model.talk import INTRODUCTION
from examples.demo_model.toolbox import fill
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

TOKYO = '{"timezone": "Asia/Tokyo", "datetime": "2026-11-22T06:37:07+09:00", "day_of_week": "Sunday", "is_dst": false}'
PARIS = '{"timezone": "Europe/Paris", "datetime": "2026-11-21T22:37:07+01:00", "day_of_week": "Saturday"}'


Result = tuple[str, dict[str, Any], str]


def ask(question: str, *tools: Tool) -> Plan:
    return plan(Conversation(question, tools=tools or TOOLS))


def after(question: str, *results: Result, tools: tuple[Tool, ...] = TOOLS) -> Plan:
    """The plan after one round per result."""
    rounds = tuple((Outcome(*result),) for result in results)
    return plan(Conversation(question, rounds, tools, introduced=True))


Call = tuple[str, dict[str, Any]]

ASKED: list[tuple[str, list[Call]]] = [
    (
        "What time is it in Tokyo and in Paris?",
        [
            ("time__get_current_time", {"timezone": "Asia/Tokyo"}),
            ("time__get_current_time", {"timezone": "Europe/Paris"}),
        ],
    ),
    ("what's the time in new york", [("time__get_current_time", {"timezone": "America/New_York"})]),
    ("What time is it in Asia/Kolkata?", [("time__get_current_time", {"timezone": "Asia/Kolkata"})]),
    ("What time is it?", [("time__get_current_time", {"timezone": "Etc/UTC"})]),
    ("What time is it in Atlantis?", [("time__get_current_time", {"timezone": "Atlantis"})]),
    (
        "When it is 9:30 pm in London, what time is it in Tokyo?",
        [
            (
                "time__convert_time",
                {"source_timezone": "Europe/London", "time": "21:30", "target_timezone": "Asia/Tokyo"},
            )
        ],
    ),
    ("What is 17 * 23 + 4?", [("demo__calculate", {"expression": "17 * 23 + 4"})]),
    ("add 2 and 3", [("demo__calculate", {"expression": "2 + 3"})]),
    ("run a slow job for 2 minutes in 4 steps", [("demo__slow_job", {"seconds": 120, "steps": 4})]),
    ("run a slow job for 5000 seconds", [("demo__slow_job", {"seconds": 600})]),
    ("Call the failing tool", [("demo__fail", {})]),
    ("show an image of rings", [("demo__draw", {"motif": "rings"})]),
    ("Give me a large result of 200 KB", [("demo__large_result", {"kilobytes": 200})]),
    ("What is the weather in Oslo?", [("demo__weather", {"city": "Oslo"})]),
    (
        "increment the counter called orders with token t-1",
        [("demo__increment_counter", {"counter": "orders", "token": "t-1"})],
    ),
    ("Delete everything, please", [("demo__delete_everything", {})]),
    ("Add a note: call 2 + 2 people", [("demo__add_note", {"note": "call 2 + 2 people"})]),
    ("echo what is 1 + 1", [("demo__echo", {"text": "what is 1 + 1"})]),
    ('call demo__echo {"text": "hi"}', [("demo__echo", {"text": "hi"})]),
    ("call fail", [("demo__fail", {})]),
    (
        "What is 2 + 2, and what time is it in Rome?",
        [("time__get_current_time", {"timezone": "Europe/Rome"}), ("demo__calculate", {"expression": "2 + 2"})],
    ),
    ("Count to 3 with the counter", [("demo__increment_counter", {})]),
    ("Keep calling tools forever", [("demo__echo", {"text": "round 1"})]),
]


@promise("the demo model makes two parallel calls for two cities")
@pytest.mark.parametrize(("question", "calls"), ASKED)
def test_a_question_becomes_the_calls_it_asks_for(question: str, calls: list[Call]) -> None:
    assert ask(question).calls == tuple(ToolUse(name, arguments) for name, arguments in calls)


@pytest.mark.parametrize(
    "question",
    ["Help", "hello", "Who are you?", "Show me Markdown", "Give me a long answer", "Tell me of 2026-11-21", "", "Why?"],
)
def test_a_question_that_needs_no_tool_is_answered_in_words(question: str) -> None:
    answer = ask(question)
    assert not answer.calls
    assert INTRODUCTION in answer.text


def test_only_the_first_answer_of_a_conversation_introduces_the_model() -> None:
    assert INTRODUCTION in ask("Show me Markdown").text
    assert INTRODUCTION not in plan(Conversation("Show me Markdown", introduced=True)).text


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


def test_a_sum_goes_to_an_adding_tool_where_there_is_no_calculator() -> None:
    assert ask("What is 2 + 3?", ADD).calls == (ToolUse("demo__add", {"a": 2, "b": 3}),)
    assert not ask("What is 2 + 3 * 4?", ADD).calls


def test_a_tool_is_chosen_by_its_schema_as_well_as_by_its_name() -> None:
    git_add = tool("git__git_add", {"repo_path": STRING, "files": {"type": "array"}})
    assert ask("add 2 and 3", git_add, ADD).calls == (ToolUse("demo__add", {"a": 2, "b": 3}),)
    camel = tool("everything__longRunningOperation", optional={"duration": NUMBER})
    assert ask("run a slow job for 3 seconds", camel).calls == (ToolUse(camel.name, {"duration": 3}),)


def test_a_required_parameter_that_the_question_does_not_give_is_not_made_up() -> None:
    assert not ask("What time is it in Rome?", tool("x__get_current_time", {"timezone": STRING, "who": STRING})).calls


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"type": "object", "required": 1}, {"$ref": "#/nowhere"}])
def test_a_tool_with_a_broken_schema_is_left_alone(schema: dict[str, Any]) -> None:
    assert not ask("call the failing tool", Tool("demo__fail", "", schema)).calls


def test_arguments_take_the_types_limits_and_choices_of_the_schema() -> None:
    properties: dict[str, Any] = {
        "text": STRING,
        "size": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "motif": {"enum": ["Sunset", "Rings"]},
        "must": {"type": "boolean", "default": True},
    }
    schema = {"type": "object", "properties": properties, "required": ["text", "must"]}
    hints = {"size": 8.0, "motif": "rings", "unknown": 1}
    assert fill(schema, {"text": 5}, hints) == {"text": "5", "size": 8, "motif": "Rings", "must": True}
    assert fill(schema, {"text": "a"}, {"motif": "cubes"}) == {"text": "a", "must": True}
    assert fill(schema, {"text": "a", "other": "a"}, {}) is None


def test_the_answer_names_both_times_that_the_results_tell() -> None:
    outcomes = (
        Outcome("time__get_current_time", {"timezone": "Asia/Tokyo"}, TOKYO),
        Outcome("time__get_current_time", {"timezone": "Europe/Paris"}, PARIS),
    )
    answer = plan(Conversation("What time is it in Tokyo and in Paris?", (outcomes,), TOOLS))
    assert not answer.calls
    assert "**Tokyo** it is **06:37** on Sunday, 22 November 2026 (Asia/Tokyo, UTC+09:00)" in answer.text
    assert "**Paris** it is **22:37** on Saturday" in answer.text


@pytest.mark.parametrize(
    ("name", "result", "expected"),
    [
        ("demo__calculate", "395", "**395**"),
        ("demo__calculate", '{"result": 395}', "**395**"),
        (
            "demo__weather",
            '{"city": "Oslo", "temperature_celsius": 3, "condition": "windy", "source": "made-up"}',
            "made-up",
        ),
        ("demo__increment_counter", '{"counter": "demo", "value": 7}', "**7**"),
        ("demo__delete_everything", '{"deleted": 3}', "**3** notes"),
        ("demo__large_result", "line\n" * 1000, "5,000"),
        ("demo__echo", "hello", "> hello"),
        ("git__git_status", '{"clean": true}', '"clean": true'),
    ],
)
def test_a_result_is_repeated_unchanged(name: str, result: str, expected: str) -> None:
    assert expected in after("Whatever", (name, {"expression": "17 * 23 + 4"}, result)).text


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Error executing tool fail: Failed on purpose", None),
        ("TIMEOUT: no answer within 30 s", "TIMEOUT"),
        ("Error (DISABLED): tools are switched off", "DISABLED"),
        ("Tool failed with OUTCOME_UNKNOWN", "OUTCOME_UNKNOWN"),
        ("[CANCELLED] by the user", "CANCELLED"),
        ('{"error": {"code": "LOST", "message": "vanished"}}', "LOST"),
        ('{"error": "vanished", "code": "LOST"}', "LOST"),
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


@pytest.mark.parametrize(
    "text", ["395", "the timeout is 5 s", '{"error": null, "ok": 1}', '{"errors": 0}', "no error", ""]
)
def test_an_ordinary_result_is_not_taken_for_a_failure(text: str) -> None:
    assert failure(text) is None


def test_counting_ends_with_the_truth_when_a_call_fails_or_no_tool_is_left() -> None:
    question = "count to 3"
    one: Result = ("demo__increment_counter", {}, '{"counter": "demo", "value": 1}')
    failed = after(question, one, ("demo__increment_counter", {}, "TIMEOUT: no answer"))
    assert not failed.calls
    assert "ended after 1 of 3, because a call failed" in failed.text
    assert "ended after 1 of 3, because no tool is offered" in after(question, one, tools=()).text


def test_the_endless_script_goes_on_until_no_tool_is_offered() -> None:
    question, rounds = "keep calling tools forever", [("demo__echo", {"text": "round"}, "round")] * 40
    assert after(question, *rounds).calls == (ToolUse("demo__echo", {"text": "round 41"}),)
    answer = after(question, *rounds, tools=())
    assert not answer.calls
    assert "40 calls were made" in answer.text


def test_reasoning_is_shown_when_asked_for() -> None:
    assert "demo__calculate" in ask("Think aloud: what is 2 + 3?").reasoning
    assert not ask("What is 2 + 3?").reasoning
