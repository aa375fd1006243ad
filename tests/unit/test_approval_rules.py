"""The rules of approvals as tables: which calls need one, and what follows from each decision."""

from typing import Any

import msgspec
import pytest

from dialog_engine.errors import (
    ApprovalExpiredError,
    ApprovalStaleError,
    ArgumentsRefusedError,
    ToolChangedError,
)
from dialog_engine.model import ApprovalStatus, ToolStatus
from dialog_engine.tool_calls.approvals.rules import (
    AnswerCall,
    AskAgain,
    RunCall,
    StaysOpen,
    judge,
    question_for,
    question_hash,
    stopped,
)
from dialog_engine.tool_calls.results.steps import status_of
from dialog_engine.tool_calls.results.texts import for_model
from dialog_engine.tool_calls.values import Approve, Decision, Given, Question, Refuse
from plugins_contract.catalog import ApprovalPolicy, ToolEntry
from plugins_contract.errors import ErrorCode
from plugins_contract.messages import ExecutionClass
from plugins_contract.outcomes import ToolError
from tests.marks import promise
from tests.support.fakes import succeeded, tool

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOL = tool("files__delete", SCHEMA, description="Deletes", approval=ApprovalPolicy.DESTRUCTIVE)
ARGUMENTS = {"path": "/a"}
NOW, MINUTE = 1_000_000, 60_000


def asked(entry: ToolEntry = TOOL) -> Question:
    return question_for(entry, ARGUMENTS, NOW, MINUTE)


QUESTION = asked()
APPROVE = Approve(QUESTION.hash)


def changed(**fields: Any) -> ToolEntry:
    return msgspec.structs.replace(TOOL, **fields)


@pytest.mark.parametrize("policy", [each for each in ApprovalPolicy if each is not ApprovalPolicy.NEVER])
def test_a_question_names_its_policy_and_when_it_expires(policy: ApprovalPolicy) -> None:
    question = question_for(changed(approval=policy), ARGUMENTS, NOW, MINUTE)

    assert (question.policy, question.expires_at) == (policy, NOW + MINUTE)


def test_an_approved_call_is_run_with_the_arguments_of_the_question() -> None:
    assert judge(QUESTION, APPROVE, TOOL, NOW) == RunCall(
        Decision(status=ApprovalStatus.APPROVED, at=NOW), TOOL, ARGUMENTS
    )


def test_edited_arguments_are_run_and_kept_with_the_decision() -> None:
    edited = {"path": "/b"}
    run = judge(QUESTION, Approve(QUESTION.hash, edited), TOOL, NOW)

    assert run == RunCall(Decision(status=ApprovalStatus.EDITED, at=NOW, arguments=edited), TOOL, edited)


def test_arguments_that_were_sent_back_unchanged_are_not_edited() -> None:
    run = judge(QUESTION, Approve(QUESTION.hash, dict(ARGUMENTS)), TOOL, NOW)

    assert isinstance(run, RunCall)
    assert run.decision == Decision(status=ApprovalStatus.APPROVED, at=NOW)


@pytest.mark.parametrize(("arguments", "field"), [({"path": 5}, "path"), ({}, "arguments")])
def test_edited_arguments_must_fit_the_schema_and_the_field_is_named(arguments: dict[str, Any], field: str) -> None:
    rejected = judge(QUESTION, Approve(QUESTION.hash, arguments), TOOL, NOW)

    assert isinstance(rejected, StaysOpen)
    assert isinstance(rejected.error, ArgumentsRefusedError)
    assert rejected.error.field == field


@promise("an approval is bound to its arguments, given once, and expires")
@pytest.mark.parametrize(
    "entry",
    [
        changed(description="Deletes more"),
        changed(input_schema={"type": "object"}),
        changed(annotations={"destructiveHint": True}),
        changed(execution_class=ExecutionClass.REPEATABLE),
        changed(tool="remove"),
        changed(approval=ApprovalPolicy.NEVER, description="Harmless, it says"),
    ],
    ids=["description", "schema", "annotations", "class", "tool", "policy"],
)
def test_a_tool_that_has_changed_needs_a_new_question(entry: ToolEntry) -> None:
    again = judge(QUESTION, APPROVE, entry, NOW + 1)

    assert isinstance(again, AskAgain)
    assert isinstance(again.error, ToolChangedError)
    assert again.question.hash == question_hash(entry, ARGUMENTS) != QUESTION.hash
    assert again.question.policy is not ApprovalPolicy.NEVER
    assert again.question.expires_at == NOW + 1 + MINUTE
    assert isinstance(judge(again.question, APPROVE, entry, NOW + 2), StaysOpen), "the old hash approves nothing"
    assert isinstance(judge(again.question, Approve(again.question.hash), entry, NOW + 2), RunCall)


def test_properties_outside_the_hash_may_change() -> None:
    assert isinstance(judge(QUESTION, APPROVE, changed(timeout_ms=1), NOW), RunCall)


def test_an_approval_of_something_else_is_rejected() -> None:
    rejected = judge(QUESTION, Approve("another"), TOOL, NOW)

    assert isinstance(rejected, StaysOpen)
    assert isinstance(rejected.error, ApprovalStaleError)


def test_a_tool_that_is_gone_cannot_be_approved_and_the_question_stays_open() -> None:
    rejected = judge(QUESTION, APPROVE, ToolError(ErrorCode.TOOL_NOT_FOUND, "gone"), NOW)

    assert isinstance(rejected, StaysOpen)
    assert isinstance(rejected.error, ToolChangedError)


@promise("an approval is bound to its arguments, given once, and expires")
@pytest.mark.parametrize("given", [APPROVE, Approve(QUESTION.hash, {"path": "/b"}), Refuse("no")])
def test_decisions_after_the_timeout_are_refused(given: Given) -> None:
    answer = judge(QUESTION, given, TOOL, QUESTION.expires_at)

    assert isinstance(answer, AnswerCall)
    assert answer.decision.status is ApprovalStatus.EXPIRED
    assert isinstance(answer.error, ApprovalExpiredError)
    assert status_of(answer.outcome) is ToolStatus.REFUSED
    assert isinstance(judge(QUESTION, APPROVE, TOOL, QUESTION.expires_at - 1), RunCall)


def test_a_refusal_needs_neither_hash_nor_tool_and_its_reason_reaches_the_model() -> None:
    answer = judge(QUESTION, Refuse("not on a Friday"), ToolError(ErrorCode.TOOL_NOT_FOUND, "gone"), NOW)

    assert isinstance(answer, AnswerCall)
    assert answer.decision == Decision(status=ApprovalStatus.REFUSED, at=NOW, reason="not on a Friday")
    assert answer.error is None
    assert status_of(answer.outcome) is ToolStatus.REFUSED
    said = for_model(answer.outcome)
    assert said.startswith("Error NOT_APPROVED")
    assert "not on a Friday" in said


def test_a_call_that_was_stopped_while_it_waited_is_cancelled_and_was_not_run() -> None:
    assert status_of(stopped()) is ToolStatus.CANCELLED
    assert "not run" in for_model(stopped())


def test_the_model_reads_the_arguments_that_were_run_in_place_of_its_own() -> None:
    said = for_model(succeeded("gone"), {"path": "/b"})

    assert said.startswith("gone")
    assert '{"path":"/b"}' in said


EDITED = Decision(status=ApprovalStatus.EDITED, at=1, arguments={"x": 1})


@pytest.mark.parametrize(
    ("decision", "given", "same"),
    [
        (Decision(status=ApprovalStatus.APPROVED, at=1), Approve("h"), True),
        (Decision(status=ApprovalStatus.APPROVED, at=1), Approve("h", {"x": 1}), False),
        (Decision(status=ApprovalStatus.APPROVED, at=1), Refuse(), False),
        (EDITED, Approve("h", {"x": 1}), True),
        (EDITED, Approve("h", {"x": 2}), False),
        (EDITED, Approve("h"), False),
        (Decision(status=ApprovalStatus.REFUSED, at=1, reason="no"), Refuse("no"), True),
        (Decision(status=ApprovalStatus.REFUSED, at=1, reason="no"), Refuse("never"), False),
        (Decision(status=ApprovalStatus.EXPIRED, at=1), Refuse(), False),
        (Decision(status=ApprovalStatus.EXPIRED, at=1), Approve("h"), False),
    ],
)
def test_a_repeated_decision_is_recognised(decision: Decision, given: Given, same: bool) -> None:
    assert decision.same_as(given) is same
