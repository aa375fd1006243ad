"""The strict model of the harness: which conversations it does not take."""

from typing import Any

import pytest

from tests.chaos.model import mistake_in

ASKED: dict[str, Any] = {"role": "user", "content": "go"}
CALLS: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [{"id": "a"}, {"id": "b"}]}


def result(call: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": "done"}


@pytest.mark.parametrize(
    ("messages", "wrong"),
    [
        ([ASKED], None),
        ([ASKED, CALLS, result("b"), result("a")], None),
        ([ASKED, CALLS, result("a"), result("b"), ASKED], None),
        ([ASKED, CALLS, result("a")], "calls without a result: ['b']"),
        ([ASKED, CALLS, result("a"), ASKED], "calls without a result: ['b']"),
        ([ASKED, CALLS, result("a"), result("b"), result("a")], "a result that nothing waits for: a"),
        ([ASKED, result("a")], "a result that nothing waits for: a"),
        ([ASKED, CALLS | {"tool_calls": [{"id": "a"}, {"id": "a"}]}], "the same id twice: ['a', 'a']"),
        ([ASKED, {"role": "assistant", "content": ""}], "a message of assistant says nothing"),
        ([ASKED, {"role": "assistant", "content": "done"}], "there is no question"),
    ],
)
def test_it_refuses_what_a_provider_would_refuse(messages: list[dict[str, Any]], wrong: str | None) -> None:
    assert mistake_in(messages) == wrong
