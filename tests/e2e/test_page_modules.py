"""The page's pure modules, in a browser: the parser of event streams, and the state."""

from collections.abc import Sequence
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.e2e.chat_page import ChatPage
from tests.marks import exhaustive, promise

pytestmark = [pytest.mark.browser, exhaustive("needs a browser")]

PARSE = """async (chunks) => {
    const { SseParser } = await import('/assets/sse.js');
    const parser = new SseParser();
    return chunks.flatMap((chunk) => parser.push(chunk));
}"""
PARSE_EVERY_CUT = """async (text) => {
    const { SseParser } = await import('/assets/sse.js');
    const parse = (...chunks) => {
        const parser = new SseParser();
        return JSON.stringify(chunks.flatMap((chunk) => parser.push(chunk)));
    };
    const whole = parse(text);
    const differs = (at) => parse(text.slice(0, at), text.slice(at)) !== whole;
    return [parse(...text) === whole, [...text].map((_, at) => at).filter(differs)];
}"""
REDUCE = """async (actions) => {
    const { initial, reduce } = await import('/assets/state.js');
    return actions.reduce(reduce, initial);
}"""


def reduce(chat: ChatPage, *actions: dict[str, Any]) -> dict[str, Any]:
    chat.open()
    expect(chat.empty).to_be_visible()
    return chat.page.evaluate(REDUCE, list(actions))


def event(event_id: str, kind: str, **data: Any) -> dict[str, Any]:
    return {"type": "event", "event": {"id": event_id, "type": kind, "data": data}}


def texts(state: dict[str, Any]) -> Sequence[str]:
    return [item["text"] for item in state["items"] if item["kind"] == "answer"]


ATTACHED = {"type": "attached", "turnId": "t1"}


EVENT_STREAMS: list[tuple[str, list[tuple[str | None, str, str]]]] = [
    ("id: 1-1\nevent: text\ndata: {}\n\n", [("1-1", "text", "{}")]),
    ("data: a\r\ndata: b\r\n\r\n", [(None, "message", "a\nb")]),
    ("data: a\rdata:b\r\r", [(None, "message", "a\nb")]),
    (": ping\n\n: ping\n\ndata:  two spaces\n\n", [(None, "message", " two spaces")]),
    ("data\n\n", [(None, "message", "")]),
    ("id: 7\n\ndata: after an id alone\n\n", [(None, "message", "after an id alone")]),
    ("retry: 10\nunknown: x\ndata: a\n\n", [(None, "message", "a")]),
    ("data: never finished\n", []),
]


def test_the_parser_reads_the_event_stream_format(chat: ChatPage) -> None:
    chat.open()
    for stream, expected in EVENT_STREAMS:
        events = chat.page.evaluate(PARSE, [stream])
        assert [(event["id"], event["type"], event["data"]) for event in events] == expected


def test_the_parser_takes_a_stream_cut_anywhere(chat: ChatPage) -> None:
    chat.open()
    stream = (
        ': ping\r\n\r\nid: 1-1\r\nevent: text\r\ndata: {"delta": "häß"}\r\n\r\nid: 1-2\ndata: a\ndata: b\n\ndata: c\r\r'
    )
    one_by_one, cuts = chat.page.evaluate(PARSE_EVERY_CUT, stream)
    assert one_by_one
    assert cuts == []


def test_an_event_is_applied_once(chat: ChatPage) -> None:
    first, second = event("1-1", "text", delta="a"), event("1-2", "text", delta="b")
    assert texts(reduce(chat, ATTACHED, first, second, first, second, event("1-10", "text", delta="c"))) == ["abc"]


def test_events_of_a_later_epoch_come_after_those_of_an_earlier_one(chat: ChatPage) -> None:
    state = reduce(chat, ATTACHED, event("1-900", "text", delta="a"), event("2-1", "text", delta="b"))
    assert texts(state) == ["ab"]
    stale = reduce(chat, ATTACHED, event("2-1", "text", delta="b"), event("1-900", "text", delta="a"))
    assert texts(stale) == ["b"]


def test_a_reset_removes_unfinished_text_and_later_events_continue(chat: ChatPage) -> None:
    replayed = [{"event": "message", "data": {"messageId": 7, "content": "kept"}}]
    state = reduce(
        chat,
        {"type": "submitted", "text": "Hi"},
        ATTACHED,
        event("1-5", "message", messageId=7, content="kept"),
        event("1-9", "text", delta="dropped"),
        event("2-2", "reset", reason="", events=replayed),
        event("2-3", "text", delta="again"),
        event("2-2", "reset", reason="", events=replayed),
    )
    assert texts(state) == ["kept", "again"]
    assert [item["kind"] for item in state["items"]] == ["user", "answer", "answer"]


def test_items_read_again_keep_their_keys(chat: ChatPage) -> None:
    said = [
        {"role": "user", "content": "Hi", "turnId": "t1", "messageId": 1},
        {
            "role": "assistant",
            "content": "kept",
            "turnId": "t1",
            "messageId": 7,
            "toolCalls": [{"correlationId": "c", "toolName": "t", "status": "succeeded"}],
        },
    ]
    before = [
        {"type": "named", "sessionId": "s"},
        {"type": "submitted", "text": "Hi"},
        ATTACHED,
        event("1-1", "message", messageId=7, content="kept", toolCalls=[{"correlationId": "c"}]),
        event("1-2", "control", type="tool", correlationId="c", toolName="t", status="running"),
    ]
    history = {"sessionId": "s", "title": "", "messages": said, "turns": [], "runningTurnId": None}
    keys = [item["key"] for item in reduce(chat, *before)["items"]]
    after = reduce(chat, *before, {"type": "loaded", "history": history})
    assert [item["key"] for item in after["items"]] == keys
    assert after["items"][-1]["call"]["status"] == "succeeded"


def test_the_finished_message_replaces_what_was_streamed(chat: ChatPage) -> None:
    streamed, finished = event("1-1", "text", delta="one too"), event("1-2", "message", messageId=7, content="one two")
    assert texts(reduce(chat, ATTACHED, streamed, finished)) == ["one two"]


def test_a_late_step_does_not_change_an_ended_call(chat: ChatPage) -> None:
    call = {"type": "tool", "correlationId": "c", "toolName": "t"}
    state = reduce(
        chat,
        ATTACHED,
        event("1-1", "control", **call, status="succeeded"),
        event("1-2", "control", **call, status="running"),
    )
    assert [item["call"]["status"] for item in state["items"]] == ["succeeded"]


def test_a_message_without_deltas_stands_above_the_cards_of_its_calls(chat: ChatPage) -> None:
    state = reduce(
        chat,
        ATTACHED,
        event("1-1", "control", type="tool", correlationId="c", toolName="t", status="pending"),
        event("1-2", "message", content="I will call it.", toolCalls=[{"correlationId": "c"}]),
    )
    assert [item["kind"] for item in state["items"]] == ["answer", "tool"]


def test_no_call_is_shown_as_running_after_its_turn(chat: ChatPage) -> None:
    state = reduce(
        chat,
        ATTACHED,
        event("1-1", "control", type="tool", correlationId="c", toolName="t", status="running"),
        event("1-2", "done", reason="stop"),
    )
    assert [item["call"]["status"] for item in state["items"]] == ["unknown"]
    assert state["phase"] == "idle"


def test_no_stored_call_is_shown_as_running(chat: ChatPage) -> None:
    message = {"role": "assistant", "content": "", "turnId": "t0"}
    calls = [{"correlationId": "c", "toolName": "t", "status": "pending"}]
    history = {"sessionId": "s", "title": "", "messages": [message | {"toolCalls": calls}]}
    state = reduce(chat, {"type": "loaded", "history": history | {"runningTurnId": None}})
    assert [item["call"]["status"] for item in state["items"]] == ["unknown"]


def test_a_rejected_message_is_removed_from_the_screen(chat: ChatPage) -> None:
    state = reduce(chat, {"type": "submitted", "text": "hello"}, {"type": "rejected"})
    assert (state["items"], state["phase"]) == ([], "idle")


def test_reconnect_delays_grow_to_a_limit_and_are_random(chat: ChatPage) -> None:
    chat.open()
    delays = chat.page.evaluate(
        """async () => {
            const { backOff } = await import('/assets/follow.js');
            return [0, 1, 2, 3, 20].map((attempt) => [backOff(attempt, () => 0), backOff(attempt, () => 1)]);
        }"""
    )
    assert delays == [[200, 400], [400, 800], [800, 1600], [1600, 3200], [7500, 15000]]


WAITS = {"type": "tool", "toolCallId": "call_1", "correlationId": "one", "toolName": "a__b", "server": "a", "round": 1}


@promise("a call that waits for Redis or for a worker says so, until it goes on")
def test_waits_for_is_that_of_the_newest_step(chat: ChatPage) -> None:
    def waits_for(*events: dict[str, Any]) -> list[Any]:
        state = reduce(chat, ATTACHED, *events)
        return [item["call"].get("waitsFor") for item in state["items"] if item["kind"] == "tool"]

    pending = event("1-1", "control", **WAITS, status="pending", arguments={"x": 1})
    held = event("1-2", "control", **WAITS, status="pending", waitsFor="redis")
    replayed = [{"event": "control", "data": pending["event"]["data"]}]
    assert waits_for(pending, held) == ["redis"]
    assert waits_for(pending, held, event("1-3", "control", **WAITS, status="pending")) == [None]
    assert waits_for(pending, held, event("1-3", "control", **WAITS, status="running", attempt=1)) == [None]
    assert waits_for(pending, held, event("2-1", "reset", reason="", events=replayed)) == [None]
    assert waits_for(pending, held, event("1-3", "done", reason="error")) == [None]
