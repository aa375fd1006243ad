"""ApprovalStore: one suite for SQLite and for PostgreSQL."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from dialog_engine.errors import IdempotencyKeyReusedError
from dialog_engine.model import (
    ApprovalStatus,
    AssistantMessage,
    Done,
    DoneReason,
    QuestionStatus,
    ToolCall,
    Turn,
    Usage,
)
from dialog_engine.tool_calls.approvals.rules import question_for, stopped
from dialog_engine.tool_calls.ports import ClientResult, MakeRequest
from dialog_engine.tool_calls.questions.values import Answer, Asking
from dialog_engine.tool_calls.values import AnswerKey, ApprovalState, Asked, Decision, Question, WholeResult
from plugins_contract.catalog import ApprovalPolicy
from plugins_contract.messages import EVENT_TYPE, new_id
from plugins_contract.questions import InputRequired, QuestionKind, ServerQuestion
from tests.marks import promise
from tests.support.beginnings import begin
from tests.support.engine_stores import EngineStore, mailbox_of, requested
from tests.support.fakes.worker import FakeWorker, failed, succeeded, tool

TOOL = tool("a__b", approval=ApprovalPolicy.ALWAYS)
APPROVED = Decision(status=ApprovalStatus.APPROVED, at=5)
REFUSED = Decision(status=ApprovalStatus.REFUSED, at=5, reason="no")


def question(**arguments: Any) -> Question:
    return question_for(TOOL, arguments, 0, 60_000)


async def waiting(storage: EngineStore, calls: int = 1) -> tuple[Turn, list[Asked]]:
    """A turn whose calls wait for approval."""
    turn = await begin(storage.turns, "ada", None, "Hello!")
    asked = [
        Asked(ToolCall(f"call_{n}", new_id(), "mcp_query", '{"x": 1}', tool="a__b"), question(x=n))
        for n in range(calls)
    ]
    questions = {each.call.correlation_id: each.question for each in asked}
    message = AssistantMessage("", tuple(each.call for each in asked))
    await storage.calls.add_round(turn, message, [], {}, questions)
    return turn, asked


async def of_client(storage: EngineStore, calls: int = 1) -> tuple[Turn, list[Asked]]:
    """A turn whose calls wait for its client."""
    turn = await begin(storage.turns, "ada", None, "Hello!")
    put = question_for(TOOL, {}, 0, 60_000, by_client=True)
    asked = [Asked(ToolCall(f"call_{n}", new_id(), "a__b", "{}"), put) for n in range(calls)]
    message = AssistantMessage("", tuple(each.call for each in asked))
    questions = {each.call.correlation_id: put for each in asked}
    await storage.calls.add_round(turn, message, [], {}, questions)
    return turn, asked


def given(asked: Asked, text: str = "teal") -> ClientResult:
    decision = Decision(status=ApprovalStatus.ANSWERED, at=5, digest=text)
    return ClientResult(asked, decision, succeeded(text), WholeResult(text))


def request(asked: Asked) -> MakeRequest:
    return lambda turn: FakeWorker().request(turn, asked.call, TOOL, asked.question.arguments)


async def enqueued(storage: EngineStore) -> list[str]:
    return [row.event_id for row in await storage.outbox.waiting(100) if row.event_type == EVENT_TYPE]


@promise("destructive tools wait for approval, durably")
async def test_a_call_that_waits_has_no_outbox_row_and_is_not_open(storage: EngineStore) -> None:
    turn, asked = await waiting(storage, 2)

    assert [*(await storage.archive.open_calls(turn)).asked] == asked
    assert await enqueued(storage) == []
    assert [*(await storage.archive.open_calls(turn)).requested] == []


async def test_approving_puts_the_request_into_the_outbox_and_opens_the_call(storage: EngineStore) -> None:
    turn, [asked] = await waiting(storage)
    wanted = msgspec.structs.replace(request(asked)(turn), mailbox=mailbox_of(storage.engine_id))

    assert await storage.approvals.decide(turn.turn_id, asked, APPROVED, lambda _: wanted, None)

    assert await enqueued(storage) == [asked.call.correlation_id]
    assert [each.request for each in (await storage.archive.open_calls(turn)).requested] == [wanted]
    assert [*await storage.approvals.states([asked.call.correlation_id])] == [
        ApprovalState(asked.call.correlation_id, asked.question, APPROVED, None, wanted)
    ]
    assert [*(await storage.archive.open_calls(turn)).asked] == []


async def test_refusing_answers_the_call(storage: EngineStore) -> None:
    turn, [asked] = await waiting(storage)

    assert await storage.approvals.decide(turn.turn_id, asked, REFUSED, None, failed("not approved"))

    [_, message] = await storage.archive.turn_messages(turn.turn_id)
    assert message.calls[0].outcome == failed("not approved")
    assert message.calls[0].server == "a"
    assert message.calls[0].approval is not None
    assert message.calls[0].approval.decision == REFUSED
    assert await enqueued(storage) == []


@promise("an approval is bound to its arguments, given once, and expires")
async def test_one_of_simultaneous_decisions_is_taken(storage: EngineStore) -> None:
    turn, [asked] = await waiting(storage)

    taken = await asyncio.gather(
        storage.approvals.decide(turn.turn_id, asked, REFUSED, None, failed("no")),
        storage.approvals.decide(turn.turn_id, asked, APPROVED, request(asked), None),
        storage.approvals.decide(turn.turn_id, asked, APPROVED, request(asked), None),
    )

    assert sum(map(bool, taken)) == 1
    [_, message] = await storage.archive.turn_messages(turn.turn_id)
    refused = message.calls[0].outcome is not None
    assert refused == bool(taken[0])
    assert await enqueued(storage) == ([] if refused else [asked.call.correlation_id])


@promise("the Idempotency-Key of an answer to a call stands for that answer, natively and in every protocol")
async def test_the_key_of_an_answer_is_kept_with_what_it_commits_or_not_at_all(storage: EngineStore) -> None:
    key, other = AnswerKey("ada", "k1", "one"), AnswerKey("ada", "k2", "one")
    turn, [first, second] = await waiting(storage, 2)
    sent, [asked] = await of_client(storage)

    async def approve(each: Asked, key: AnswerKey) -> bool:
        return bool(await storage.approvals.decide(turn.turn_id, each, APPROVED, request(each), None, key))

    assert await approve(first, key)
    assert not await approve(first, other)
    reused = replace(key, content="two")
    form = InputRequired((ServerQuestion("k", QuestionKind.URL, "?"),))
    ran = requested(turn, first.call)
    await storage.questions.ask(turn, first.call, ran, lambda text: Asking("a", "b", form, text, 1, 2))
    [put] = (await storage.archive.open_calls(turn)).rounds
    answers = {1: Answer(QuestionStatus.DECLINED, 5)}
    for refused in (
        approve(second, reused),
        storage.approvals.answer(sent.turn_id, [given(asked)], reused),
        storage.questions.answer(turn.turn_id, put, answers, None, None, reused),
    ):
        with pytest.raises(IdempotencyKeyReusedError):
            await refused
    assert [*(await storage.archive.open_calls(turn)).asked] == [second]
    assert await approve(second, key), "another answer of the same request"
    assert await storage.approvals.answer(sent.turn_id, [given(asked)], replace(other, content="two"))


async def test_a_replaced_question_is_decided_by_the_new_one_only(storage: EngineStore) -> None:
    turn, [asked] = await waiting(storage)
    new = question(x="another")

    assert await storage.approvals.ask_again(turn.turn_id, asked, new)

    again = Asked(asked.call, new)
    assert [*(await storage.archive.open_calls(turn)).asked] == [again]
    assert not await storage.approvals.decide(turn.turn_id, asked, APPROVED, request(asked), None)
    assert not await storage.approvals.ask_again(turn.turn_id, asked, question(x="a third"))
    assert await storage.approvals.decide(turn.turn_id, again, APPROVED, request(again), None)
    assert not await storage.approvals.ask_again(turn.turn_id, again, question(x="a fourth"))


async def test_after_closing_nothing_can_be_approved(storage: EngineStore) -> None:
    turn, asked = await waiting(storage, 2)
    await storage.approvals.decide(turn.turn_id, asked[0], APPROVED, request(asked[0]), None)

    assert [*await storage.approvals.close(turn, stopped)] == [(asked[1], stopped(asked[1]))]

    assert not await storage.approvals.decide(turn.turn_id, asked[1], APPROVED, request(asked[1]), None)
    assert [each.call for each in (await storage.archive.open_calls(turn)).requested] == [asked[0].call]
    assert await enqueued(storage) == [asked[0].call.correlation_id]
    assert [*await storage.approvals.close(turn, stopped)] == []


@promise("any engine takes a decision on the turn of any other, also while Redis is away")
async def test_a_decision_is_for_the_turn_whoever_runs_it(storage: EngineStore) -> None:
    turn, [asked] = await waiting(storage)
    [adopted] = await storage.engines.adopt_own(None)
    later = adopted.turn

    assert await storage.approvals.decide(turn.turn_id, asked, APPROVED, request(asked), None)

    [opened] = (await storage.archive.open_calls(later)).requested
    assert opened.request.turn == later.epoch
    assert [*(await storage.archive.open_calls(later)).asked] == []


async def test_a_turn_that_has_ended_decides_nothing(storage: EngineStore) -> None:
    turn, [asked] = await waiting(storage)
    await storage.turns.finish(turn, None, Done(turn.turn_id, DoneReason.ERROR, Usage(), None), None)

    assert not await storage.approvals.decide(turn.turn_id, asked, APPROVED, request(asked), None)
    assert await enqueued(storage) == []


async def test_the_model_sees_edited_arguments_in_later_turns_too(storage: EngineStore) -> None:
    turn, [asked] = await waiting(storage)
    edited = Decision(status=ApprovalStatus.EDITED, at=5, arguments={"x": 9})
    wanted = msgspec.structs.replace(request(asked)(turn), arguments={"x": 9})
    await storage.approvals.decide(turn.turn_id, asked, edited, lambda _: wanted, None)
    await storage.calls.add_result(turn, asked.call, failed("so it goes"))

    *_, said, result = await storage.messages(turn.session_id)
    assert isinstance(said, AssistantMessage)
    assert said.tool_calls[0].arguments == '{"x": 1}'
    assert '{"x":9}' in result.content


@promise("the results of several calls of a client are taken together, or none of them")
async def test_results_of_a_client_commit_together_or_not_at_all(storage: EngineStore) -> None:
    turn, [first, second] = await of_client(storage, 2)
    assert await storage.approvals.answer(turn.turn_id, [given(first)])
    assert await storage.approvals.answer(turn.turn_id, [given(second), given(first, "red")]) is None

    states = await storage.approvals.states([first.call.correlation_id, second.call.correlation_id])
    assert {each.correlation_id: each.outcome for each in states} == {
        first.call.correlation_id: succeeded("teal"),
        second.call.correlation_id: None,
    }
    whole = await storage.archive.whole("ada", turn.turn_id, first.call.correlation_id)
    assert whole == WholeResult("teal")
    assert await enqueued(storage) == [], "nothing of it is published"


@promise("the result of a client's tool is taken once, at any engine, and goes on with the turn")
async def test_of_two_results_of_a_client_at_once_one_is_taken_and_gets_the_parked_turn(storage: EngineStore) -> None:
    turn, [asked] = await of_client(storage)
    assert await storage.parked.park(turn, {asked.call.correlation_id: asked.question.hash}, None)
    done = await asyncio.gather(
        *(storage.approvals.answer(turn.turn_id, [given(asked, text)]) for text in ("teal", "red"))
    )
    [committed] = [each for each in done if each]
    assert committed.taken is not None
    assert committed.taken.epoch == 2
    [state] = await storage.approvals.states([asked.call.correlation_id])
    assert state.decision is not None
    assert state.outcome == succeeded(state.decision.digest)


async def test_a_result_for_a_turn_that_has_ended_is_not_taken(storage: EngineStore) -> None:
    turn, [asked] = await of_client(storage)
    [(_, outcome)] = await storage.approvals.close(turn, stopped)
    assert (outcome.state, await storage.approvals.answer(turn.turn_id, [given(asked)])) == ("unknown", None)
    [call] = await storage.archive.made_calls("ada", turn.turn_id, 9)
    assert call.execution_class == "client", "it may have taken effect"
