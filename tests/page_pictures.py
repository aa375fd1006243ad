"""`python -m tests.page_pictures`: what the README shows of the chat page, from the running product.

It writes docs/pictures/page.png, and page-crash.gif: a tool call whose engine is killed with SIGKILL while the tool
runs, and started again. Nothing is cut out; a strip below the page says what was done to the processes, and when.
"""

import io
import shutil
import time
from contextlib import ExitStack
from itertools import pairwise

from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import Page, ViewportSize, expect, sync_playwright

from tests.support.processes import ROOT
from tests.support.stack import Stack, running_stack

FOLDER = ROOT / "docs" / "pictures"
VIEW: ViewportSize = {"width": 960, "height": 620}
STRIP = 40
FRAME_SECONDS = 0.2
COLOURS = 64
LAST_FRAME_MS = 4_000
QUESTION = "What time is it in Tokyo and in Paris?"
SLOW_QUESTION = "Run a slow job for 6 seconds"


class Recording:
    """A page as pictures, each with the seconds since the first and a sentence."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._frames: list[tuple[float, Image.Image]] = []
        self._font = ImageFont.load_default(18)

    def take(self, sentence: str) -> None:
        """One picture."""
        now = time.monotonic()
        seen = Image.open(io.BytesIO(self._page.screenshot()))
        frame = Image.new("RGB", (VIEW["width"], VIEW["height"] + STRIP), "#1f2937")
        frame.paste(seen)
        began = self._frames[0][0] if self._frames else now
        text = f"{now - began:4.1f} s   {sentence}"
        ImageDraw.Draw(frame).text((16, VIEW["height"] + 9), text, fill="white", font=self._font)
        self._frames.append((now, frame.quantize(COLOURS)))

    def until(self, sentence: str, seconds: float, text: str = "") -> None:
        """Pictures for so long, or until the text is seen; that must happen in this time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.take(sentence)
            if text and self._page.get_by_text(text).first.is_visible():
                return
            self._page.wait_for_timeout(FRAME_SECONDS * 1000)
        assert not text, f"not seen: {text}"

    def save(self, name: str) -> None:
        """As an animation that repeats."""
        times = [at for at, _ in self._frames]
        lasted = [round((after - at) * 1000) for at, after in pairwise(times)]
        first, *rest = [frame for _, frame in self._frames]
        first.save(
            FOLDER / name, save_all=True, append_images=rest, duration=[*lasted, LAST_FRAME_MS], loop=0, optimize=True
        )


def _ask(page: Page, question: str) -> None:
    page.get_by_label("Message", exact=True).fill(question)
    page.get_by_role("button", name="Send").click()


def _record_crash(page: Page, stack: Stack) -> None:
    recording = Recording(page)
    page.get_by_role("button", name="New conversation").first.click()
    recording.until("a browser, an engine, a worker, an MCP server", 1)
    _ask(page, SLOW_QUESTION)
    recording.until("the tool runs at its MCP server", 2.5)
    assert stack.engine
    stack.engine.kill()
    recording.until("the engine was killed: kill -9", 2.5)
    stack.start_engine()
    recording.until("the engine was started again, and the call goes on", 40, "answered:")
    recording.until("the call ran once, its result was not lost, and the model went on", 1.5)
    recording.save("page-crash.gif")


def main() -> None:
    with ExitStack() as exits:
        stack = exits.enter_context(running_stack(token_delay_ms=15))
        playwright = exits.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        exits.callback(browser.close)
        page = browser.new_page(viewport=VIEW, color_scheme="light")
        page.goto(stack.url)
        _ask(page, QUESTION)
        expect(page.get_by_test_id("message-text").last).to_contain_text("Paris", timeout=30_000)
        expect(page.get_by_role("button", name="Stop", exact=True)).to_be_hidden(timeout=30_000)
        page.screenshot(path=FOLDER / "page.png")
        _record_crash(page, stack)


if __name__ == "__main__":
    main()
