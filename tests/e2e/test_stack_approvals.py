"""Approvals in Chromium, in front of the whole running product: one tab asks, any tab decides."""

import json
from collections.abc import Generator

import pytest
from playwright.sync_api import expect

from tests.e2e.chat_page import Card, ChatPage
from tests.marks import exhaustive, promise
from tests.support.stack import Stack, running_stack

pytestmark = [pytest.mark.browser, exhaustive("needs a browser and real processes")]

DELETE = "demo__delete_everything"


@pytest.fixture(scope="module")
def stack() -> Generator[Stack]:
    with running_stack(token_delay_ms=15) as stack:
        yield stack


@pytest.fixture
def base_url(stack: Stack) -> str:
    return stack.url


def asks_to_delete(chat: ChatPage, token: str) -> Card:
    """The card of a call that waits for approval."""
    chat.open()
    chat.ask(f'call {DELETE} {{"token": "{token}"}}')
    card = chat.card(DELETE)
    expect(card.root.get_by_test_id("approval")).to_be_visible()
    return card


def test_a_call_that_waits_shows_what_would_be_run_and_runs_when_it_is_approved(stack: Stack, chat: ChatPage) -> None:
    card = asks_to_delete(chat, "approved")
    expect(card.part("status")).to_have_text("Needs approval")
    expect(chat.status).to_have_text("Waiting for your approval…")
    expect(chat.sessions.first).to_contain_text("Needs your approval")
    expect(chat.live).to_contain_text("needs your approval")
    expect(card.root.get_by_label("Arguments, as JSON")).to_have_value('{\n  "token": "approved"\n}')
    expect(card.root.get_by_test_id("approval-expiry")).to_have_text("Expires in 60 min")
    assert stack.effects("approved") == []
    chat.picture("approval-waits")

    card.root.get_by_role("button", name="Approve").click()
    card.expect_status("succeeded")
    chat.expect_idle()
    expect(card.root.get_by_test_id("approval-decided")).to_have_text("Approved.")
    expect(chat.sessions.first).to_contain_text("Just now")
    expect(card.root.get_by_test_id("approval")).to_be_hidden()
    assert len(stack.effects("approved")) == 1
    chat.picture("approval-approved")


@promise("destructive tools wait for approval, durably")
def test_the_other_tab_decides_and_this_one_sees_it_at_once(stack: Stack, chat: ChatPage, second: ChatPage) -> None:
    card = asks_to_delete(chat, "tabs")
    second.page.goto(chat.page.url)
    other = second.card(DELETE)
    other.root.get_by_label("Reason for refusing").fill("Not on a Friday")
    second.picture("approval-other-tab")
    other.root.get_by_role("button", name="Refuse").click()

    for each in (card, other):
        each.expect_status("refused")
        expect(each.root.get_by_test_id("approval")).to_be_hidden()
        expect(each.root.get_by_test_id("approval-decided")).to_have_text("Refused. Reason: Not on a Friday")
        expect(each.part("status")).to_have_text("You refused it")
    expect(chat.answers.last).to_contain_text("Not on a Friday")
    chat.expect_idle()
    assert stack.effects("tabs") == []
    chat.picture("approval-refused")


def test_arguments_can_be_changed_and_what_is_wrong_with_them_is_said(stack: Stack, chat: ChatPage) -> None:
    card = asks_to_delete(chat, "old")
    field = card.root.get_by_label("Arguments, as JSON")
    approve = card.root.get_by_test_id("approve")
    error = card.root.get_by_test_id("approval-error")
    field.fill('{"token": ')
    expect(error).to_contain_text("not valid JSON")
    expect(approve).to_be_disabled()
    field.fill("[1]")
    expect(error).to_contain_text("one JSON object")
    field.fill('{"token": 5}')
    expect(approve).to_have_text("Approve with changes")
    before = card.root.bounding_box()
    approve.click()
    expect(error).to_contain_text("arguments.token")
    assert card.root.bounding_box() == before, "nothing jumps when something is wrong"
    chat.picture("approval-wrong-arguments")
    field.fill('{"token": "new"}')
    approve.click()

    card.expect_status("succeeded")
    expect(card.root.get_by_test_id("approval-decided")).to_have_text("Approved with changed arguments.")
    expect(card.part("args")).to_have_text(json.dumps({"token": "new"}).replace("{", "{ ").replace("}", " }"))
    chat.expect_idle()
    assert (len(stack.effects("new")), stack.effects("old")) == (1, [])
    chat.page.reload()
    expect(chat.card(DELETE).root.get_by_test_id("approval-decided")).to_have_text("Approved with changed arguments.")
