"""The name server fails, and Redis is gone with its name: text still streams, and metrics are served."""

import sys
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from statistics import quantiles

import httpx2
import pytest

from tests.chaos.model import Order
from tests.marks import exhaustive
from tests.support.name_server import NameServer, asking_it, missing
from tests.support.processes import Process
from tests.support.stack import ENGINE, START_SECONDS, Stack
from tests.support.waiting import wait_until_blocking

pytestmark = [
    exhaustive("needs a name server and real processes"),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

TEXT = str(Order(words=10, word_ms=5))
AT_ONCE = 6
LONG_SECONDS = 14.0
"""Longer than the HTTP client remembers an address, which is 10 seconds."""
SLACK_SECONDS = 0.1
"""A neighbour on the machine may take so long; a lookup that is waited for takes three seconds or more."""


@pytest.fixture
def names() -> Generator[NameServer]:
    server = NameServer()
    yield server
    server.close()


@pytest.fixture
def stack(tmp_path: Path, names: NameServer) -> Generator[Stack]:
    stack = Stack(tmp_path)
    stack.engine_env = {
        "REDIS_URL": stack.redis.url.replace("127.0.0.1", "redis.test"),
        "OPENAI_BASE_URL": f"http://model.test:{stack.model_port}/v1",
    }
    try:
        stack.redis.start()
        model = [sys.executable, "-m", "tests.chaos.model", str(stack.model_port), str(tmp_path / "notes")]
        stack.parts.append(Process(model))
        stack.engine = stack.run_engine(stack.engine_port, "engine", asking_it(tmp_path, ENGINE))
        wait_until_blocking(lambda: redis_is(stack) == "ok", START_SECONDS)
        yield stack
    finally:
        stack.close()


def redis_is(stack: Stack) -> str:
    return str(stack.http.get("/readyz").json()["parts"]["redis"])


def first_tokens(stack: Stack, seconds: float) -> float:
    """The p95 of the time to the first token of text-only chats, in seconds. Each makes a connection to the model."""
    ends_at = time.monotonic() + seconds

    def chats(_: int) -> list[float]:
        took = list[float]()
        while (begun := time.monotonic()) < ends_at:
            with stack.asking(TEXT) as events:
                first = next(event for event in events if event.name in ("text", "error"))
                took.append(time.monotonic() - begun)
                assert first.name == "text", first
                assert [event.name for event in events][-1] == "done"
        return took

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return quantiles(chain.from_iterable(pool.map(chats, range(AT_ONCE))), n=20)[-1]


@pytest.mark.parametrize("mode", ["refuses", "silent", "late"])
def test_text_streams_and_metrics_are_served_while_no_name_is_looked_up(
    stack: Stack, names: NameServer, mode: str
) -> None:
    first_tokens(stack, 1)
    before = first_tokens(stack, 3)
    assert {"redis.test", "model.test"} <= names.asked

    names.mode = mode
    stack.redis.kill()
    wait_until_blocking(lambda: redis_is(stack) == "unavailable", 20)
    away = first_tokens(stack, LONG_SECONDS)
    begun = time.monotonic()
    scraped = httpx2.get(f"{stack.url}/metrics", timeout=10)
    took = time.monotonic() - begun

    print(f"{mode}: first token p95 {before * 1000:.1f} ms before, {away * 1000:.1f} ms; scrape {took * 1000:.0f} ms")
    assert away <= 1.2 * before + SLACK_SECONDS
    assert scraped.status_code == 200
    assert took <= 1
    assert stack.engine is not None
    assert "never retrieved" not in stack.engine.output()

    names.mode = "answers"
    stack.redis.start()
    wait_until_blocking(lambda: redis_is(stack) == "ok", 20)
