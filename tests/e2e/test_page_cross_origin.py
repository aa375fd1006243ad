"""A team's own page, on another origin than the engine's."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser

from tests.e2e.scripted_engine import ScriptedEngine
from tests.e2e.scripts import answer
from tests.marks import exhaustive, promise

pytestmark = [pytest.mark.browser, exhaustive("needs a browser")]

KEY = "a key of ann that is long"
ASKED = """async ([url, key]) => {
    const headers = { Authorization: `Bearer ${key}`, "Content-Type": "application/json", "X-Stainless-Lang": "js" };
    const answer = await fetch(`${url}/v1/chat`, { method: "POST", headers, body: '{"message": "hello"}' });
    const text = answer.ok ? await answer.text() : (await answer.json()).code;
    return [answer.status, text, answer.headers.get("x-turn-id") !== null, answer.headers.get("x-request-id") !== null];
}"""


class _Blank(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>A front end</title>")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class calls it so
        pass


@pytest.fixture
def front_end() -> Iterator[str]:
    """The origin of a page that is not the engine's."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Blank) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@promise("pages on listed origins can use the API from browsers, and no others can")
def test_a_page_on_a_listed_origin_reads_a_chat_and_its_refusals(
    browser: Browser, engine: ScriptedEngine, front_end: str
) -> None:
    engine.scripts["hello"] = answer("Hello from afar.")
    engine.restart(api_keys={"ann": KEY}, cors_origins=(front_end,))
    page = browser.new_page()
    page.goto(front_end)
    status, text, *readable = page.evaluate(ASKED, [engine.url, KEY])
    assert (status, readable) == (200, [True, True])
    assert "Hello from afar." in text
    assert text.rstrip().rpartition("event: ")[2].startswith("done")
    assert page.evaluate(ASKED, [engine.url, "no key of anybody"])[:2] == [401, "UNAUTHORIZED"]

    engine.restart(cors_origins=("https://app.example",))
    page.goto(front_end)
    with pytest.raises(Exception, match="Failed to fetch"):
        page.evaluate(ASKED, [engine.url, KEY])
    page.close()
