"""What the chat page costs: its files, the time until it can be used, frames, key presses, and the engine's processor.

    python -m benchmarks.page [--rounds 3] [--tokens 3000]

A real Chromium (`CHROMIUM` names another binary) against a real engine, whose model streams Markdown at 200 tokens/s.
A slow line has 1.6 Mbit/s and 150 ms, a slow processor a quarter of this one. A figure over its budget is marked.
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from playwright.sync_api import Browser, Locator, Page, sync_playwright

from benchmarks.arguments import at_least
from benchmarks.machine import describe
from benchmarks.relay.answers import Answer
from benchmarks.relay.relays import Relay, callstream, cpu_seconds, provider
from dialog_engine.storage.sqlite_file import open_sqlite
from tests.support.long_sessions import write_session

TOKENS_PER_SECOND = 200
SLOW_LINE = {"offline": False, "latency": 150, "downloadThroughput": 200_000, "uploadThroughput": 200_000}
SLOW_PROCESSOR = {"rate": 4}
LONG_TURNS = 1500
"""Each has a question and an answer: 3,000 messages."""
KEYS = "The quick brown fox jumps over the lazy dog. "
RECORDER = """
window.recorded = {frames: [], keys: []};
let last = 0;
requestAnimationFrame(function frame(now) {
  if (last) recorded.frames.push(now - last);
  last = now;
  requestAnimationFrame(frame);
});
addEventListener("keydown", (event) => requestAnimationFrame(() => {
  const afterPaint = new MessageChannel();
  afterPaint.port1.onmessage = () => recorded.keys.push(performance.now() - event.timeStamp);
  afterPaint.port2.postMessage(0);
}), true);
"""
USABLE = """() => {
  const input = document.querySelector("textarea");
  const answers = performance.getEntriesByType("resource").filter((each) => each.name.includes("/v1/"));
  return Boolean(input && !input.disabled && answers.length >= 2);
}"""
"""The message can be written, and the API has answered: with who the user is, and with what there is."""
LAST_ANSWER_MS = """() => Math.max(...performance.getEntriesByType("resource").map((each) => each.responseEnd))"""
FILES = """() => {
  const all = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
  const asked = Math.min(...all.filter((each) => each.name.includes("/v1/")).map((each) => each.startTime));
  return all.filter((each) => each.startTime < asked).map((each) => each.encodedBodySize);
}"""
"""What was fetched before the page has asked the API; what comes later is not waited for."""
_numbers = count(1)


def report(what: str, value: float, unit: str, budget: float) -> None:
    mark = "" if value <= budget else "  OVER"
    sys.stdout.write(f"{what:62} {value:8.2f} {unit:5} (budget {budget:g}){mark}\n")
    sys.stdout.flush()


def p95(values: list[float]) -> float:
    return quantiles(values, n=20)[-1]


@contextmanager
def opened(browser: Browser, address: str, *, line: bool = False, processor: bool = False) -> Generator[Page]:
    """A tab of a fresh profile, on a slow line or processor where said."""
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    context.set_default_timeout(120_000)
    page = context.new_page()
    devtools = context.new_cdp_session(page)
    if line:
        devtools.send("Network.enable")
        devtools.send("Network.emulateNetworkConditions", SLOW_LINE)
    if processor:
        devtools.send("Emulation.setCPUThrottlingRate", SLOW_PROCESSOR)
    page.add_init_script(RECORDER)
    page.goto(address)
    yield page
    context.close()


def recorded(page: Page) -> dict[str, list[float]]:
    """The times between frames, and from key presses to the paint after them, in ms, since this was last called."""
    return page.evaluate("() => { const taken = recorded; recorded = {frames: [], keys: []}; return taken; }")


def type_keys(page: Page) -> None:
    """Type a sentence, ten keys a second, and empty the input again."""
    message = page.get_by_test_id("composer-input")
    message.press_sequentially(KEYS, delay=100)
    message.fill("")


def stop_of(page: Page) -> Locator:
    """The button that is there while an answer comes. To look for its name or role would cost the page frames."""
    return page.get_by_test_id("stop")


def send(page: Page, answer: Answer) -> None:
    page.get_by_test_id("composer-input").fill(str(answer))
    page.get_by_test_id("send").click()


def ask(page: Page, answer: Answer) -> None:
    send(page, answer)
    stop_of(page).wait_for()


def wait_until_idle(page: Page) -> None:
    stop_of(page).wait_for(state="hidden")


def files(browser: Browser, address: str) -> None:
    with opened(browser, address) as page:
        page.wait_for_function(USABLE)
        sizes: list[int] = page.evaluate(FILES)
    report("files before it is interactive, gzip", sum(sizes) / 1000, "kB", 90)
    report("files before it is interactive", len(sizes), "", 8)


def interactive(browser: Browser, address: str, rounds: int) -> None:
    times: list[float] = []
    for _ in range(rounds):
        with opened(browser, address, line=True, processor=True) as page:
            page.wait_for_function(USABLE)
            times.append(page.evaluate(LAST_ANSWER_MS) / 1000)
    report("interactive at 1.6 Mbit/s, 150 ms, a quarter of the processor", median(times), "s", 1.2)


def streaming(browser: Browser, address: str, tokens: int) -> None:
    with opened(browser, address, processor=True) as page:
        page.wait_for_function(USABLE)
        ask(page, answer(tokens))
        recorded(page)
        while stop_of(page).is_visible():
            type_keys(page)
        taken = recorded(page)
    report("frames at 200 tokens/s, a quarter of the processor, p95", p95(taken["frames"]), "ms", 45)
    report("key press to paint at 200 tokens/s, a quarter, p95", p95(taken["keys"]), "ms", 100)


def long_conversation(browser: Browser, address: str) -> None:
    with opened(browser, f"{address}/#/s/long") as page:
        page.get_by_text(f"assistant {LONG_TURNS - 1}:").wait_for()
        report("a conversation of 3,000 messages: shown", page.evaluate("performance.now()") / 1000, "s", 1.0)
        page.wait_for_function(USABLE)
        recorded(page)
        type_keys(page)
        report("key press to paint in it, p95", p95(recorded(page)["keys"]), "ms", 50)
        load_all(page)
        recorded(page)
        type_keys(page)
        report("key press to paint with all loaded, p95", p95(recorded(page)["keys"]), "ms", 80)


def load_all(page: Page) -> None:
    """Show earlier messages until there are no more."""
    earlier = page.get_by_test_id("older")
    page.mouse.move(600, 400)
    while earlier.is_visible():
        page.mouse.wheel(0, -1_000_000)
        earlier.dispatch_event("click")  # while messages are added a button never stands still, as a click needs
        page.wait_for_timeout(50)
    page.get_by_text("user 0:").wait_for(state="attached")


def engine_share(browser: Browser, engines: Sequence[Relay], tokens: int, rounds: int) -> None:
    """The processor time of an engine whose turn the page follows, of one whose turn `curl -N` reads at the same time.

    The same work takes a processor longer beside a browser, so both engines work beside it; then they change places.
    """
    shares: list[float] = []
    for _ in range(rounds):
        with_page = alone = 0.0
        for followed, read in (engines, engines[::-1]):
            with opened(browser, address_of(followed)) as page:
                page.wait_for_function(USABLE)
                send(page, answer(100))  # the page loads what it needs for an answer
                page.get_by_test_id("regenerate").wait_for()
                began = cpu_seconds(followed.process), cpu_seconds(read.process)
                body = json.dumps({"message": str(answer(tokens))})
                curl = ["curl", "-sN", f"{address_of(read)}/v1/chat", "--json", body]
                with subprocess.Popen(curl, stdout=subprocess.DEVNULL) as reader:
                    ask(page, answer(tokens))
                    wait_until_idle(page)
                if reader.returncode:
                    sys.exit(f"curl has failed: {reader.returncode}")
            with_page += cpu_seconds(followed.process) - began[0]
            alone += cpu_seconds(read.process) - began[1]
        shares.append(with_page / alone)
    report("the engine's processor, of a turn that `curl -N` reads", median(shares), "times", 1.1)


def address_of(engine: Relay) -> str:
    return f"http://127.0.0.1:{engine.port}"


def answer(tokens: int) -> Answer:
    return Answer(next(_numbers), tokens, 1000 / TOKENS_PER_SECOND, markdown=True)


async def write_long_session(path: Path) -> None:
    async with open_sqlite(path) as database:
        await database.write(lambda tx: write_session(tx, "long", "local", LONG_TURNS, each=LONG_TURNS))


def measure(folder: Path, options: Any) -> None:
    binary = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if binary is None:
        sys.exit("benchmarks.page needs Chromium: install it, or name its binary in CHROMIUM")
    asyncio.run(write_long_session(folder / "engine.sqlite3"))
    with ExitStack() as stack:
        model = stack.enter_context(provider())
        engine = stack.enter_context(callstream(model.port, folder, LLM_PROFILE="openai"))
        (folder / "other").mkdir()
        other = stack.enter_context(callstream(model.port, folder / "other", LLM_PROFILE="openai"))
        sys.stdout.write(describe(folder, engine.redis_url) + "\n")
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(
            executable_path=binary, args=["--no-sandbox", "--disable-background-networking", "--disable-gpu"]
        )
        stack.callback(browser.close)
        address = address_of(engine)
        files(browser, address)
        interactive(browser, address, options.rounds)
        streaming(browser, address, options.tokens)
        long_conversation(browser, address)
        engine_share(browser, [engine, other], options.tokens, options.rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=at_least(1), default=3)
    parser.add_argument("--tokens", type=at_least(100), default=3000)
    with tempfile.TemporaryDirectory(prefix="callstream-page-") as name:
        measure(Path(name), parser.parse_args())
