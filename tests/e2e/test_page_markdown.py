"""Markdown in the real browser: what it becomes, that it is safe whatever it says, and that it does not jump."""

from random import Random
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.chat_page import ChatPage
from tests.e2e.scripted_engine import ScriptedEngine
from tests.e2e.scripts import Wait, message, text
from tests.marks import exhaustive, promise, smoke

pytestmark = [pytest.mark.browser, exhaustive("needs a browser")]

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](java&#x73;cript:alert(1))",
    "[x](data:text/html,<script>alert(1)</script>)",
    "[x](vbscript:msgbox)",
    "[x]( javascript:alert(1))",
    "[x][1]\n\n[1]: javascript:alert(1)",
    "<javascript:alert(1)>",
    '[x](https://a.example "\\" onmouseover=alert(1) x=\\"")',
    '![x](https://a.example/"onerror="alert(1))',
    "![x](javascript:alert(1))",
    "```\"><script>alert(1)</script>\ncode\n```",
    "```x\" onclick=\"alert(1)\ncode\n```",
    "[x](//evil.example)",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "<style>*{display:none}</style>",
    "<a href='javascript:alert(1)'>x</a>",
    "<!--><script>alert(1)</script-->",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>",
    "\\(\\href{javascript:alert(1)}{x}\\) \\(\\htmlStyle{background:url(//evil.example)}{x}\\)",
    "$$\\includegraphics{https://evil.example/x.png} \\class{x}{y} \\color{url(//evil.example)} z$$",
    "\\[\n\\begin{array}{c}<img src=x onerror=alert(1)>\\end{array}\n\\]",
]  # fmt: skip
PIECES = [
    *("# ", "> ", "- ", "1. ", "    ", "\t", "\n", "\n\n", "```", "~~~", "`", "***", "**", "_", "~~", "[", "](", ")"),
    *("![", "]", "][", "]: ", "<", ">", "|", "|-|", "\n|-|-|\n", "\\", "&", "&#x3c;", "</p>", "<!--", "-->"),
    *("<![CDATA[", "JaVaScRiPt:", "java\nscript:", "data:text/html,x", "http://x", "//x", "mailto:a@b"),
    *("https://a.b/?c=<d>&e='\"", "&colon;", "&Tab;", "&#106;avascript:", "%6a", "\x00", "\u202e", "a", "Hello "),
    *("é🙂", "=" * 5, "[a]: http://x 't'", "<http://a.b>", " onclick=alert(1) ", '" style="x', '``` js" onload="x\n'),
    *("[x]", "\\(", "\\)", "\\[\n", "\\]\n", "$$"),
    *HOSTILE,
]
MIXES = 150

# Everything in the answers that is not allowed to be there.
FOREIGN = """(answers) => {
    const blocks = 'p br hr h3 h4 h5 h6 blockquote pre ul ol li a code em strong s table thead tbody tr th td div span';
    const page = 'button svg path math mrow mi mn mo ms mtext mspace mfrac msqrt mroot msup msub msubsup mover ' +
        'munder munderover mtable mtr mtd mstyle mpadded mphantom';
    const tags = new Set(`${blocks} ${page}`.split(' '));
    const attributes = new Set(('href title rel target class align start role tabindex aria-label aria-hidden type ' +
        'aria-pressed aria-expanded data-testid viewBox d dir').split(' '));
    const mathematics = 'http://www.w3.org/1998/Math/MathML';
    return answers.flatMap((answer) => [...answer.querySelectorAll('*')]).flatMap((element) => {
        const found = tags.has(element.localName) ? [] : [element.localName];
        for (const { name, value } of element.attributes) {
            if (element.namespaceURI === mathematics ? /^on|href|src|url/i.test(name + value) : !attributes.has(name))
                found.push(`${element.localName} ${name}=${value}`);
        }
        if (element.localName === 'a' && !/^(https?|mailto):/i.test(element.getAttribute('href')))
            found.push(element.outerHTML);
        if (element.localName === 'a' && (element.target !== '_blank' || !element.rel.includes('noopener')))
            found.push(element.outerHTML);
        return found;
    });
}"""


def shown(chat: ChatPage, *texts: str) -> Locator:
    """The answers with these texts, in a conversation that is read as from the store."""
    messages = [
        {"role": role, "content": content, "turnId": f"t{number}", "messageId": 2 * number + at}
        for number, each in enumerate(texts)
        for at, (role, content) in enumerate([("user", f"{number}"), ("assistant", each)], 1)
    ]
    history = {"sessionId": "texts", "title": "", "runningTurnId": None, "messages": messages, "turns": []}
    chat.page.route("**/v1/sessions/texts/messages", lambda route: route.fulfill(json=history))
    chat.open("texts")
    expect(chat.answers).to_have_count(len(texts))
    return chat.answers


@promise("Markdown is safe")
@smoke
def test_hostile_markdown_becomes_nothing_but_known_elements(chat: ChatPage) -> None:
    answers = shown(chat, *HOSTILE)
    expect(answers.first).to_have_text("<script>alert(1)</script>")
    assert answers.evaluate_all(FOREIGN) == []


@promise("hostile input of any side gives a named error, and others are served")
def test_any_mix_of_hostile_markdown_becomes_nothing_but_known_elements(chat: ChatPage) -> None:
    random = Random(8)
    mixes = ["".join(random.choices(PIECES, k=random.choice([3, 10, 40, 150]))) for _ in range(MIXES)]
    answers = shown(chat, *(f"{number} {mix}" for number, mix in enumerate(mixes)))
    expect(answers.last).to_contain_text(str(MIXES - 1))
    assert answers.evaluate_all(FOREIGN) == []


def test_marks_tables_links_and_images_are_laid_out(chat: ChatPage) -> None:
    answers = shown(
        chat,
        "*a* **b** `c` ~~d~~",
        "one\ntwo",
        "| a | b |\n|---|--:|\n| 1 | 2 |",
        "```c++\na < b\n```",
        "[x](https://a.example) [y](/v1/sessions) [z](tel:1)",
        "![a cat](https://a.example/cat.png) ![](https://a.example/dog.png)",
        "[![logo](https://a.example/logo.png)](https://b.example)",
        "# a\n\n## b\n\n###### c",
        "3. three\n4. four",
    )
    expect(answers.nth(0).locator("em, strong, code, s")).to_have_text(["a", "b", "c", "d"])
    expect(answers.nth(1)).to_have_text("one two")
    expect(answers.nth(2).locator("th").first).to_have_text("a")
    expect(answers.nth(2).locator("td").last).to_have_attribute("align", "right")
    expect(answers.nth(3).locator("code.language-c\\+\\+")).to_have_text("a < b")
    expect(answers.nth(4).locator("a")).to_have_text("x")
    expect(answers.nth(4).locator("a")).to_have_attribute("rel", "noopener noreferrer nofollow")
    expect(answers.nth(4)).to_contain_text("[y](/v1/sessions) [z](tel:1)")
    expect(answers.nth(5).locator("a")).to_have_text(["a cat", "https://a.example/dog.png"])
    expect(answers.nth(6).locator("a")).to_have_count(1)
    expect(answers.nth(6).locator("a")).to_have_text("logo")
    expect(answers.nth(7).locator("h3, h4, h6")).to_have_text(["a", "b", "c"])
    expect(answers.nth(8).locator("ol")).to_have_attribute("start", "3")


@promise("Markdown is rendered within a budget")
@smoke
def test_what_is_too_large_is_shown_as_text_and_that_is_said(chat: ChatPage) -> None:
    table = "|a|b|\n|-|-|\n" + "|1|2|\n" * 2_500
    answers = shown(
        chat, table, "> " * 150 + "deep", ("word " * 20 + "\n\n") * 3_100, "|a|b|\n|-|-|\n" + "|1|2|\n" * 2_400
    )
    for number, words in (
        (0, "This table is shown as text"),
        (1, "nested very deeply"),
        (2, "The rest of this answer"),
    ):
        expect(answers.nth(number).get_by_test_id("plain-text")).to_contain_text(words)
    expect(answers.nth(3).locator("td")).to_have_count(4_800)
    expect(chat.input).to_be_enabled()


def test_code_has_its_head_from_the_first_line_and_does_not_jump(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.scripts["go"] = [
        *text("```python\ndef f(x):\n"),
        Wait("more"),
        *text("    return 1\n```\n\nThat"),
        Wait("end"),
        message("```python\ndef f(x):\n    return 1\n```\n\nThat is it."),
    ]
    chat.open()
    chat.ask("go")
    block = chat.answers.get_by_test_id("code-block")
    expect(block.get_by_test_id("copy-code")).to_be_visible()
    expect(block.locator("pre")).to_have_text("def f(x):")
    before = top(block.locator("pre"))
    block.locator("pre").evaluate("(pre) => { pre.marked = true }")
    engine.open_gate("more")
    expect(block.locator(".hljs-keyword")).to_have_text(["def", "return"])
    engine.open_gate("end")
    chat.expect_idle()
    expect(block.locator("pre")).to_have_js_property("marked", value=True)
    assert top(block.locator("pre")) == before
    expect(block.locator("code")).to_have_text("def f(x):\n    return 1\n")


def top(element: Locator) -> Any:
    return element.evaluate("(element) => element.getBoundingClientRect().top")


def test_mathematics_is_laid_out_and_keeps_its_backslashes_where_it_cannot_be(chat: ChatPage) -> None:
    answers = shown(
        chat, "So \\(a\\,+b\\) it is.\n\n\\[\n\\frac{1}{2}\n\\]", "Not \\(\\of{nobody}\\).", "Open \\(a\\,b"
    )
    expect(answers.nth(0).locator("math mi")).to_have_text(["a", "b"])
    expect(answers.nth(0).locator("math mfrac mn")).to_have_text(["1", "2"])
    expect(answers.nth(1)).to_have_text("Not \\(\\of{nobody}\\).")
    expect(answers.nth(2)).to_have_text("Open \\(a\\,b")


def test_a_block_that_takes_too_long_stays_plain_and_the_next_one_is_coloured(chat: ChatPage) -> None:
    slow = "```csharp\n" + SLOW + "\n```"
    answers = shown(chat, slow, "```js\nlet x;\n```")
    expect(answers.nth(1).locator(".hljs-keyword")).to_have_text("let")
    expect(answers.nth(0).locator(".hljs-keyword")).to_have_count(0)
    expect(answers.nth(0).locator("code")).to_contain_text(SLOW[-20:].strip())


SLOW = "a " * 40_000
"""For which the grammar of C# needs seconds."""


def test_what_is_whole_stays_the_same_nodes_while_the_answer_grows(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.scripts["go"] = [
        *text("One *two*.\n\nThree"),
        Wait("more"),
        *text(" four.\n\nFive."),
        message("One *two*.\n\nThree four.\n\nFive."),
    ]
    chat.open()
    chat.ask("go")
    expect(chat.answers.locator("p")).to_have_count(2)
    mark(chat.page)
    engine.open_gate("more")
    expect(chat.answers.locator("p")).to_have_text(["One two.", "Three four.", "Five."])
    chat.expect_idle()
    kept = "[...document.querySelectorAll('.prose *')].filter((each) => each.marked).map((each) => each.localName)"
    assert chat.page.evaluate(kept) == ["p", "em", "p"]


def mark(page: Page) -> None:
    page.evaluate("for (const element of document.querySelectorAll('.prose *')) element.marked = true")


@promise(
    "an answer whose layout cannot be fetched is shown as it was written, and laid out once it can",
    only_in_test_all="needs a browser",
)
def test_without_the_layout_an_answer_is_shown_as_it_was_written(chat: ChatPage, engine: ScriptedEngine) -> None:
    session_id = engine.store("Kept", ("Before?", "It is **bold**."))
    chat.page.route("**/assets/later-*", lambda route: route.abort())
    chat.open(session_id)
    expect(chat.answers).to_have_text("It is **bold**.")
    chat.page.unroute("**/assets/later-*")
    engine.scripts["Now?"] = [message("Now **laid out**.")]
    chat.ask("Now?")
    expect(chat.answers.last.locator("strong")).to_have_text("laid out")
    expect(chat.answers.first.locator("strong")).to_have_text("bold")
