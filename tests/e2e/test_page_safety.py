"""Whatever a model, a tool or a title says, the page shows it and does not obey it.

The `page` fixture does half of the asserting: a dialog, a violation of the policy, a console error or a request to
another host fails the test.
"""

import pytest
from playwright.sync_api import Error, Page, expect

from tests.e2e.chat_page import ChatPage, Watch
from tests.e2e.scripted_engine import ScriptedEngine
from tests.e2e.scripts import Call, Say, answer, done
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
    engine.scripts["go"] = [*answer(*ATTACKS.splitlines(keepends=True)), done()]
    chat.open()
    chat.ask("go")
    chat.expect_idle()
    expect(chat.answers.get_by_role("link")).to_have_text("p")
    expect(chat.answers).to_contain_text("<script>alert(1)</script>")
    assert_nothing_foreign(chat.page)


def test_attacks_in_every_part_of_a_tool_call_stay_text(chat: ChatPage, engine: ScriptedEngine) -> None:
    good = Call(f"a__{ATTACK}", "good", {ATTACK: ATTACK}, ATTACK)
    bad = Call(f"b__{ATTACK}", "bad", {"x": ATTACK}, ATTACK)
    media = [
        {"mimeType": ATTACK, "url": "javascript:alert(1)"},
        {"mimeType": "image/png", "url": "javascript:alert(1)"},
    ]
    engine.scripts["go"] = [
        good.step("pending", arguments=good.arguments, title=ATTACK),
        good.step("progress", progress=1, total=2, message=ATTACK),
        good.succeeded(ATTACK, media),
        *bad.announced(),
        bad.ended("failed", ATTACK, ATTACK),
        Say("reasoning", {"delta": ATTACK}),
        Say("error", {"code": ATTACK, "message": ATTACK}),
        done(ATTACK),
    ]
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
    expect(chat.cards.last.get_by_test_id("tool-error-code")).to_have_text(ATTACK)
    assert_nothing_foreign(chat.page)


def test_attacks_in_questions_titles_and_stored_answers_stay_text(chat: ChatPage, engine: ScriptedEngine) -> None:
    session = engine.store(ATTACK, (ATTACK, ATTACKS))
    chat.open(session.session_id)
    expect(chat.questions).to_have_text(ATTACK)
    expect(chat.page.get_by_role("heading", level=1)).to_have_text(ATTACK)
    expect(chat.sessions).to_contain_text(ATTACK)
    expect(chat.answers.get_by_role("link")).to_have_text("p")
    chat.page.get_by_test_id("session-delete").click()
    expect(chat.confirm_dialog).to_contain_text(ATTACK)
    assert_nothing_foreign(chat.page)


def test_unknown_event_types_and_statuses_are_tolerated(chat: ChatPage, engine: ScriptedEngine) -> None:
    call = Call("demo__job", "job")
    engine.scripts["go"] = [
        Say("constructor", {"delta": "x"}),
        Say("control", {"type": "weather", "status": "fine"}),
        call.step("pending") ,
        Say("control", dict(call.step("running").data) | {"status": "__proto__"}),
        call.succeeded("fine"),
        *answer("still here"),
        done("tired"),
    ]  # fmt: skip
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
