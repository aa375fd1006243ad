import pytest
from playwright.sync_api import expect
from tests.e2e.chat_page import ChatPage
from tests.e2e.scripted_engine import ScriptedEngine
from tests.e2e.scripts import Call, Wait, answer, message, text
pytestmark=[pytest.mark.browser]
def test_count(chat: ChatPage, engine: ScriptedEngine) -> None:
    call = Call("demo__job")
    engine.scripts["one"] = [*answer("A1")]
    engine.scripts["two"] = [message("Let me see", call), *call.begun(), call.succeeded("fine"), Wait("g"), *answer("A2")]
    chat.open()
    chat.page.wait_for_timeout(1500)
    def show(name):
        print(name, [(r.method, r.url.split("/",3)[3]) for r in chat._requests if "/v1/" in r.url])
        chat._requests.clear()
    show("open")
    chat.ask("one"); expect(chat.answers).to_have_text(["A1"]); chat.expect_idle(); chat.page.wait_for_timeout(1500)
    show("new")
    chat.ask("two"); chat.card("demo__job").expect_status("succeeded"); engine.open_gate("g"); expect(chat.answers).to_have_text(["A1","Let me see","A2"]); chat.expect_idle(); chat.page.wait_for_timeout(1500)
    show("second")
    chat.page.evaluate("dispatchEvent(new Event('focus'))"); chat.page.wait_for_timeout(500)
    show("focus")
