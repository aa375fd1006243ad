"""Markdown that would become far more than it is: it takes bounded time and space, and is shown as text beyond."""

import asyncio
import threading
import time
from collections.abc import Sequence

import httpx2
import pytest
from fastapi import FastAPI, Request, Response

from dialog_engine.errors import LimitExceededError
from dialog_engine.http import markdown
from dialog_engine.http.guards import current_subject
from dialog_engine.http.markdown import (
    MAX_CHARACTERS,
    MAX_HTML,
    MAX_REQUESTS,
    RENDERS,
    markdown_router,
    render,
    render_all,
)
from tests.marks import promise
from tests.support.waiting import wait_until

TABLE = "|" + "a|" * 250 + "\n|" + "-|" * 250 + "\n" + "|\n" * 250 + "\n"
ATTACKS = {
    "tables that are filled up": TABLE * 12,
    "a table of many cells": "|a|b|\n|-|-|\n" + ("|" * 40 + "\n") * 9_000,
    "heads of tables": "a\n|-|\n" * 60_000,
    "a long address that is referred to": "[1]: http://x/" + "y" * 20_000 + "\n\n" + "[1] " * 90_000,
    "emphasis": "*a **a " * 55_000,
    "brackets": "[" * MAX_CHARACTERS,
    "lines": "a\n" * 200_000,
    "quotes": "> " * 200_000,
}


@promise("Markdown is rendered within a budget")
@pytest.mark.parametrize("name", ATTACKS)
def test_what_becomes_more_than_its_budget_is_shown_as_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "RENDER_SECONDS", 0.3)
    text = ATTACKS[name][:MAX_CHARACTERS]
    began = time.thread_time()
    html = render(text)
    assert time.thread_time() - began < 1.5
    assert len(html) < MAX_HTML


def test_the_reported_tables_grow_hardly_at_all() -> None:
    assert len(render(TABLE * 12)) < 3 * len(TABLE * 12)


def test_all_texts_of_a_request_share_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "MAX_HTML", 2_000)
    texts = ["*a* <b>"] * 100
    first, *_, last = render_all(texts)
    assert first == "<p><em>a</em> &lt;b&gt;</p>\n"
    assert last == "<pre>*a* &lt;b&gt;</pre>"


def test_an_ordinary_table_and_an_ordinary_long_text_are_rendered() -> None:
    table = "|a|b|c|\n|-|-|-|\n" + "|1|2|3|\n" * 1_000
    assert render(table).count("<td>") == 3_000
    assert render("Some *text* with `code` and [a](http://x.y) link.\n\n" * 1_000).count("<em>") == 1_000


def _subject_of(request: Request) -> str:
    return request.headers["subject"]


@promise("Markdown is rendered within a budget")
@pytest.mark.anyio
async def test_a_few_requests_are_rendered_at_once_one_of_each_subject_and_others_are_answered_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on, rendering, most = threading.Event(), list[str](), 0

    def slow(texts: Sequence[str]) -> list[str]:
        nonlocal most
        rendering.append(texts[0])
        most = max(most, len(rendering))
        assert go_on.wait(10)
        rendering.remove(texts[0])
        return [*texts]

    monkeypatch.setattr(markdown, "render_all", slow)
    app = FastAPI()
    app.include_router(markdown_router())
    app.add_api_route("/healthz", lambda: "ok")
    app.add_exception_handler(LimitExceededError, lambda _, error: Response(str(error), 429))
    app.dependency_overrides[current_subject] = _subject_of
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://x") as client:

        async def ask(subject: str) -> httpx2.Response:
            return await client.post("/ui/markdown", json={"texts": [subject]}, headers={"subject": subject})

        requests = [asyncio.create_task(ask("greedy")) for _ in range(MAX_REQUESTS)]
        await wait_until(lambda: rendering == ["greedy"])
        refused = await ask("greedy")
        assert refused.status_code == 429
        assert str(MAX_REQUESTS) in refused.text
        requests += [asyncio.create_task(ask("neighbour")), asyncio.create_task(ask("another"))]
        await wait_until(lambda: len(rendering) == RENDERS)
        assert rendering.count("greedy") == 1
        assert (await client.get("/healthz")).status_code == 200
        go_on.set()
        answers = [*await asyncio.gather(*requests), await ask("greedy")]
    assert [answer.status_code for answer in answers] == [200] * (MAX_REQUESTS + 3)
    assert most == RENDERS
