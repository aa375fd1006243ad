"""The whole product with its tools behind a gateway."""

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
