"""The whole product with its tools behind a gateway, and with its tools found by a search."""

import json
from collections.abc import Generator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.e2e.chat_page import ChatPage
from tests.marks import exhaustive
from tests.support.stack import Stack, running_stack

pytestmark = exhaustive("real processes")

INCREMENT, DELETE = "demo__increment_counter", "demo__delete_everything"


@pytest.fixture(scope="module")
def gateway() -> Generator[Stack]:
    with running_stack(engine_env={"TOOL_EXPOSURE": "gateway"}) as stack:
        yield stack


@pytest.fixture
def base_url(gateway: Stack) -> str:
    return gateway.url


@pytest.fixture(scope="module")
def search() -> Generator[Stack]:
    # The tools of the examples cost more than that.
    with running_stack(engine_env={"TOOL_EXPOSURE": "auto", "TOOL_BUDGET_TOKENS": "500"}) as stack:
        yield stack


def query(operation: str, **params: Any) -> str:
    """What makes the demo model call the gateway."""
    return f"call mcp_query {json.dumps({'resource': 'demo', 'operation': operation, 'params': params})}"


def calls_of(stack: Stack, session_id: str) -> list[dict[str, Any]]:
    messages = stack.http.get(f"/v1/sessions/{session_id}/messages").json()["messages"]
    return [call for message in messages for call in message["toolCalls"]]


def test_a_call_through_the_gateway_runs_and_shows_the_real_tool(gateway: Stack) -> None:
    said = gateway.ask(query("increment_counter", token="through-the-gateway"))

    assert said.quick_statuses(INCREMENT) == [["pending", "queued", "succeeded"]]
    assert {step["server"] for step in said.steps(INCREMENT)} == {"demo"}
    assert said.steps(INCREMENT)[0]["arguments"] == {"token": "through-the-gateway"}
    assert len(gateway.effects("through-the-gateway")) == 1
    [call] = calls_of(gateway, said.events[0].data["sessionId"])
    assert (call["toolName"], call["server"], call["status"]) == (INCREMENT, "demo", "succeeded")
    assert call["arguments"] == {"token": "through-the-gateway"}


def test_an_approval_of_a_call_through_the_gateway_outlives_the_engine(gateway: Stack) -> None:
    with gateway.asking(query("delete_everything", token="approved-later")) as events:
        asked = next(e.data for e in events if e.name == "control" and e.data["type"] == "approval")
        assert (asked["toolName"], asked["arguments"]) == (DELETE, {"token": "approved-later"})
        turn_id = gateway.http.get("/v1/sessions").json()["sessions"][0]["runningTurnId"]
        assert gateway.engine is not None
        gateway.engine.kill()
    gateway.start_engine()
    gateway.wait_for_tools()

    decision = {"decision": "approve", "hash": asked["hash"]}
    answer = gateway.http.post(f"/v1/turns/{turn_id}/approvals/{asked['correlationId']}", json=decision)

    assert answer.status_code == 200, answer.text
    said = gateway.follow(turn_id)
    assert said.reason == "stop"
    assert said.statuses(DELETE)[0][-1] == "succeeded"
    assert len(gateway.effects("approved-later")) == 1


@pytest.mark.browser
def test_the_page_says_how_tools_are_offered_and_shows_the_real_one(gateway: Stack, chat: ChatPage) -> None:
    chat.open()
    tools = gateway.http.get("/v1/about").json()["mcp"]["tools"]
    expect(chat.page.get_by_test_id("tools")).to_have_text(f"{tools} tools, behind one gateway")

    chat.ask(query("increment_counter", token="on-the-page"))

    card = chat.card(INCREMENT)
    expect(card.part("status")).to_have_text("Succeeded")
    expect(card.root).to_contain_text("on-the-page")


def test_a_tool_that_was_found_is_offered_to_the_model_in_the_next_turn(search: Stack) -> None:
    call = f'call {INCREMENT} {{"token": "found"}}'
    before = search.ask(call)
    assert before.statuses(INCREMENT) == []  # the demo model calls only what it is offered
    session_id = before.events[0].data["sessionId"]

    found = search.ask('call tool_search {"query": "increment a counter"}', session_id)
    after = search.ask(call, session_id)

    assert found.statuses("tool_search") == [["pending", "succeeded"]]
    assert after.statuses(INCREMENT)[0][-1] == "succeeded"
    assert len(search.effects("found")) == 1
