"""Turns as responses of OpenAI's Responses API: `facades/responses/encoder.py`."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from openai.types.responses import Response

from dialog_engine.chat.archive import CallRecord, MessageRecord, TurnRecord
from dialog_engine.chat.events import Batch, Frame, encode
from dialog_engine.chat.replay import replay_ended
from dialog_engine.facades.encoder import EPOCH_SHIFT, Lacking, Output
from dialog_engine.facades.responses.encoder import Form, ResponseEncoder
from dialog_engine.facades.responses.ids import APPROVAL, approval_id, asked_for, named
from dialog_engine.facades.stream import Part, outputs
from dialog_engine.model import ApprovalStatus, ToolCall, TurnEvent, Usage
from dialog_engine.tool_calls.values import Approval, Decision
from tests.marks import promise
from tests.support.engine_stores import question
from tests.support.fakes.worker import succeeded
from tests.support.official_types import response_events
from tests.support.random_turns import TURN, RandomTurn, random_turns

SAID: dict[str, Any] = {
    "model": "m",
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
}

USED = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 15,
}


def encoded(frames: Iterable[Frame], answered: str = "") -> tuple[list[Output], Response]:
    """What a reader of one response is sent, and the response."""
    encoder = ResponseEncoder(Form(TURN, SAID, answered))
    sent = [output for frame in frames for output in encoder.feed(frame)]
    return sent, Response.model_validate(encoder.document, strict=True)


def encoded_events(events: Iterable[TurnEvent]) -> tuple[list[Output], Response]:
    """The same of a log with these events."""
    named = (encode(event) for event in events)
    return encoded(frame(number, name, **data) for number, (name, data) in enumerate(named, 1))


@promise("what another protocol's client gets of a turn is the same at every engine, live and replayed")
@settings(deadline=None)  # the package builds its types when they are first used
@given(turn=random_turns(), size=st.integers(1, 9), data=st.data())
def test_the_responses_of_a_turn_have_all_that_is_stored_of_it_once(
    turn: RandomTurn, size: int, data: st.DataObject
) -> None:
    frames = turn.frames
    texts, answered, responses = "", "", 0
    calls: list[str] = []
    functions: set[str] = set()
    while True:
        responses += 1
        sent, response = encoded(frames, answered)
        response_events(sent)
        assert [output.last for output in sent] == [False] * (len(sent) - 1) + [True]
        place = data.draw(st.integers(0, len(sent) - 1))
        batches = (frames[at : at + size] for at in range(0, len(frames), size))
        encoder = partial(ResponseEncoder, Form(TURN, SAID, answered))
        part = Part(after=sent[place].number)
        rest = asyncio.run(_joined(outputs(_each(batches), encoder, part, _never)))
        assert rest == b"".join(output.data for output in sent[place + 1 :])
        texts += response.output_text
        calls += [item.id for item in response.output if item.type == "mcp_call"]
        asked = [asked_for(_found(item.id))[0] for item in response.output if item.type == "mcp_approval_request"]
        of_client = [item.call_id for item in response.output if item.type == "function_call"]
        assert len(of_client) == len(set(of_client))
        functions |= {*of_client}
        assert response.model_dump(exclude_none=True)["usage"] == USED, "of the rounds so far"
        is_stopped = response.status == "cancelled"  # perhaps after a request for approval, before the turn waits
        if is_stopped or not (asked or of_client):
            break
        assert response.status == "completed"
        answered = min(asked + of_client)  # these logs have the answers in this order
    assert texts == "".join(turn.texts)
    assert len(calls) == len(set(calls))
    assert functions == {*turn.of_client}
    assert is_stopped or (responses > 1) == bool(turn.asked or turn.of_client), (
        "a response ends where its user or its client is asked"
    )


async def _joined(pieces: AsyncGenerator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


async def _never() -> None:
    raise AssertionError("the log is read once")


async def _each(batches: Iterable[Batch]) -> AsyncGenerator[Batch]:
    for batch in batches:
        yield batch


def _found(item_id: str) -> Any:
    found = named(item_id, APPROVAL)
    assert found
    return found


CALL = {"toolName": "demo__add", "server": "demo", "toolCallId": "c1", "round": 1}


def frame(number: int, name: str, **data: Any) -> Frame:
    return Frame(f"1-{number}", name, json.dumps(data, separators=(",", ":"), ensure_ascii=False))


def test_a_call_that_was_answered_first_belongs_to_the_response_whose_request_has_answered_both() -> None:
    def step(number: int, kind: str, status: str, call: str, **more: Any) -> Frame:
        return frame(number, "control", type=kind, status=status, correlationId=call, **CALL, **more)

    frames = [
        *(step(n, "approval", "asked", call, arguments={}, hash="h") for n, call in enumerate(("k1", "k2"), 1)),
        frame(3, "control", type="waiting", approvals=2, calls=["k1", "k2"]),
        step(4, "approval", "approved", "k2"),
        step(5, "tool", "succeeded", "k2", result={"text": "2"}),
        step(6, "approval", "approved", "k1"),
        step(7, "tool", "succeeded", "k1", result={"text": "1"}),
        frame(8, "done", reason="stop", usage={"inputTokens": 1, "outputTokens": 1}, toolCalls=2, turnId=TURN),
    ]
    sent, response = encoded(frames, "k1")
    response_events(sent)
    assert [getattr(item, "output", "") for item in response.output] == ["2", "1"]


def test_what_was_answered_before_the_last_wait_or_with_it_is_not_in_the_response_again() -> None:
    def step(number: int, kind: str, status: str, call: str, **more: Any) -> Frame:
        return frame(number, "control", type=kind, status=status, correlationId=call, **CALL, **more)

    def ended(number: int, call: str) -> Frame:
        return step(number, "tool", "succeeded", call, result={"text": call})

    frames = [
        *(step(n, "approval", "asked", call, arguments={}, hash="h") for n, call in enumerate(("k1", "k2"), 1)),
        *(step(n, "tool", "pending", call, arguments={}, waitsFor="client") for n, call in enumerate(("f1", "f2"), 3)),
        frame(5, "control", type="waiting", approvals=2, clientCalls=2, calls=["k1", "k2", "f1", "f2"]),
        step(6, "approval", "approved", "k1"),
        ended(7, "k1"),
        frame(8, "control", type="waiting", approvals=1, clientCalls=2, calls=["k2", "f1", "f2"]),
        step(9, "approval", "approved", "k2"),
        ended(10, "k2"),
    ]
    assert [item.type for item in encoded(frames, "k2")[1].output] == ["mcp_call"]
    waiting = frame(11, "control", type="waiting", approvals=0, clientCalls=2, calls=["f1", "f2"])
    again = [{"event": each.name, "data": json.loads(each.data)} for each in (ended(1, "f1"), *frames[2:4])]
    reset = frame(12, "reset", reason="adoption", events=again)
    assert encoded([*frames, waiting, reset, ended(13, "f2")], "f1")[1].output == []


def test_a_question_of_a_server_is_said_once_with_the_place_of_its_answer_and_the_stream_stays_open() -> None:
    asked = {"type": "question", "status": "asked", "correlationId": "k1", **CALL, "questionId": "q1"}
    waiting = frame(3, "control", type="waiting", approvals=0, questions=1, calls=["k1"])
    sent, response = encoded([frame(1, "control", **asked), frame(2, "control", **asked), waiting])
    response_events(sent)
    [item] = response.output
    assert item.type == "reasoning"
    assert item.summary[0].text == f"demo__add asks a question: answer at /v1/turns/{TURN}/questions/q1"
    assert response.status == "in_progress"


@pytest.mark.parametrize(
    ("open_for", "status"),
    [
        ({"approvals": 1, "clientCalls": 1, "calls": ["k1", "k2"]}, "completed"),
        ({"approvals": 0, "clientCalls": 1, "calls": ["k1"]}, "completed"),
        ({"approvals": 0, "clientCalls": 1, "questions": 1, "calls": ["k1", "k2"]}, "in_progress"),
    ],
)
def test_a_response_ends_where_an_approval_or_nothing_but_calls_of_the_client_is_open(
    open_for: dict[str, Any], status: str
) -> None:
    pending: dict[str, Any] = {"type": "tool", "status": "pending", "waitsFor": "client", "correlationId": "k1", **CALL}
    steps = [frame(n, "control", **pending, arguments={"n": 1}) for n in (1, 2)]
    waiting = frame(3, "control", type="waiting", **open_for, usage={"inputTokens": 1, "outputTokens": 1})
    sent, response = encoded([*steps, waiting])
    response_events(sent)
    [item] = response.output
    assert item.type == "function_call"
    assert (item.call_id, item.arguments) == ("k1", '{"n":1}'), "once"
    assert (response.status, response.usage is not None) == (status, status == "completed")


@pytest.mark.parametrize("log_says_so", [True, False])
def test_a_request_for_approval_that_is_decided_before_the_response_ends_is_not_in_its_output(
    log_says_so: bool,
) -> None:
    def step(kind: str, status: str, call: str, **more: Any) -> dict[str, Any]:
        return {"type": kind, "status": status, "correlationId": call, **CALL, **more}

    known = [step("approval", "approved", "k1", hash="h"), step("approval", "asked", "k2", arguments={}, hash="h")]
    frames = [
        frame(1, "reset", reason="adoption", events=[{"event": "control", "data": each} for each in known]),
        *([frame(2, "control", **step("approval", "approved", "k2"))] if log_says_so else []),
        frame(3, "control", **step("tool", "running", "k2")),
        frame(4, "control", **step("tool", "succeeded", "k2", result={"text": "2"})),
        frame(5, "done", reason="stop", usage={"inputTokens": 1, "outputTokens": 1}, toolCalls=2, turnId=TURN),
    ]
    sent, response = encoded(frames, "k1")
    assert any(b'"mcp_approval_request"' in each.data for each in sent)
    assert [item.type for item in response.output] == ["mcp_call"]


@pytest.mark.parametrize("hashes", [["h1", "h2"], ["h1", "h2", "h1"]])
def test_of_what_was_asked_again_only_the_last_request_is_in_the_output_and_no_item_begins_twice(
    hashes: list[str],
) -> None:
    asked: Any = {"type": "approval", "status": "asked", "correlationId": "k1", **CALL, "arguments": {}}
    spent = {"inputTokens": 1, "outputTokens": 1}
    frames = [frame(number, "control", **asked, hash=each) for number, each in enumerate(hashes, 1)]
    sent, response = encoded([*frames, frame(9, "control", type="waiting", approvals=1, calls=["k1"], usage=spent)])
    response_events(sent)
    [item] = response.output
    assert item.id == approval_id(TURN, "k1", hashes[-1])


def test_a_call_that_is_read_after_its_decision_names_the_request_for_its_approval() -> None:
    call = ToolCall("c1", "k1", "demo__add", "{}")
    decision = Decision(status=ApprovalStatus.APPROVED, at=1)
    record = CallRecord(call, "demo", succeeded("2"), Approval(question(), decision))
    message = MessageRecord(1, TURN, "assistant", "", False, 0, (record,))
    turn = TurnRecord(TURN, "session", "done", "stop", Usage(), 1, None, 0, 1)
    item: Any
    [item] = encoded_events(replay_ended(turn, [message]))[1].output
    assert (item.type, item.approval_request_id) == ("mcp_call", approval_id(TURN, "k1", question().hash))


@pytest.mark.parametrize(
    ("seen", "stored", "is_whole"), [(2, 1, False), (3, 2, True), (5, 3, False), (5, 4, True), (5, 5, True)]
)
def test_pieces_that_died_with_their_engine_are_taken_back_and_behind_an_item_that_died_comes_the_end(
    seen: int, stored: int, is_whole: bool
) -> None:
    frames = [
        frame(1, "control", type="turn", status="started", turnId=TURN, sessionId="s"),
        frame(2, "reasoning", delta="Hm"),
        frame(3, "reasoning", delta="m."),
        frame(4, "text", delta="A"),
        frame(5, "text", delta=" c"),
    ]
    finished = [
        frame(1, "reset", reason="adoption", events=[]),
        frame(2, "text", delta="A cat."),
        frame(3, "message", messageId=1, role="assistant", content="A cat."),
        frame(4, "done", reason="stop", usage={"inputTokens": 1, "outputTokens": 1}, toolCalls=0, turnId=TURN),
    ]
    adopted = [structs.replace(each, id=f"2-{number}") for number, each in enumerate(finished, 1)]
    client = Lacking(encoded(frames[:seen])[0][-1].number)
    every, response = encoded([*frames[:stored], *adopted])
    rest = [each for each in every if client.has(each, ends=each.last)]
    if is_whole:
        assert rest == [each for each in every if each.number >> EPOCH_SHIFT == 2]
        assert b'"status":"incomplete"' in rest[2].data
    else:
        assert rest == every[-1:]
    assert response.output_text == "A cat."
