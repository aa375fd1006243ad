"""Questions of MCP servers on the page: forms, addresses to open, drafts, and how a question ended."""

import json
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Locator, expect

from tests.e2e.chat_page import ChatPage, Watch
from tests.e2e.scripted_engine import ScriptedEngine
from tests.e2e.scripts import Call, Script, answer
from tests.marks import exhaustive, promise

pytestmark = [pytest.mark.browser, exhaustive("needs a browser")]

BOOK = Call("trips__book", {"city": "Bonn"}, "trips")
CLASSES = [{"const": "f", "title": "First class"}, {"const": "s", "title": "Second class"}]
FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "day": {"type": "string", "format": "date", "title": "Day <b>of</b> travel"},
        "at": {"type": "string", "format": "date-time", "default": "2026-12-01T08:00:00Z"},
        "mail": {"type": "string", "format": "email", "description": "Where the ticket goes"},
        "site": {"type": "string", "format": "uri"},
        "note": {"type": "string", "minLength": 3, "maxLength": 5},
        "seats": {"type": "integer", "minimum": 1, "maximum": 4, "default": 2},
        "price": {"type": "number", "maximum": 99.5},
        "quiet": {"type": "boolean", "default": True},
        "class": {"type": "string", "oneOf": CLASSES},
        "extras": {"type": "array", "items": {"enum": ["bike", "dog"]}, "maxItems": 1},
    },
    "required": ["day", "mail"],
}
WHEN = {"type": "object", "properties": {"day": {"type": "string", "title": "Day"}}, "required": ["day"]}


def booked(**question: Any) -> Script:
    return [*BOOK.begun(), BOOK.asks(**question), BOOK.succeeded("Booked."), *answer("Done.")]


def field(chat: ChatPage, name: str) -> Locator:
    return chat.page.locator(f'[data-testid="asked-field"][data-field="{name}"]')


def write(chat: ChatPage, name: str, text: str) -> None:
    field(chat, name).locator("input").fill(text)


def problem(chat: ChatPage, name: str) -> Locator:
    return field(chat, name).get_by_test_id("asked-problem")


def over(chat: ChatPage) -> Locator:
    return chat.page.get_by_test_id("asked-over")


def unfold(chat: ChatPage) -> None:
    """Open the card, which is closed when nobody is asked any more."""
    chat.expect_idle()
    chat.card(BOOK.name).root.locator("summary").click()


def again(chat: ChatPage, context: BrowserContext, watch: Watch) -> ChatPage:
    """The same conversation in another tab."""
    page = context.new_page()
    watch.attach(page)
    other = ChatPage(page, chat.base_url)
    other.open(chat.session)
    return other


@promise(
    "a server's form is filled in on the page, which says at its field what does not fit",
    only_in_test_all="needs a browser",
)
def test_a_form_has_every_kind_of_field_and_its_own_validation(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.scripts["go"] = booked(message="When to <b>Bonn</b>?\u202e", form=FORM)
    part = chat.page.get_by_test_id
    chat.open()
    chat.ask("go")
    expect(part("asked-by")).to_have_text("trips / book asks you:")
    expect(part("asked-message")).to_have_text("When to <b>Bonn</b>?\\u202e")
    expect(chat.status).to_have_text("Waiting for your answer…")
    expect(chat.sessions).to_contain_text("Asks you something")
    expect(chat.page).to_have_title("(1) go · Callstream")
    expect(field(chat, "day").locator("label")).to_have_text("Day <b>of</b> travel (needed)")
    expect(field(chat, "mail")).to_contain_text("Where the ticket goes")
    expect(field(chat, "quiet").locator("input")).to_be_checked()

    for name, text in {"mail": "ann", "site": "example.com", "note": "ab", "seats": "9", "price": "much"}.items():
        write(chat, name, text)
    field(chat, "extras").get_by_label("bike").check()
    field(chat, "extras").get_by_label("dog").check()
    part("asked-answer").click()
    expect(field(chat, "day").locator("input")).to_be_focused()
    problems = {
        "day": "This is needed.",
        "mail": "Write an email address, like ann@example.com.",
        "site": "Write an address with its beginning, like https://example.com.",
        "note": "3 to 5 characters; here are 2.",
        "seats": "Write a number: 1 to 4.",
        "price": "Write a number, like 12 or 1.5.",
        "extras": "At most 1 choices; here are 2.",
    }
    for name, words in problems.items():
        expect(problem(chat, name)).to_have_text(words)
    assert chat.sent("POST", "1%3A1") == [], "nothing was sent"
    chat.picture("question-form")

    fits = {"day": "2026-12-01", "mail": "ann@example.com", "site": "https://a.example", "note": "abc", "price": "1.5"}
    for name, text in (fits | {"seats": ""}).items():
        write(chat, name, text)
        expect(problem(chat, name)).to_be_empty()
    expect(field(chat, "seats")).to_contain_text("Left empty, 2 is sent.")
    field(chat, "extras").get_by_label("bike").uncheck()
    field(chat, "class").locator("select").select_option("First class")
    part("asked-answer").click()
    unfold(chat)
    expect(chat.page).to_have_title("go · Callstream")
    for words in ("2026-12-01", "ann@example.com", "seats 2", "quiet yes", "class First class", "extras dog"):
        expect(part("asked-content")).to_contain_text(words)
    live = over(chat).inner_text()
    chat.page.reload()
    unfold(chat)
    assert over(chat).inner_text() == live
    [sent] = chat.sent("POST", "1%3A1")
    content = json.loads(sent.post_data or "")["content"]
    assert "seats" not in content
    assert content["at"] == "2026-12-01T08:00:00.000Z"


def test_what_the_engine_refuses_is_said_at_its_field_and_what_was_written_stays(
    chat: ChatPage, engine: ScriptedEngine, context: BrowserContext, watch: Watch
) -> None:
    engine.scripts["go"] = booked(message="When?", form=WHEN)
    errors = [
        {"field": "content.day", "message": "must be a holiday"},
        {"field": "content.x", "message": "no such field"},
    ]
    refusal = {"status": 422, "code": "ANSWER_REFUSED", "title": "no", "errors": errors}
    chat.open()
    chat.ask("go")
    write(chat, "day", "tomorrow")
    chat.page.route("**/questions/*", lambda route: route.fulfill(status=422, json=refusal), times=1)
    chat.page.get_by_test_id("asked-answer").click()
    expect(problem(chat, "day")).to_have_text("Must be a holiday.")
    expect(chat.page.get_by_test_id("asked-error")).to_have_text("No such field.")
    expect(field(chat, "day").locator("input")).to_be_focused()
    write(chat, "day", "Sunday")
    expect(problem(chat, "day")).to_be_empty()

    chat.page.reload()
    expect(field(chat, "day").locator("input")).to_have_value("Sunday")
    other = again(chat, context, watch)
    expect(field(other, "day").locator("input")).to_have_value("Sunday")
    chat.page.get_by_test_id("asked-answer").click()
    for tab, words in ((chat, "You answered."), (other, "You answered in another tab or on another device.")):
        unfold(tab)
        expect(over(tab)).to_contain_text(words)
        expect(over(tab)).to_contain_text("Sunday")
    kept = "Object.keys(localStorage).filter((name) => name.includes('draft') && localStorage[name].includes('Sunday'))"
    assert chat.page.evaluate(kept) == []


@pytest.mark.parametrize(
    ("button", "words"),
    [
        ("asked-decline", "You declined to answer."),
        ("asked-cancel", "You dismissed the question."),
        ("stop", "The question was withdrawn: "),
    ],
)
def test_a_question_is_not_answered(chat: ChatPage, engine: ScriptedEngine, button: str, words: str) -> None:
    engine.scripts["go"] = booked(message="When?", form=WHEN)
    chat.open()
    chat.ask("go")
    expect(chat.page.get_by_test_id("asked")).to_be_visible()
    chat.page.get_by_test_id(button).click()
    for _ in range(2):
        unfold(chat)
        expect(over(chat)).to_contain_text(words)
        chat.page.reload()


def test_nobody_answers_in_time(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.restart(question_timeout_seconds=1)
    engine.scripts["go"] = booked(message="When?", form=WHEN)
    chat.open()
    chat.ask("go")
    for _ in range(2):
        chat.expect_idle()
        expect(over(chat)).to_contain_text("Nobody answered in time, and the call did not go on.")
        expect(chat.card(BOOK.name).part("error")).to_contain_text("ask for it again")
        chat.page.reload()


@promise(
    "an address that a server names is opened by its person's click only, after its host was shown",
    only_in_test_all="needs a browser",
)
def test_an_address_is_shown_with_its_host_and_opened_by_a_click_only(
    chat: ChatPage, engine: ScriptedEngine, context: BrowserContext
) -> None:
    referers: list[str | None] = []

    def page(route: Any) -> None:
        referers.append(route.request.headers.get("referer"))
        route.fulfill(body="<p>Pay here</p>", content_type="text/html")

    context.route("https://pay.example/**", page)
    engine.scripts["go"] = booked(message="Pay first", url="https://pay.example/bill?id=1")
    part = chat.page.get_by_test_id
    chat.open()
    chat.ask("go")
    expect(part("asked-host")).to_have_text("pay.example")
    expect(part("asked-url")).to_have_text("https://pay.example/bill?id=1")
    expect(part("asked-done")).to_have_count(0)
    assert referers == [], "nothing is fetched before"
    chat.picture("question-address")
    with context.expect_page() as opened:
        part("asked-open").click()
    expect(opened.value.get_by_text("Pay here")).to_be_visible()
    assert opened.value.evaluate("opener") is None
    assert referers == [None]
    expect(part("asked-opened")).to_contain_text("The server waits.")
    chat.page.reload()
    expect(part("asked-opened")).to_be_visible()
    part("asked-done").click()
    unfold(chat)
    expect(over(chat)).to_contain_text("You answered.")
    assert len(referers) == 1
