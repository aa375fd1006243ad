"""What the page keeps and what it lets go: drafts, notices, its list, and the conversation that is asked for."""

import pytest
from playwright.sync_api import BrowserContext, expect

from plugins_contract.catalog import ApprovalPolicy
from tests.e2e.chat_page import ChatPage, Watch
from tests.e2e.scripted_engine import ScriptedEngine
from tests.e2e.scripts import Call, Wait, answer, message, text
from tests.marks import exhaustive, promise

pytestmark = [pytest.mark.browser, exhaustive("needs a browser")]

DROP = """(type) => {
    const data = new DataTransfer();
    data.items.add(new File(['x'], 'x.txt'));
    const init = { bubbles: true, cancelable: true, dataTransfer: data, clipboardData: data };
    const event = type === 'paste' ? new ClipboardEvent(type, init) : new DragEvent(type, init);
    return !document.getElementById('message').dispatchEvent(event);
}"""


def another(context: BrowserContext, chat: ChatPage, watch: Watch) -> ChatPage:
    """One more tab of the same browser."""
    page = context.new_page()
    watch.attach(page)
    return ChatPage(page, chat.base_url)


@promise("a draft stays with its conversation, through reloads and in every tab", only_in_test_all="takes 13 s")
def test_drafts_stay_with_their_conversation_and_files_take_nothing_away(
    chat: ChatPage, engine: ScriptedEngine, context: BrowserContext, watch: Watch
) -> None:
    engine.store("Leases", ("Why?", "Because."))
    outboxes = engine.store("Outboxes", ("How?", "So."))
    engine.scripts["go"] = [*text("Some words"), Wait("never")]
    chat.open(outboxes)
    expect(chat.answers).to_have_text("So.")
    chat.input.fill("half a thought")
    chat.page.get_by_role("link", name="Leases").click()
    expect(chat.answers).to_have_text("Because.")
    expect(chat.input).to_have_value("")
    chat.page.go_back()
    expect(chat.input).to_have_value("half a thought")
    chat.page.reload()
    expect(chat.input).to_have_value("half a thought")
    other = another(context, chat, watch)
    other.open(outboxes)
    expect(other.input).to_have_value("half a thought")
    other.input.fill("a whole one")
    expect(chat.input).to_have_value("a whole one")

    assert chat.page.evaluate(DROP, "dragover")
    assert chat.page.evaluate(DROP, "drop")
    expect(chat.notice).to_contain_text("Files cannot be attached yet.")
    chat.page.get_by_test_id("notice-dismiss").click()
    chat.page.evaluate(DROP, "paste")
    expect(chat.notice).to_contain_text("Files cannot be attached yet.")
    expect(chat.input).to_have_value("a whole one")

    chat.page.get_by_test_id("new-conversation").click()
    expect(chat.notice).to_be_hidden()
    chat.ask("go")
    expect(chat.answers).to_have_text("Some words")
    chat.ask("and this")
    expect(chat.queued).to_be_visible()
    chat.page.reload()
    expect(chat.queued).to_contain_text("and this")
    expect(chat.input).to_have_value("")
    chat.stop.click()
    chat.expect_idle()
    expect(chat.queued).to_contain_text("You stopped the answer before it")
    chat.page.get_by_test_id("queued-withdraw").click()
    expect(chat.queued).to_have_count(0)


def test_an_engine_that_is_away_at_first_is_said_and_asked_again(chat: ChatPage, engine: ScriptedEngine) -> None:
    stored = engine.store("Outboxes", ("How?", "So."))
    chat.page.route("**/v1/**", lambda route: route.abort())
    chat.open(stored)
    expect(chat.notice).to_contain_text("The server cannot be reached.")
    expect(chat.page.get_by_test_id("sidebar")).to_contain_text("could not be loaded")
    expect(chat.page.get_by_test_id("sidebar")).not_to_contain_text("Nothing here yet.")
    with chat.page.expect_request("**/v1/me"):
        chat.page.get_by_test_id("notice-action").click()
    chat.page.unroute("**/v1/**")
    expect(chat.answers).to_have_text("So.")
    expect(chat.sessions).to_have_count(1)
    expect(chat.page.get_by_test_id("model-label")).to_be_visible()
    expect(chat.notice).to_be_hidden()
    assert chat.page.url.endswith(stored)


def test_a_conversation_that_answers_can_be_stopped_and_deleted(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.scripts["go"] = [*text("Some words"), Wait("never")]
    chat.open()
    chat.ask("go")
    expect(chat.sessions).to_contain_text("Answering…")
    chat.page.get_by_test_id("session-delete").click()
    expect(chat.page.get_by_test_id("confirm-delete")).to_have_text("Stop and delete")
    chat.page.get_by_test_id("confirm-delete").click()
    expect(chat.sessions).to_have_count(0)
    expect(chat.empty).to_be_visible()
    expect(chat.notice).to_be_hidden()


def test_times_move_and_a_turn_that_ends_unseen_is_noticed(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.scripts["go"] = [*text("Some words"), Wait("end")]
    chat.page.clock.install()
    chat.open(engine.store("Outboxes", ("How?", "So.")))
    expect(chat.sessions).to_contain_text("Just now")
    chat.page.clock.run_for(180_000)
    expect(chat.sessions).to_contain_text("3 minutes ago")
    chat.page.get_by_test_id("new-conversation").click()
    chat.ask("go")
    expect(chat.sessions.first).to_contain_text("Answering…")
    chat.page.get_by_test_id("new-conversation").click()
    engine.open_gate("end")
    for _ in range(3):
        chat.page.clock.run_for(5_000)
    expect(chat.sessions.first).not_to_contain_text("Answering…")


def test_what_is_out_of_sight_of_a_long_conversation_is_not_laid_out(chat: ChatPage) -> None:
    messages = [
        {"role": role, "content": f"{role} *{number}*", "turnId": f"t{number}", "messageId": number}
        for number in range(300)
        for role in ("user", "assistant")
    ]
    history = {"sessionId": "s", "title": "", "runningTurnId": None, "messages": messages, "turns": []}
    chat.page.route("**/v1/sessions/s/messages", lambda route: route.fulfill(json=history))
    chat.open("s")
    expect(chat.answers.last).to_be_in_viewport()
    laid_out = "(all) => all.filter((each) => each.checkVisibility({ contentVisibilityAuto: true })).length"
    assert 0 < chat.answers.evaluate_all(laid_out) < 100
    expect(chat.answers.first).to_have_text("assistant 0")
    chat.answers.first.scroll_into_view_if_needed()
    expect(chat.questions.first).to_be_in_viewport()


@promise("messages that wait are shown by every tab and kept through a reload and the end of the engine")
def test_what_waits_in_one_conversation_is_sent_there_while_another_is_shown(
    chat: ChatPage, engine: ScriptedEngine
) -> None:
    ask = Call("files__write", approval=ApprovalPolicy.ALWAYS)
    engine.store("Outboxes", ("How?", "So."))
    engine.scripts |= {"pay": [message("", ask), *answer("Then not.")], "next": answer("Next.")}
    engine.scripts["again"] = [*text("Some words"), Wait("never")]
    shown = chat.sessions.filter(has_text="pay")
    chat.page.clock.install()
    chat.open()
    chat.ask("pay")
    expect(chat.page.get_by_test_id("approve")).to_be_visible()
    go_on = chat.hold("**/turns")
    with chat.page.expect_request("**/turns"):
        chat.ask("next")
    chat.page.get_by_role("link", name="Outboxes").click()
    expect(chat.answers).to_have_text("So.")
    expect(chat.queued).to_have_count(0)
    expect(chat.input).to_have_value("")
    with chat.page.expect_response("**/turns"):
        go_on()
    expect(shown).to_contain_text("Needs your approval")

    # However long an approval is open, what waits behind it stays.
    chat.page.clock.run_for(90_000)
    chat.page.go_back()
    expect(chat.queued).to_contain_text("next")
    chat.page.get_by_test_id("refuse").click()
    chat.page.get_by_role("link", name="Outboxes").click()
    expect(shown).not_to_contain_text("Answering…")
    expect(chat.answers).to_have_text("So.")
    shown.get_by_role("link").click()
    expect(chat.questions).to_have_text(["pay", "next"])
    expect(chat.answers.last).to_have_text("Next.")

    # After a stop it waits for the person: the list says so, wherever they are.
    chat.ask("again")
    expect(chat.answers.last).to_have_text("Some words")
    chat.ask("next")
    expect(chat.queued).to_be_visible()
    chat.stop.click()
    chat.page.get_by_role("link", name="Outboxes").click()
    expect(shown).to_contain_text("A message waits for you")


def test_what_is_typed_while_a_first_message_is_sent_stays_in_the_box(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.scripts["go"] = answer("Gone.")
    chat.open()
    expect(chat.page.get_by_test_id("sidebar")).to_contain_text("Nothing here yet.")
    go_on = chat.hold("**/v1/chat")
    with chat.page.expect_request(lambda each: each.method == "POST"):
        chat.ask("go")
    chat.page.keyboard.type("and then")
    go_on()
    expect(chat.answers).to_have_text("Gone.")
    expect(chat.input).to_have_value("and then")
    chat.page.get_by_test_id("new-conversation").click()
    expect(chat.input).to_have_value("")


def test_a_message_that_is_refused_while_the_next_is_written_is_kept_with_it(
    chat: ChatPage, engine: ScriptedEngine
) -> None:
    chat.open(engine.store("Outboxes", ("How?", "So.")))
    expect(chat.answers).to_have_text("So.")
    go_on = chat.hold("**/v1/chat")
    with chat.page.expect_request("**/v1/chat"):
        chat.ask("x" * 2001)
    chat.page.keyboard.type("and then")
    go_on()
    expect(chat.notice).to_contain_text("The message is too long.")
    expect(chat.input).to_have_value("x" * 2001 + "\n\nand then")
