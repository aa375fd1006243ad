"""Whatever a model, a tool or a title says, the page shows it and does not obey it.

The `page` fixture does half of the asserting: a dialog, a violation of the policy, a console error or a request to
another host fails the test.
"""

import json
from typing import Any

import pytest
from playwright.sync_api import Error, Page, Route, expect

from plugins_contract.catalog import ApprovalPolicy
from tests.e2e.chat_page import ChatPage, Watch
from tests.e2e.scripted_engine import ScriptedEngine
from tests.e2e.scripts import Call, answer, message
from tests.marks import exhaustive, promise

pytestmark = [pytest.mark.browser, exhaustive("needs a browser")]

ATTACKS = """\
<script>alert(1)</script>
<img src=x onerror=alert(1)> <svg onload=alert(1)> <iframe src="javascript:alert(1)"></iframe>
[click](javascript:alert(1)) [me](data:text/html,<script>alert(1)</script>) ![p](https://evil.example/p.png)
<style>body{display:none}</style><meta http-equiv=refresh content="0;url=https://evil.example">
<base href="https://evil.example"><form action="https://evil.example"><input name=q autofocus></form>
"""
ATTACK = '"><img src=x onerror=alert(1)><script>alert(1)</script>'


@promise("Markdown is safe")
def test_attacks_in_an_answer_stay_text(chat: ChatPage, engine: ScriptedEngine) -> None:
    engine.scripts["go"] = answer(*ATTACKS.splitlines(keepends=True))
    chat.open()
    chat.ask("go")
    chat.expect_idle()
    expect(chat.answers.get_by_role("link")).to_have_text("p")
    expect(chat.answers).to_contain_text("<script>alert(1)</script>")
    assert_nothing_foreign(chat.page)


def served(page: Page, *events: tuple[str, dict[str, Any]]) -> None:
    """The next message is answered with these events, which no engine would send, and with an end."""
    frames = [("control", {"type": "turn", "status": "started", "turnId": "t", "sessionId": "s"}), *events]
    body = "".join(
        f"id: 1-{n}\nevent: {name}\ndata: {json.dumps(data)}\n\n" for n, (name, data) in enumerate(frames, 1)
    )

    def answer(route: Route) -> None:
        headers = {"content-type": "text/event-stream", "x-session-id": "s", "x-turn-id": "t"}
        route.fulfill(headers=headers, body=body)

    page.route("**/v1/chat", answer, times=1)


def step(status: str, call: str = "one", **more: Any) -> tuple[str, dict[str, Any]]:
    facts = {"toolName": call, "server": ATTACK, "toolCallId": call, "correlationId": call, "round": 1}
    return "control", {"type": "tool", "status": status, **facts, **more}


def done(reason: str) -> tuple[str, dict[str, Any]]:
    return "done", {"reason": reason, "usage": {"inputTokens": 1, "outputTokens": 1}, "ttftMs": 1}


@promise("the page loads nothing from other hosts, under a strict policy")
def test_attacks_in_every_part_of_a_tool_call_stay_text(chat: ChatPage) -> None:
    good, bad = f"a__{ATTACK}", f"b__{ATTACK}"
    media = [
        {"mimeType": ATTACK, "url": "javascript:alert(1)"},
        {"mimeType": "image/png", "url": "javascript:alert(1)"},
        {"mimeType": "image/png", "url": "https://evil.example/v1/turns/t/tool-calls/x/content/0"},
    ]
    served(
        chat.page,
        step("pending", good, arguments={ATTACK: ATTACK}, title=ATTACK),
        step("progress", good, progress=1, total=2, message=ATTACK),
        step("succeeded", good, durationMs=1, result={"text": ATTACK, "truncated": False, "media": media}),
        step("pending", bad, arguments={"x": ATTACK}),
        step("failed", bad, durationMs=1, error={"code": ATTACK, "message": ATTACK}),
        ("reasoning", {"delta": ATTACK}),
        ("error", {"code": ATTACK, "message": ATTACK}),
        done(ATTACK),
    )
    chat.open()
    chat.ask("go")
    chat.expect_idle()
    expect(chat.cards).to_have_count(2)
    expect(chat.cards.first.get_by_test_id("tool-name")).to_have_text(f"a__{ATTACK}")
    expect(chat.cards.first.get_by_test_id("tool-quoted-title")).to_have_text(f"“{ATTACK}”")
    expect(chat.cards.first.get_by_test_id("tool-result")).to_have_text(ATTACK)
    expect(chat.cards.first).to_contain_text("The image could not be loaded.")
    chat.cards.first.get_by_test_id("tool-download").click()
    expect(chat.cards.first.get_by_test_id("tool-download")).to_have_text("The download failed")
    expect(chat.cards.last.get_by_test_id("tool-error")).to_have_text(ATTACK)
    assert_nothing_foreign(chat.page)


def test_attacks_in_questions_titles_and_stored_answers_stay_text(chat: ChatPage, engine: ScriptedEngine) -> None:
    chat.open(engine.store(ATTACK, (ATTACK, ATTACKS)))
    expect(chat.questions).to_have_text(ATTACK)
    expect(chat.page.get_by_role("heading", level=1)).to_have_text(ATTACK)
    expect(chat.sessions).to_contain_text(ATTACK)
    expect(chat.answers.get_by_role("link")).to_have_text("p")
    chat.page.get_by_test_id("session-delete").click()
    expect(chat.confirm_dialog).to_contain_text(ATTACK)
    assert_nothing_foreign(chat.page)


def test_unknown_event_types_and_statuses_are_tolerated(chat: ChatPage) -> None:
    served(
        chat.page,
        ("constructor", {"delta": "x"}),
        ("control", {"type": "weather", "status": "fine"}),
        step("pending", "demo__job"),
        step("__proto__", "demo__job"),
        step("succeeded", "demo__job", durationMs=1, result={"text": "fine", "truncated": False, "media": []}),
        ("message", {"role": "assistant", "content": "still here", "messageId": 7}),
        done("tired"),
    )
    chat.open()
    chat.ask("go")
    expect(chat.answers).to_have_text("still here")
    chat.card("demo__job").expect_status("succeeded")
    expect(chat.page.get_by_test_id("turn-note")).to_have_text("The answer ended early: tired.")


POLICIES = """(() => {
    globalThis.policies = [];
    const make = TrustedTypePolicyFactory.prototype.createPolicy;
    TrustedTypePolicyFactory.prototype.createPolicy = function (...all) {
        const policy = make.apply(this, all);
        policies.push(policy);
        return policy;
    };
})()"""


@promise("Markdown is safe")
def test_no_string_becomes_html_and_no_other_address_a_worker(chat: ChatPage, watch: Watch) -> None:
    chat.page.add_init_script(POLICIES)
    chat.open()
    expect(chat.empty).to_be_visible()
    assert chat.page.evaluate("policies.map(({ name }) => name)") == ["callstream-worker"]
    refused = {
        "document.body.insertAdjacentHTML('beforeend', '<b>x</b>')": "TrustedHTML",
        "document.body.innerHTML = ''": "TrustedHTML",
        "trustedTypes.createPolicy('another', {createHTML: (text) => text})": "createPolicy",
        "trustedTypes.createPolicy('callstream-worker', {createHTML: (text) => text})": "createPolicy",
        "policies[0].createHTML('<b>x</b>')": "createHTML",
        "policies[0].createScript('alert(1)')": "createScript",
        "policies[0].createScriptURL('https://evil.example/x.js')": "not the page's worker",
        "policies[0].createScriptURL('/v1/about')": "not the page's worker",
        "new Worker('/assets/worker.js')": "TrustedScriptURL",
    }
    for script, error in refused.items():
        with pytest.raises(Error, match=error):
            chat.page.evaluate(script)
    assert any("require-trusted-types-for" in violation for violation in watch.violations)
    watch.violations.clear()


def assert_nothing_foreign(page: Page) -> None:
    """Only the page's own two scripts, no frame, no form of another, no attribute that runs."""
    expect(page.locator("script")).to_have_count(2)
    expect(
        page.locator("iframe, object, embed, base, meta[http-equiv], [onerror], [onload], form[action]")
    ).to_have_count(0)
    expect(page.locator("#conversation :is(style, svg:not(.icon), input, form)")).to_have_count(0)


RIGHT_TO_LEFT, NO_BREAK, FILLER, TAG = "\u202e", "\u00a0", "\u3164", "\U000e0041"
HIDDEN = {"path": f"a.txt{NO_BREAK * 300}/etc/passwd", "x": f"{RIGHT_TO_LEFT}gnp.exe{FILLER}{TAG}\u200b"}


def test_the_approval_card_names_the_real_tool_first_and_shows_what_is_hidden(
    chat: ChatPage, engine: ScriptedEngine
) -> None:
    real = f"read__{'a' * 300}__delete_everything{RIGHT_TO_LEFT}"
    shown_name = real.replace(RIGHT_TO_LEFT, "\\u202e")
    call = Call(
        f"files__{real[:40]}_12345678", HIDDEN, "files", real, f"Read the weather{RIGHT_TO_LEFT}", ApprovalPolicy.ALWAYS
    )
    engine.scripts["go"] = [message("", call)]
    chat.open()
    chat.ask("go")
    card = chat.cards.first
    expect(card.get_by_test_id("tool-name")).to_have_text(shown_name)
    expect(card.get_by_test_id("tool-quoted-title")).to_have_text("“Read the weather\\u202e”")
    expect(card.get_by_test_id("approval-tool")).to_have_text(
        f"files / {shown_name} (its server calls it “Read the weather\\u202e”)"
    )
    width = "element => element.scrollWidth - element.clientWidth"
    assert card.get_by_test_id("approval-tool").evaluate(width) == 0
    shown = card.get_by_test_id("approval-arguments").input_value()
    assert shown.isascii()
    assert shown.count("\\u00a0") == 300
    for escape in ("\\u202e", "\\u3164", "\\udb40\\udc41", "\\u200b"):
        assert escape in shown
    assert json.loads(shown) == HIDDEN
