"""The whole product with its tools behind a gateway, and with its tools found by a search."""

import json
from collections.abc import Generator

import pytest
from playwright.sync_api import expect

from tests.e2e.chat_page import ChatPage
from tests.marks import exhaustive
from tests.support.stack import Stack, running_stack

pytestmark = exhaustive("real processes")

INCREMENT = "demo__increment_counter"


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


@pytest.mark.browser
def test_the_page_says_how_tools_are_offered_and_shows_the_real_one(gateway: Stack, chat: ChatPage) -> None:
    chat.open()
    tools = gateway.http.get("/v1/about").json()["mcp"]["tools"]
    expect(chat.page.get_by_test_id("tools")).to_have_text(f"{tools} tools, behind one gateway")

    call = {"resource": "demo", "operation": "increment_counter", "params": {"token": "on-the-page"}}
    chat.ask(f"call mcp_query {json.dumps(call)}")

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
