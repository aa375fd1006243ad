"""Approvals in the page's own modules, in Chromium and without an engine: events that are replayed, late or doubled."""

from typing import Any

import pytest

from tests.e2e.chat_page import ChatPage
from tests.marks import exhaustive

pytestmark = [pytest.mark.browser, exhaustive("needs a browser")]

CALL = {"toolCallId": "call_1", "correlationId": "one", "toolName": "a__b", "server": "a", "round": 1}
PENDING = {"type": "tool", "status": "pending", **CALL, "arguments": {"x": 1}}
ASKED = {"type": "approval", "status": "asked", **CALL, "arguments": {"x": 1}, "hash": "h", "policy": "always"}
EDITED = {"type": "approval", "status": "edited", **CALL, "arguments": {"x": 2}, "decidedAt": "now"}
ENDED = {"type": "tool", "status": "refused", **CALL, "durationMs": 0}


def control(number: int, data: dict[str, Any]) -> dict[str, Any]:
    return {"id": f"1-{number}", "type": "control", "data": data}


def call_after(chat: ChatPage, *events: dict[str, Any]) -> dict[str, Any]:
    """The call on the only card, when these events have come."""
    chat.open()
    return chat.page.evaluate(
        """async (events) => {
            const { initial, needsApproval, reduce } = await import("/assets/state.js");
            const began = reduce(initial, { type: "attached", turnId: "turn" });
            const state = events.reduce((sofar, event) => reduce(sofar, { type: "event", event }), began);
            const [{ call }] = state.items.filter(({ kind }) => kind === "tool");
            return { ...call, waits: needsApproval(call) };
        }""",
        list(events),
    )


def test_a_call_needs_approval_until_the_decision(chat: ChatPage) -> None:
    asked = call_after(chat, control(1, PENDING), control(2, ASKED))
    assert (asked["waits"], asked["status"], asked["approval"]["hash"]) == (True, "pending", "h")
    decided = call_after(chat, control(1, PENDING), control(2, ASKED), control(3, EDITED))
    assert (decided["waits"], decided["arguments"]) == (False, {"x": 2})


def test_an_ended_call_needs_no_approval(chat: ChatPage) -> None:
    ended = call_after(chat, control(1, PENDING), control(2, ASKED), control(3, ENDED), control(4, ASKED))

    assert (ended["waits"], ended["status"]) == (False, "refused")


def test_a_missed_decision_is_in_a_reset(chat: ChatPage) -> None:
    replayed = [{"event": "control", "data": data} for data in (PENDING, EDITED)]
    reset = {"id": "2-1", "type": "reset", "data": {"reason": "why", "events": replayed}}
    call = call_after(chat, control(1, PENDING), control(2, ASKED), reset)

    assert (call["waits"], call["approval"]["status"], call["arguments"]) == (False, "edited", {"x": 2})
