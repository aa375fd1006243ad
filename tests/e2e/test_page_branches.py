"""Versions of a question and of its answer in the page: edited, asked again, and shown in every tab."""

import pytest
from playwright.sync_api import expect

from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState
from tests.e2e.chat_page import ChatPage
from tests.e2e.scripted_engine import ScriptedEngine
from tests.e2e.scripts import Call, Wait, answer, message, text
from tests.marks import exhaustive, promise

pytestmark = [pytest.mark.browser, exhaustive("needs a browser")]


@promise(
    "every tab shows the version of a question that was chosen, through reloads and engines that end",
    only_in_test_all="needs a browser",
)
def test_a_question_is_edited_and_every_tab_shows_the_version_that_was_chosen(
    chat: ChatPage, second: ChatPage, engine: ScriptedEngine
) -> None:
    engine.scripts |= {"one": answer("One."), "eins": answer("Eins."), "two": answer("Two.")}
    chat.open()
    for question in ("one", "two"):
        chat.ask(question)
        chat.expect_idle()
    second.open(chat.session)
    expect(second.questions).to_have_text(["one", "two"])
    chat.edit(0, "eins")
    for tab in (chat, second):
        expect(tab.questions).to_have_text(["eins"])
        expect(tab.answers).to_have_text(["Eins."])
        expect(tab.page.get_by_test_id("versions")).to_contain_text("2/2")

    second.page.get_by_test_id("version-before").press("Enter")
    for tab in (second, chat):
        expect(tab.questions).to_have_text(["one", "two"])
        expect(tab.page.get_by_test_id("versions")).to_contain_text("1/2")
    chat.page.reload()
    expect(chat.questions).to_have_text(["one", "two"])
    expect(second.page.get_by_test_id("versions")).to_be_focused()
    second.page.keyboard.press("ArrowRight")
    for tab in (second, chat):
        expect(tab.questions).to_have_text(["eins"])


@promise("every tab shows the version of a question that was chosen, through reloads and engines that end")
def test_another_answer_is_asked_for_with_the_calls_that_stay_and_goes_on_at_the_next_engine(
    chat: ChatPage, engine: ScriptedEngine
) -> None:
    call = Call("mail__send", {"to": "ada"}, "mail")
    unknown = call.ended(CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, "nobody knows")
    engine.scripts["go"] = [*call.begun(), unknown, *answer("Sent, perhaps.")]
    chat.open()
    chat.ask("go")
    expect(chat.answers).to_have_text("Sent, perhaps.")
    again, dialog = chat.page.get_by_test_id("regenerate"), chat.page.get_by_test_id("leaving-dialog")
    again.click()
    expect(dialog).to_contain_text("mail__send may have taken effect")
    chat.page.get_by_test_id("leaving-cancel").click()
    expect(dialog).to_be_hidden()
    assert len(chat.posted) == 1

    # A restart takes the step at which a turn is.
    engine.scripts["go"] = [*text("Some words"), Wait("more"), Wait("more"), message("Some words")]
    again.click()
    chat.page.get_by_test_id("leaving-confirm").click()
    expect(chat.answers).to_have_text("Some words")
    engine.restart()
    engine.open_gate("more")
    chat.expect_idle()
    expect(chat.answers).to_have_text("Some words")
    expect(chat.page.get_by_test_id("versions")).to_contain_text("2/2")


@promise("every tab shows the version of a question that was chosen, through reloads and engines that end")
def test_another_version_is_shown_while_an_answer_is_written_which_goes_on(
    chat: ChatPage, engine: ScriptedEngine
) -> None:
    going = [*text("Ei"), Wait("more"), message("Eins.")]
    engine.scripts |= {"one": answer("One."), "eins": going, "two": answer("Two.")}
    chat.open()
    chat.ask("one")
    chat.expect_idle()
    chat.edit(0, "eins")
    expect(chat.answers).to_have_text("Ei")
    chat.page.get_by_test_id("version-before").click()
    expect(chat.answers).to_have_text(["One."])
    chat.ask("two")
    expect(chat.queued).to_be_visible()
    engine.open_gate("more")
    expect(chat.answers).to_have_text(["One.", "Two."])
    expect(chat.questions).to_have_text(["one", "two"])
    chat.expect_idle()
    chat.page.get_by_test_id("version-next").press("Enter")
    expect(chat.answers).to_have_text(["Eins."])
    chat.expect_idle()


@promise("every tab shows the version of a question that was chosen, through reloads and engines that end")
def test_a_version_that_is_asked_for_during_an_answer_waits_for_its_end_and_its_text_outlives_a_reload(
    chat: ChatPage, engine: ScriptedEngine
) -> None:
    engine.scripts |= {
        "one": answer("One."),
        "two": [*text("Tw"), Wait("end"), message("Two.")],
        "eins": answer("Eins."),
    }
    chat.open()
    chat.ask("one")
    chat.expect_idle()
    chat.ask("two")
    expect(chat.answers).to_have_text(["One.", "Tw"])
    box, dialog = chat.page.get_by_test_id("edit-text"), chat.page.get_by_test_id("waiting-dialog")
    chat.edit(0, "eins")
    expect(dialog).to_be_visible()
    chat.page.get_by_test_id("waiting-cancel").click()
    expect(box).to_have_value("eins")
    chat.page.reload()
    expect(chat.answers).to_have_text(["One.", "Tw"])
    expect(box).to_have_value("eins")
    chat.page.get_by_test_id("edit-send").click()
    chat.page.get_by_test_id("waiting-confirm").click()
    expect(chat.queued).to_contain_text("eins")
    expect(box).to_be_hidden()
    engine.open_gate("end")
    expect(chat.questions).to_have_text(["eins"])
    expect(chat.answers).to_have_text(["Eins."])
    chat.page.get_by_test_id("version-before").click()
    expect(chat.answers).to_have_text(["One.", "Two."])


def test_the_text_of_a_message_that_is_edited_goes_with_its_box(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.scripts |= {"one": answer("One.")}
    chat.open()
    chat.ask("one")
    chat.expect_idle()
    box = chat.page.get_by_test_id("edit-text")
    chat.page.get_by_test_id("edit-question").click()
    box.fill("eins")
    chat.page.keyboard.press("Escape")
    expect(chat.questions).to_have_text(["one"])
    chat.page.reload()
    expect(chat.questions).to_have_text(["one"])
    chat.page.get_by_test_id("edit-question").click()
    expect(box).to_have_value("one")
