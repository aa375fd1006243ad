"""The page with the keyboard alone: each control is reached, its focus is seen and is not lost with it."""

import pytest
from playwright.sync_api import BrowserContext, expect

from plugins_contract.catalog import ApprovalPolicy
from tests.e2e.chat_page import ChatPage, press
from tests.e2e.scripted_engine import ScriptedEngine
from tests.e2e.scripts import Call, Wait, answer, text
from tests.marks import exhaustive, promise

pytestmark = [pytest.mark.browser, exhaustive("needs a browser")]

SLOW = "Run a slow job for 5 seconds"
SECRET = "a-secret-of-32-characters-at-least"
FOCUSED = "document.activeElement.dataset.testid || document.activeElement.id || document.activeElement.tagName"


@promise("the page works by keyboard, screen reader, in the dark and on a phone", only_in_test_all="needs a browser")
def test_everything_can_be_done_with_the_keyboard(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.store("About outboxes", ("How?", "Like this."))
    keyboard = chat.page.keyboard
    chat.open()
    expect(chat.sessions).to_have_count(1)
    expect(chat.input).to_be_focused()

    keyboard.type("one")
    keyboard.press("Shift+Enter")
    keyboard.type("two")
    expect(chat.input).to_have_value("one\ntwo")
    keyboard.press("Control+A")
    keyboard.type(SLOW)
    keyboard.press("Enter")
    chat.card("demo__slow_job").expect_status("running")
    expect(chat.input).to_have_value("")
    keyboard.press("Escape")
    chat.card("demo__slow_job").expect_status("cancelled")
    chat.expect_idle()

    chat.page.get_by_role("link", name="About outboxes").focus()
    keyboard.press("Enter")
    expect(chat.answers).to_have_text("Like this.")
    keyboard.press("Tab")
    expect(chat.page.get_by_role("button", name="Delete “About outboxes”")).to_be_focused()
    keyboard.press("Enter")
    expect(chat.confirm_dialog).to_be_visible()
    keyboard.press("Escape")
    expect(chat.confirm_dialog).to_be_hidden()
    keyboard.press("Enter")
    keyboard.press("Tab")
    expect(chat.page.get_by_test_id("confirm-delete")).to_be_focused()
    keyboard.press("Enter")
    expect(chat.sessions).to_have_count(1)
    expect(chat.input).to_be_focused()


def test_the_first_tab_stop_skips_to_the_message_box(chat: ChatPage, engine: ScriptedEngine) -> None:
    chat.open(engine.store("About outboxes", ("How?", "Like this.")))
    expect(chat.answers).to_have_text("Like this.")
    chat.page.locator("body").evaluate("body => { document.activeElement.blur(); body.tabIndex = -1; body.focus() }")
    chat.page.keyboard.press("Tab")
    expect(chat.page.get_by_role("link", name="Skip to the message box")).to_be_focused()
    chat.page.keyboard.press("Enter")
    expect(chat.input).to_be_focused()
    expect(chat.answers).to_have_text("Like this.")


@promise("the page works by keyboard, screen reader, in the dark and on a phone")
def test_messages_that_wait_are_changed_sent_and_withdrawn_with_the_keyboard(
    chat: ChatPage, engine: ScriptedEngine
) -> None:
    engine.restart(api_keys={"ann": SECRET})
    engine.scripts |= {"go": [*text("Some words"), Wait("never")], "changed": answer("Changed.")}
    keyboard, part = chat.page.keyboard, chat.page.get_by_test_id
    chat.open()
    expect(part("key-input")).to_be_focused()
    keyboard.type(SECRET)
    keyboard.press("Enter")
    expect(chat.key_dialog).to_be_hidden()
    expect(chat.input).to_be_focused()
    keyboard.insert_text("x" * 2001)
    keyboard.press("Enter")
    press(part("notice-dismiss"))
    expect(chat.input).to_be_focused()
    keyboard.press("Control+A")
    keyboard.type("go\n")
    expect(chat.answers).to_have_text("Some words")
    for number in range(1, 4):
        keyboard.type(f"later {number}\n")
        expect(chat.queued).to_have_count(number)

    edit = part("queued-edit").first
    press(edit)
    expect(part("queued-text")).to_be_focused()
    keyboard.press("Escape")
    expect(edit).to_be_focused()
    keyboard.press("Enter")
    keyboard.press("Control+A")
    keyboard.type("changed")
    press(part("queued-save"))
    expect(chat.queued.first).to_contain_text("changed")
    expect(edit).to_be_focused()
    press(part("queued-withdraw").last)
    expect(chat.queued).to_have_count(2)
    expect(chat.input).to_be_focused()
    assert chat.sent("POST", "/cancel") == []
    press(chat.stop)
    expect(chat.queued.first).to_contain_text("You stopped the answer")
    expect(chat.input).to_be_focused()
    press(part("queued-send").first)
    expect(chat.answers.last).to_have_text("Changed.")
    expect(chat.input).to_be_focused()
    press(part("forget-key"))
    expect(part("key-input")).to_be_focused()


@promise("the page works by keyboard, screen reader, in the dark and on a phone")
def test_approvals_and_results_are_reached_with_the_keyboard(
    chat: ChatPage, engine: ScriptedEngine, context: BrowserContext
) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    pay = Call("bank__pay", {"amount": 5}, "bank", approval=ApprovalPolicy.ALWAYS)
    engine.scripts["pay"] = [*pay.begun(), pay.succeeded('[{"paid": 5}]'), *answer("Paid.")]
    keyboard, part = chat.page.keyboard, chat.page.get_by_test_id
    chat.open()
    keyboard.type("pay\n")
    press(part("approval-reason"), "Escape")  # it does not stop the answer
    press(part("approve"))
    expect(chat.answers).to_have_text("Paid.")
    expect(chat.cards.locator("summary")).to_be_focused()

    chat.input.focus()
    keyboard.press("Tab")  # the button that sends cannot be used: on to the beginning of the page
    press(part("copy-question"), "Tab")
    order = ["edit-question", "SUMMARY", "copy-answer", "regenerate", "composer-input"]
    for place in order:
        assert chat.page.evaluate(FOCUSED) == place
        keyboard.press("Tab")

    press(chat.cards.locator("summary"))
    large = part("tool-open-large")
    press(large)
    press(part("large-result").get_by_role("button", name="Tree"))
    press(part("close-large"))
    expect(large).to_be_focused()
    press(part("copy-answer"))
    expect(part("copy-answer")).to_have_text("Copied")
    expect(part("copy-answer")).to_be_focused()


@promise("the page works by keyboard, screen reader, in the dark and on a phone")
def test_versions_are_made_and_chosen_with_the_keyboard(chat: ChatPage, engine: ScriptedEngine) -> None:
    pay = Call("bank__pay", {"amount": 5}, "bank", approval=ApprovalPolicy.ALWAYS)
    engine.scripts["pay"] = [*pay.begun(), pay.succeeded("Paid."), *answer("Paid.")]
    keyboard, part = chat.page.keyboard, chat.page.get_by_test_id
    chat.open()
    keyboard.type("pay\n")
    press(part("approve"))
    expect(chat.answers).to_have_text("Paid.")
    press(part("regenerate"))
    press(part("leaving-cancel"))
    expect(part("regenerate")).to_be_focused()
    keyboard.press("Enter")
    press(part("leaving-confirm"))
    expect(part("approve")).to_be_visible()
    expect(chat.input).to_be_focused()
    press(part("approval-reason"), "x")
    press(part("refuse"))
    expect(chat.cards.first.locator("summary")).to_be_focused()
    chat.expect_idle()

    edit = part("edit-question")
    press(edit)
    expect(part("edit-text")).to_be_focused()
    keyboard.press("Escape")
    expect(edit).to_be_focused()
    keyboard.press("Enter")
    expect(part("edit-text")).to_be_focused()
    keyboard.press("Control+A")
    keyboard.type("What is 17 * 23 + 4?\n")
    expect(part("versions")).to_contain_text("3/3")
    expect(chat.input).to_be_focused()
    press(part("version-before"))
    expect(part("versions")).to_contain_text("2/3")
    expect(part("versions")).to_be_focused()
