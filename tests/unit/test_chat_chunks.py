"""The encoder of Chat Completions: the events of a turn as the chunks of one completion."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk

from dialog_engine.chat.events import Frame
from dialog_engine.facades.chat_completions.chunks import ChunkEncoder, Form, Steps
from tests.marks import promise
from tests.support.official_types import chat_chunks
from tests.support.random_turns import TURN, RandomTurn, random_turns

Event = tuple[str, dict[str, Any]]
STARTED: Event = ("control", {"type": "turn", "status": "started", "turnId": TURN, "sessionId": "s"})
CALL = {"toolName": "clock__now", "server": "clock", "toolCallId": "c1", "correlationId": "k1", "round": 1}


def text(piece: str) -> Event:
    return "text", {"delta": piece}


def message(content: str) -> Event:
    return "message", {"messageId": 1, "role": "assistant", "content": content}


def step(status: str, **details: Any) -> Event:
    return "control", {"type": "tool", "status": status, **CALL, **details}


def done(reason: str = "stop") -> Event:
    return "done", {
        "reason": reason,
        "usage": {"inputTokens": 3, "outputTokens": 4, "cachedTokens": 2},
        "toolCalls": 1,
        "turnId": TURN,
    }


def reset(*events: Event) -> Event:
    return "reset", {"reason": "adoption", "events": [{"event": name, "data": data} for name, data in events]}


PLAIN = Form("m")


def sent(*events: Event, form: Form = PLAIN) -> list[Any]:
    """What a client reads: chunks as the official types have them, an error, or "[DONE]"."""
    encoder = ChunkEncoder(form)
    frames = [_frame(1, number, event) for number, event in enumerate(events, 1)]
    data = b"".join(output.data for frame in frames for output in encoder.feed(frame))
    return chat_chunks(data)


def _frame(epoch: int, number: int, event: Event) -> Frame:
    name, data = event
    return Frame(f"{epoch}-{number}", name, json.dumps(data, separators=(",", ":"), ensure_ascii=False))


def content(chunks: Iterable[Any]) -> str:
    return "".join(each.choices[0].delta.content or "" for each in _of_the_model(chunks))


def reasoning(chunks: Iterable[Any]) -> str:
    return "".join(
        (each.choices[0].delta.model_extra or {}).get("reasoning_content", "") for each in _of_the_model(chunks)
    )


def _of_the_model(chunks: Iterable[Any]) -> list[ChatCompletionChunk]:
    return [each for each in chunks if isinstance(each, ChatCompletionChunk) and each.choices]


def test_a_turn_is_one_completion_with_one_id_and_time_and_an_end() -> None:
    chunks = sent(STARTED, text("It is "), text('"noon" \n'), message('It is "noon" \n'), done())
    assert {(each.id, each.created, each.model) for each in chunks[:-1]} == {(f"chatcmpl-{TURN}", 1795757629, "m")}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert content(chunks) == 'It is "noon" \n'
    assert (chunks[-2].choices[0].finish_reason, chunks[-1]) == ("stop", "[DONE]")


def test_usage_of_all_rounds_is_told_where_it_is_asked_for() -> None:
    *_, last, end = sent(STARTED, text("Hi"), message("Hi"), done(), form=Form("m", usage=True))
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens, end) == (3, 4, 7, "[DONE]")
    assert (last.usage.prompt_tokens_details.cached_tokens, last.usage.completion_tokens_details.reasoning_tokens) == (
        2,
        0,
    )
    assert all(each.usage is None for each in sent(STARTED, text("Hi"), done())[:-1])


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("stop", "stop"), ("length", "length"), ("content_filter", "content_filter"), ("max_rounds", "stop")],
)
def test_reasons_are_those_that_clients_know(reason: str, finish: str) -> None:
    assert sent(STARTED, done(reason))[-2].choices[0].finish_reason == finish


ROUND = (
    STARTED,
    ("reasoning", {"delta": "Hm."}),
    text("Let me see."),
    message("Let me see."),
    step("pending", arguments={"at": 1}),
    step("queued"),
    step("running"),
    step("progress", progress=1),
    step("succeeded", result={"text": "noon"}),
    text("Noon."),
    message("Noon."),
    done(),
)


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (Steps.OFF, ""),
        (Steps.REASONING, "Hm.clock__now is called\nclock__now succeeded\n"),
        (Steps.DETAILS, 'Hm.clock__now is called: {"at":1}\nclock__now succeeded\nnoon\n'),
    ],
)
def test_our_tools_are_told_as_reasoning_and_are_no_calls_for_the_client(steps: Steps, told: str) -> None:
    chunks = sent(*ROUND, form=Form("m", steps))
    assert reasoning(chunks) == told
    assert content(chunks) == "Let me see.\n\nNoon."
    assert all(each.choices[0].delta.tool_calls is None for each in _of_the_model(chunks))


def test_calls_of_the_client_s_tools_end_a_completion_and_another_one_follows_on_their_results() -> None:
    ours = {**CALL, "correlationId": "k2"}
    called = step("pending", arguments={"of": "tea"}, waitsFor="client", expiresAt="2027")
    both = ("control", {"type": "waiting", "approvals": 1, "clientCalls": 1, "calls": ["k1", "k2"]})
    waiting = ("control", {"type": "waiting", "approvals": 0, "clientCalls": 1, "calls": ["k1"]})
    events = [
        STARTED,
        text("Hm."),
        message("Hm."),
        called,
        ("control", {"type": "approval", "status": "asked", **ours}),
    ]
    first = sent(*events, both, waiting, form=Form("m", Steps.OFF))
    [call] = first[-3].choices[0].delta.tool_calls
    assert (call.id, call.function.name, call.function.arguments) == ("k1", "clock__now", '{"of":"tea"}')
    assert (first[-2].choices[0].finish_reason, first[-1]) == ("tool_calls", "[DONE]")
    answered = step("succeeded", result={"text": "noon"}, durationMs=1)
    both_of_them = sent(*events, both, waiting, answered, text("Noon."), message("Noon."), done())
    second = both_of_them[len(sent(*events, both, waiting)) :]
    assert (second[0].choices[0].delta.role, content(second)) == ("assistant", "Noon.")
    assert "clock__now is called" not in reasoning(both_of_them), "the client shows its own calls"


@pytest.mark.parametrize("steps", [*Steps])
def test_a_call_that_waits_says_where_to_decide_and_the_stream_stays_open(steps: Steps) -> None:
    asked = ("control", {"type": "approval", "status": "asked", **CALL})
    question = ("control", {"type": "question", "status": "asked", **CALL, "questionId": "q1"})
    waiting = ("control", {"type": "waiting", "approvals": 1, "calls": ["k1"]})
    chunks = sent(STARTED, step("pending", arguments={}), asked, question, waiting, form=Form("m", steps))
    assert f"clock__now waits for approval: decide at /v1/turns/{TURN}/approvals/k1\n" in reasoning(chunks)
    assert f"clock__now asks a question: decide at /v1/turns/{TURN}/questions/q1\n" in reasoning(chunks)
    assert not any(each.choices[0].finish_reason for each in chunks)
    on_page = reasoning(sent(STARTED, asked, form=Form("m", steps, page="https://chat.example")))
    assert on_page == "clock__now waits for approval: decide at https://chat.example\n"


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ([("error", {"code": "LLM_TIMEOUT", "message": "no answer"}), done("error")], "llm_timeout"),
        ([done("cancelled")], "turn_cancelled"),
        ([("withdrawn", {"turnId": TURN})], "message_withdrawn"),
    ],
)
def test_what_does_not_end_well_ends_with_an_error(end: Sequence[Event], code: str) -> None:
    *_, last = sent(STARTED, text("Well"), *end[:1])
    assert last["error"]["code"] == code
    assert last["error"].keys() == {"message", "type", "param", "code"}


LOST = (STARTED, text("One."), message("One."), text("It is no"))


@promise("a client of Chat Completions reads the answer that is stored, or ends with an error")
@pytest.mark.parametrize(
    ("after", "answer"),
    [
        ((reset(message("One.")), text("It is"), text(" noon."), message("It is noon.")), "One.\n\nIt is noon."),
        ((reset(message("One."), message("It is noon.")),), "One.\n\nIt is noon."),
        ((reset(message("One.")), reset(message("One.")), text("It is noon."), message("It is noon.")),
         "One.\n\nIt is noon."),
        ((reset(message("One.")), text("Noon.")), None),
        ((reset(message("One."), message("Noon.")),), None),
        ((reset(message("One.")), text("It"), message("It")), None),
        ((reset(message("One.")), text("It"), reset(message("One.")), text("It"), message("It")), None),
    ],
)  # fmt: skip
def test_an_answer_that_another_engine_goes_on_with_is_the_same_or_an_error(
    after: tuple[Event, ...], answer: str | None
) -> None:
    chunks = sent(*LOST, *after)
    if answer is None:
        assert chunks[-1]["error"]["code"] == "answer_lost"
        assert content(chunks) == "One.\n\nIt is no"
    else:
        assert content(chunks) == answer


def test_an_answer_from_the_store_has_no_pieces_and_is_whole() -> None:
    chunks = sent(
        STARTED, message("Let me see."), step("succeeded", arguments={}, result={"text": ""}), message("Noon."), done()
    )
    assert content(chunks) == "Let me see.\n\nNoon."


@promise("a client of Chat Completions reads the answer that is stored, or ends with an error")
@given(turn=random_turns(), steps=st.sampled_from(Steps))
def test_whatever_happens_to_a_turn_its_client_has_read_what_is_stored_or_an_error(
    turn: RandomTurn, steps: Steps
) -> None:
    chunks = chat_chunks(_until_the_end(ChunkEncoder(Form("m", steps)), turn.frames))
    calls = [call for each in _of_the_model(chunks) for call in each.choices[0].delta.tool_calls or ()]
    assert {call.id for call in calls} <= {*turn.of_client}
    stored = "\n\n".join(text for text in turn.texts if text)
    if "error" in chunks[-1]:
        return
    assert chunks[-1] == "[DONE]"
    if calls:  # the texts of several completions
        assert content(chunks).replace("\n", "") == stored.replace("\n", "")
    else:
        assert content(chunks) == stored


def _until_the_end(encoder: ChunkEncoder, frames: Sequence[Frame]) -> bytes:
    """What the clients of all requests for a turn read."""
    data = b""
    for output in (output for frame in frames for output in encoder.feed(frame)):
        data += output.data
        if output.last and b'"finish_reason":"tool_calls"' not in output.data:
            break
    return data
