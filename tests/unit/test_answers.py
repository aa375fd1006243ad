"""What fits a form of a server, and the request of the next round."""

from typing import Any

import msgspec
import pytest

from dialog_engine.model import QuestionStatus, ToolCall
from dialog_engine.tool_calls.questions.rules import filled, lost, next_request
from dialog_engine.tool_calls.questions.values import Answer, AskedRound, Asking
from plugins_contract.encryption import CLEAR
from plugins_contract.messages import ExecutionClass, approve, encode_request, is_approved
from plugins_contract.outcomes import CallState
from plugins_contract.questions import InputRequired, NextRound, QuestionKind, ServerQuestion
from tests.marks import promise
from tests.support.handling import delivery


def problem(field: dict[str, Any], value: Any, *, required: bool = False) -> str:
    form = {"type": "object", "properties": {"f": field}, "required": ["f"] if required else []}
    content = {} if value is None else {"f": value}
    return filled(ServerQuestion("k", QuestionKind.FORM, "?", form=form), content)[1].get("f", "")


TEXT = {"type": "string"}
SEVERAL = {"type": "array", "items": {"type": "string", "enum": ["a", "b", "c"]}, "minItems": 1, "maxItems": 2}


@promise("an answer to a server's form that does not fit is refused by field")
@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        (TEXT, ["", "x" * 10_000], [1, True, ["x"], "x" * 10_001]),
        (TEXT | {"minLength": 2, "maxLength": 3}, ["ab", "abc"], ["a", "abcd"]),
        (TEXT | {"format": "email"}, ["a@b", "a.b+c@d.example"], ["a", "a@", "a b@c", "@" * 9_999, "a@b."]),
        (TEXT | {"format": "uri"}, ["https://example.com/x", "urn:x:y"], ["example", "https://a b", "https://["]),
        (TEXT | {"format": "date"}, ["2026-02-28"], ["2026-02-30", "28.2.2026", "20260228", "2026-W09-6"]),
        (TEXT | {"format": "date-time"}, ["2026-02-28T10:00:00Z", "2026-02-28T10:00:00.5+01:00"], ["2026-02-28", "x"]),
        (TEXT | {"enum": ["a", "b"]}, ["a"], ["c", ""]),
        (TEXT | {"oneOf": [{"const": "a", "title": "A"}]}, ["a"], ["A"]),
        ({"type": "integer", "minimum": 1, "maximum": 4}, [1, 4, 2.0], [0, 5, 1.5, True, "1", float("nan")]),
        ({"type": "number"}, [1, 1.5], [float("inf"), "1"]),
        ({"type": "boolean"}, [True, False], [1, "true"]),
        (SEVERAL, [["a"], ["c", "a"]], [[], ["a", "b", "c"], ["d"], ["a", "a"], "a", [1]]),
    ],
)
def test_what_fits(field: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    assert [value for value in good if problem(field, value)] == []
    assert [value for value in bad if not problem(field, value)] == []
    assert problem(field, None, required=True) == "is required"


def test_defaults_are_filled_in_and_what_the_form_does_not_have_is_refused() -> None:
    form = {"type": "object", "properties": {"a": TEXT | {"default": "x"}, "b": {"type": "integer", "default": 2}}}
    question = ServerQuestion("k", QuestionKind.FORM, "?", form=form)
    assert filled(question, {"b": 3}) == ({"a": "x", "b": 3}, {})
    assert filled(question, {"c": 1})[1] == {"c": "the form has no such field"}
    assert filled(ServerQuestion("k", QuestionKind.URL, "?", url="https://example.com"), {"c": 1})[1]


def test_the_next_round_is_the_same_call_once_with_the_answers_and_the_state() -> None:
    before = approve(delivery().request, "ada")
    asked = InputRequired(
        (ServerQuestion("a", QuestionKind.FORM, "?"), ServerQuestion("b", QuestionKind.URL, "?")), "opaque"
    )
    asking = Asking("demo", "add", asked, encode_request(before).decode(), 0, 9)
    answers = {1: Answer(QuestionStatus.ANSWERED, 1, {"x": 1}), 2: Answer(QuestionStatus.CANCELLED, 1)}
    request = next_request(asking, answers, cipher=CLEAR, deadline=77)

    assert request.correlation_id == f"{before.correlation_id}:2"
    assert request.response_channel.endswith(request.correlation_id)
    assert (request.execution_class, request.deadline, request.arguments) == (ExecutionClass.ONCE, 77, before.arguments)
    assert request.next_round
    assert request.next_round.state == "opaque"
    assert request.next_round.responses == {"a": {"action": "accept", "content": {"x": 1}}, "b": {"action": "cancel"}}
    assert is_approved(request)
    again = next_request(
        Asking("demo", "add", asked, encode_request(request).decode(), 0, 9), answers, cipher=CLEAR, deadline=1
    )
    assert again.correlation_id == f"{before.correlation_id}:3"


def test_a_call_that_was_open_runs_again_only_where_it_may() -> None:
    asked = InputRequired((ServerQuestion("a", QuestionKind.FORM, "?"),), holder="sessions-a")
    withdrawn = {1: Answer(QuestionStatus.WITHDRAWN, 1)}

    def asking(execution_class: ExecutionClass) -> Asking:
        request = msgspec.structs.replace(delivery().request, execution_class=execution_class)
        return Asking("demo", "add", asked, encode_request(request).decode(), 0, 9)

    once, repeatable = asking(ExecutionClass.ONCE), asking(ExecutionClass.REPEATABLE)
    ended = lost(once)
    assert ended is not None
    assert ended.state is CallState.UNKNOWN
    assert lost(repeatable) is None
    again = next_request(repeatable, withdrawn, cipher=CLEAR, deadline=1, again=True)
    assert again.next_round == NextRound(2), "the call from its beginning, at any worker"
    on = next_request(repeatable, withdrawn, cipher=CLEAR, deadline=1)
    assert on.next_round == NextRound(2, holder="sessions-a"), "without an answer"


def test_a_round_is_open_until_each_question_has_ended() -> None:
    asked = InputRequired((ServerQuestion("a", QuestionKind.FORM, "?"), ServerQuestion("b", QuestionKind.FORM, "?")))
    found = AskedRound(ToolCall("t", "c", "n", "{}"), 1, Asking("s", "t", asked, "{}", 0, 9))
    half = AskedRound(found.call, 1, found.asking, {1: Answer(QuestionStatus.DECLINED, 1)})
    assert (found.is_open, half.is_open) == (True, True)
    assert [step.status for step in half.steps(1, {})] == [QuestionStatus.DECLINED]
    assert half.question_id(2) == "c:1:2"
