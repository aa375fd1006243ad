"""What is done about a call that came back: the crash table, row by row."""

from dataclasses import replace

import pytest
from mcp.types import CallToolResult, TextContent

from plugins_contract.errors import ErrorCode
from plugins_contract.messages import ExecutionClass
from plugins_contract.outcomes import CallState, TextBlock, ToolOutcome
from plugins_mcp.decisions import (
    Finish,
    Interruption,
    LeaveToLease,
    Release,
    Retry,
    Situation,
    cancelled,
    conclude,
    decide_interrupted,
    timed_out,
)
from plugins_mcp.mcp import Ambiguous, Answered, CallResult, NotSent, Rejected, RetryLater, TimedOut
from tests.marks import promise

ONCE, REPEATABLE = ExecutionClass.ONCE, ExecutionClass.REPEATABLE
FAILED, UNKNOWN = CallState.FAILED, CallState.UNKNOWN
GONE = Ambiguous("gone")
NEVER_LEFT = NotSent("refused")
BUSY = RetryLater("503", 1.0)


def at(execution_class: ExecutionClass, *, retries: int = 0, seconds_left: float = 30.0) -> Situation:
    return Situation("demo", execution_class, retries, max_retries=2, seconds_left=seconds_left, result_max_bytes=4096)


def answered(text: str, *, is_error: bool = False) -> Answered:
    return Answered(CallToolResult(content=[TextContent(type="text", text=text)], is_error=is_error))


@promise("only what is safe is retried, with back-off and Retry-After")
@pytest.mark.parametrize(
    ("result", "execution_class", "retried", "state", "code"),
    [
        (NEVER_LEFT, ONCE, True, FAILED, ErrorCode.NETWORK_ERROR),
        (NEVER_LEFT, REPEATABLE, True, FAILED, ErrorCode.NETWORK_ERROR),
        (BUSY, ONCE, True, FAILED, ErrorCode.NETWORK_ERROR),
        (BUSY, REPEATABLE, True, FAILED, ErrorCode.NETWORK_ERROR),
        (GONE, ONCE, False, UNKNOWN, ErrorCode.OUTCOME_UNKNOWN),
        (GONE, REPEATABLE, True, FAILED, ErrorCode.NETWORK_ERROR),
        (TimedOut(), ONCE, False, UNKNOWN, ErrorCode.TIMEOUT),
        (TimedOut(), REPEATABLE, False, FAILED, ErrorCode.TIMEOUT),
        (TimedOut(sent=False), ONCE, False, FAILED, ErrorCode.TIMEOUT),
        (TimedOut(sent=False), REPEATABLE, False, FAILED, ErrorCode.TIMEOUT),
        (Rejected(ErrorCode.TOOL_NOT_FOUND, "no"), ONCE, False, FAILED, ErrorCode.TOOL_NOT_FOUND),
        (Rejected(ErrorCode.INVALID_ARGUMENTS, "no"), REPEATABLE, False, FAILED, ErrorCode.INVALID_ARGUMENTS),
        (answered("done"), ONCE, False, CallState.SUCCEEDED, None),
        (answered("done"), REPEATABLE, False, CallState.SUCCEEDED, None),
        (answered("no", is_error=True), ONCE, False, FAILED, ErrorCode.TOOL_EXECUTION_FAILED),
        (answered("no", is_error=True), REPEATABLE, False, FAILED, ErrorCode.TOOL_EXECUTION_FAILED),
    ],
)
def test_only_what_provably_did_not_run_or_may_run_again_is_retried_and_ends_with_what_is_known(
    result: CallResult, execution_class: ExecutionClass, retried: bool, state: CallState, code: ErrorCode | None
) -> None:
    assert isinstance(conclude(result, at(execution_class)), Retry) is retried
    decision = conclude(result, at(execution_class, retries=2))
    assert isinstance(decision, Finish)
    error = decision.outcome.error
    assert (decision.outcome.state, error.code if error else None) == (state, code)


@pytest.mark.parametrize("code", [ErrorCode.INPUT_REFUSED, ErrorCode.INPUT_EXPIRED, ErrorCode.INVALID_ARGUMENTS])
def test_an_engine_of_the_last_release_gets_no_code_that_it_cannot_read(code: ErrorCode) -> None:
    decision = conclude(Rejected(code, "no"), replace(at(ONCE), for_last_release=True))
    assert isinstance(decision, Finish)
    assert decision.outcome.error is not None
    known = ErrorCode.INVALID_ARGUMENTS
    assert decision.outcome.error.code is (known if code is known else ErrorCode.TOOL_EXECUTION_FAILED)


def test_an_answer_is_the_outcome_and_cut_to_the_size_that_is_set() -> None:
    decision = conclude(answered("x" * 10_000), at(ONCE))
    assert isinstance(decision, Finish)
    assert decision.outcome.state is CallState.SUCCEEDED
    assert decision.outcome.truncated
    (block,) = decision.outcome.content
    assert isinstance(block, TextBlock)
    assert len(block.text) < 5000


def test_a_state_of_the_server_is_sent_once_also_when_the_server_refuses_it_for_now() -> None:
    assert isinstance(conclude(BUSY, replace(at(ONCE), resumes=True)), Finish)
    assert isinstance(conclude(NEVER_LEFT, replace(at(ONCE), resumes=True)), Retry)


@promise("only what is safe is retried, with back-off and Retry-After")
def test_a_retry_after_of_the_server_is_kept() -> None:
    assert conclude(RetryLater("429", 7.5), at(ONCE)) == Retry(7.5)


@pytest.mark.parametrize(("retries", "longest"), [(0, 0.5), (1, 1.0), (4, 5.0), (9, 5.0)])
def test_the_pause_grows_with_every_retry_up_to_a_limit(retries: int, longest: float) -> None:
    now = Situation("demo", REPEATABLE, retries, max_retries=10, seconds_left=30, result_max_bytes=4096)
    pauses = [conclude(NEVER_LEFT, now) for _ in range(300)]
    assert all(isinstance(pause, Retry) and 0 <= pause.after_seconds <= longest for pause in pauses)
    assert max(pause.after_seconds for pause in pauses if isinstance(pause, Retry)) > longest / 2


@pytest.mark.parametrize("result", [NEVER_LEFT, BUSY, GONE])
def test_nothing_is_retried_that_would_come_after_the_deadline(result: CallResult) -> None:
    assert isinstance(conclude(result, at(REPEATABLE, seconds_left=0.0)), Finish)
    refused = conclude(RetryLater("503", 5.0), at(REPEATABLE, seconds_left=4.9))
    assert isinstance(refused, Finish)
    assert refused.outcome.error is not None
    assert "refused the call for now: 503; it asked for a pause of 5 s" in refused.outcome.error.message


def said(outcome: ToolOutcome) -> str:
    assert outcome.error is not None
    return outcome.error.message


def test_a_call_that_was_cut_off_while_it_ran_is_unknown_unless_it_may_run_again_and_says_what_is_known() -> None:
    assert cancelled(ONCE).state is CallState.UNKNOWN
    assert cancelled(REPEATABLE).state is CallState.CANCELLED
    assert timed_out(ONCE, sent=True).state is CallState.UNKNOWN
    assert "not run" in said(timed_out(ONCE, sent=False))
    assert "no progress for 30 s" in said(timed_out(ONCE, sent=True, quiet_s=30.0))
    now = Situation("demo", REPEATABLE, 1, 2, seconds_left=9, result_max_bytes=4096, may_have_run=True)
    earlier = conclude(TimedOut(sent=False), now)
    assert isinstance(earlier, Finish)
    assert "not run" not in said(earlier.outcome)


@pytest.mark.parametrize(
    ("by", "execution_class", "sent", "what"),
    [
        (Interruption.CALLER, ONCE, False, CallState.CANCELLED),
        (Interruption.CALLER, ONCE, True, CallState.UNKNOWN),
        (Interruption.CALLER, REPEATABLE, False, CallState.CANCELLED),
        (Interruption.CALLER, REPEATABLE, True, CallState.CANCELLED),
        *[
            (by, execution_class, False, Release())
            for by in (Interruption.LEASE_LOST, Interruption.WORKER_STOPPING)
            for execution_class in (ONCE, REPEATABLE)
        ],
        *[(by, ONCE, True, CallState.UNKNOWN) for by in (Interruption.LEASE_LOST, Interruption.WORKER_STOPPING)],
        *[(by, REPEATABLE, True, LeaveToLease()) for by in (Interruption.LEASE_LOST, Interruption.WORKER_STOPPING)],
    ],
)
def test_an_interrupted_call_is_finished_released_or_left_to_its_lease(
    by: Interruption, execution_class: ExecutionClass, sent: bool, what: CallState | Release | LeaveToLease
) -> None:
    decision = decide_interrupted(by, execution_class, sent=sent)
    assert (decision.outcome.state if isinstance(decision, Finish) else decision) == what
