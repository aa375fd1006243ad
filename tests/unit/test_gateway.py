"""The gateway: its description, and how its calls are resolved to tools. Pure."""

from typing import Any

import msgspec
import pytest

from dialog_engine.context import tokens_of_tool
from dialog_engine.model import ToolCall
from dialog_engine.tool_calls.exposure import gateway
from dialog_engine.tool_calls.exposure.gateway import NAME, Resolved, resolve
from dialog_engine.tool_calls.planning import plan
from dialog_engine.tool_calls.results import steps
from dialog_engine.tool_calls.values import Runnable, Unrunnable
from plugins_contract.catalog import ToolEntry
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, TextBlock, ToolOutcome
from tests.marks import promise
from tests.support.fakes.worker import FakeCatalog, tool

NUMBERS = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}
ADD = tool("sums__add", NUMBERS, description="Adds two numbers. Exactly.")
MEAN = tool("sums__mean", {"type": "object", "properties": {"of": {"type": "array"}}}, description="The mean.")
SEND = tool("post__send", {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]})
CATALOG = (ADD, MEAN, SEND)


def many(servers: int, tools: int) -> tuple[ToolEntry, ...]:
    return tuple(
        tool(f"server{s}__tool_number_{n}", NUMBERS, description="Does what its name says, and nothing else at all.")
        for s in range(servers)
        for n in range(tools)
    )


def planned(arguments: object) -> Runnable | Unrunnable:
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return plan(ToolCall("call_1", "id", NAME, text), FakeCatalog(*CATALOG))


def error_of(done: Runnable | Unrunnable | Resolved | ToolOutcome) -> tuple[ErrorCode, str]:
    outcome = done.outcome if isinstance(done, Unrunnable) else done
    assert isinstance(outcome, ToolOutcome), done
    assert outcome.state is CallState.FAILED
    assert outcome.error is not None
    return outcome.error.code, outcome.error.message


def answer_text(done: Runnable | Unrunnable) -> str:
    assert isinstance(done, Unrunnable)
    [block] = done.outcome.content
    assert isinstance(block, TextBlock)
    return block.text


# --- What is offered ------------------------------------------------------------------------------------------------


@promise("one gateway tool lists servers, operations and parameters, within a budget")
def test_every_operation_has_one_line_while_that_fits_the_budget() -> None:
    offered = gateway.entry(CATALOG, 1_000)

    assert offered.description.endswith(
        "Resources and their operations:\n"
        "sums:\n"
        "  add(a: number, b: number) - Adds two numbers.\n"
        "  mean(of?: array) - The mean.\n"
        "post:\n"
        "  send(to: string)"
    )
    assert offered.input_schema["properties"]["resource"]["enum"] == ["sums", "post"]


@promise("one gateway tool lists servers, operations and parameters, within a budget")
@pytest.mark.parametrize(
    ("budget", "there", "left_out"),
    [
        (6_000, "tool_number_9(a: number, b: number) - Does what its name says", "operations\n"),
        (2_000, "tool_number_9(a: number, b: number)", "Does what"),
        (800, "tool_number_9", "number,"),
        (300, "server9: 10 operations", "tool_number"),
    ],
)
def test_descriptions_are_left_out_first_then_parameters_then_operations(
    budget: int, there: str, left_out: str
) -> None:
    offered = gateway.entry(many(10, 10), budget)

    assert tokens_of_tool(offered) <= budget
    assert there in offered.description
    assert left_out not in offered.description


@promise("one gateway tool lists servers, operations and parameters, within a budget")
def test_with_very_many_servers_some_are_left_out_and_counted() -> None:
    offered = gateway.entry(many(500, 1), 700)

    assert tokens_of_tool(offered) <= 700
    shown = offered.description.count(": 1 operations")
    assert 0 < shown < 500
    assert f"and {500 - shown} more" in offered.description
    assert "enum" not in offered.input_schema["properties"]["resource"]


def test_something_is_offered_whatever_the_budget() -> None:
    assert "server0: 1 operations" in gateway.entry(many(1, 1), 1).description
    assert "and 2 more" in gateway.entry(many(3, 1), 1).description


# --- What a call stands for -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {"resource": "sums", "operation": "add", "params": {"a": 1, "b": 2}},
        {"resource": "sums", "operation": "sums__add", "params": {"a": 1, "b": 2}},
        {"resource": "sums", "operation": "add", "params": '{"a": 1, "b": 2}'},
    ],
)
def test_a_call_of_the_gateway_is_resolved_to_its_tool(arguments: object) -> None:
    done = planned(arguments)

    assert isinstance(done, Runnable)
    assert (done.tool, done.arguments) == (ADD, {"a": 1, "b": 2})
    assert (done.call.name, done.call.tool, done.call.tool_name) == (NAME, "sums__add", "sums__add")
    assert steps.shown_arguments(done.call) == {"a": 1, "b": 2}


def test_params_in_a_string_have_the_limits_of_any_arguments() -> None:
    deep = '{"a":' * 65 + "1" + "}" * 65

    assert "more than 64 objects" in error_of(planned({"resource": "sums", "operation": "mean", "params": deep}))[1]


@pytest.mark.parametrize("params", [{}, {"params": None}, {"params": ""}, {"params": {}}])
def test_an_operation_may_need_no_parameters(params: dict[str, Any]) -> None:
    done = planned({"resource": "sums", "operation": "mean"} | params)

    assert isinstance(done, Runnable)
    assert done.arguments == {}


@promise("an unknown resource or operation is answered with what exists")
@promise("a call of what does not exist is answered with the names that come nearest")
@pytest.mark.parametrize(
    ("resource", "operation", "params", "said"),
    [
        ("sum", "add", {}, "RESOURCE_NOT_FOUND: there is no resource 'sum'. Did you mean sums? Resources: sums, post."),
        ("sums", "ad", {}, "TOOL_NOT_FOUND: sums has no operation 'ad'. Did you mean add? Its operations: add, mean."),
        ("sums", "send", {},
            "TOOL_NOT_FOUND: sums has no operation 'send'. It is one of post. Its operations: add, mean"),
        ("sums", "help", {"operation": "men"},
            "TOOL_NOT_FOUND: sums has no operation 'men'. Did you mean mean? Its oper"),
        ("sums", "add", "{",
            "INVALID_ARGUMENTS: params: the arguments are not valid JSON: Input data was truncated. Send"),
        ("sums", "add", {"a": 1},
            "INVALID_ARGUMENTS: params: 'b' is a required property. The operation is add(a: number"),
    ],
)  # fmt: skip
def test_unknown_names_are_answered_with_existing_ones(resource: str, operation: str, params: Any, said: str) -> None:
    code, message = error_of(planned({"resource": resource, "operation": operation, "params": params}))
    assert f"{code}: {message}".startswith(said)


SHAPE = 'Send {"resource": a server, "operation": one of its operations, "params": {its parameters}}.'


@pytest.mark.parametrize(
    ("arguments", "said", "shape"),
    [
        ({"operation": "add"}, "'resource' is a required property", SHAPE),
        ({"resource": "sums", "operation": "add", "a": 1}, "'a' was unexpected", SHAPE),
        ({"resource": 1, "operation": "add"}, "resource: 1 is not of type 'string'", SHAPE),
        ('{"resource": ', "not valid JSON", ""),
    ],
)
def test_a_call_that_breaks_the_schema_is_answered_with_the_right_shape(
    arguments: object, said: str, shape: str
) -> None:
    code, message = error_of(planned(arguments))

    assert code is ErrorCode.INVALID_ARGUMENTS
    assert said in message
    assert message.endswith(shape)


def test_long_lists_of_names_and_long_names_are_cut() -> None:
    catalog = many(1, 200)
    _, message = error_of(resolve({"resource": "server0", "operation": "x" * 10_000}, catalog))

    assert "and 180 more" in message
    assert len(message) < 2_000


def test_a_wrong_call_keeps_its_own_name_for_users_and_an_invalid_one_names_its_tool() -> None:
    done = planned({"resource": "sums", "operation": "ad", "params": {"a": 1}})

    assert done.call.tool_name == NAME
    assert steps.shown_arguments(done.call) == {"resource": "sums", "operation": "ad", "params": {"a": 1}}

    done = planned({"resource": "sums", "operation": "add", "params": {"a": 1}})

    assert done.call.tool_name == "sums__add"
    assert steps.shown_arguments(done.call) == {"a": 1}


# --- Help -----------------------------------------------------------------------------------------------------------


def test_help_lists_the_operations_of_a_server() -> None:
    done = planned({"resource": "sums", "operation": "help"})

    assert answer_text(done) == "sums:\n  add(a: number, b: number) - Adds two numbers.\n  mean(of?: array) - The mean."
    assert done.tool is not None
    assert done.tool.server == "callstream"


def test_help_describes_one_operation_in_full() -> None:
    text = answer_text(planned({"resource": "sums", "operation": "help", "params": {"operation": "add"}}))

    assert text.startswith("add(a: number, b: number)\nAdds two numbers. Exactly.\nparams as JSON schema: {")
    assert '"required":["a","b"]' in text


@pytest.mark.parametrize("tools", [20, 100, 500, 5_000])
def test_help_has_a_bound(tools: int) -> None:
    outcome = resolve({"resource": "server0", "operation": "help"}, many(1, tools))

    assert isinstance(outcome, ToolOutcome)
    [block] = outcome.content
    assert isinstance(block, TextBlock)
    assert len(block.text) <= 4 * gateway.HELP_TOKENS + 3
    assert "tool_number_0" in block.text


def test_a_tool_with_the_name_help_takes_precedence() -> None:
    own = tool("desk__help")

    assert resolve({"resource": "desk", "operation": "help"}, [own]) == Resolved(own, {})
