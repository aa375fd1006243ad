"""The list of sessions page by page, at engines with either database."""

import re
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from dialog_engine.storage.database import Transaction
from tests.integration.engines import Engine, Start
from tests.marks import promise
from tests.support.engine_stores import DIALECTS, opener

MADE = 200
MOMENT_MS = 1_700_000_000_123
MOMENT = "2023-11-14T22:13:20.123Z"


@pytest.fixture(params=DIALECTS)
async def engine(start: Start, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Engine]:
    """An engine with sessions of one millisecond, and one that is a millisecond older."""

    def made(tx: Transaction) -> None:
        insert = "INSERT INTO sessions (session_id, subject, title, created_at, updated_at) VALUES ($1, $2, '', $3, $3)"
        tx.execute_many(insert, [(f"session-{n}", "local", MOMENT_MS - (n == MADE)) for n in range(MADE + 1)])

    async with opener(request.param, tmp_path / "engine.sqlite3", request)() as database:
        await database.write(made)
    changes = {"database_url": request.getfixturevalue("postgres_url")} if request.param == "postgres" else {}
    async with start(**changes) as engine:
        yield engine


async def pages(engine: Engine, limit: int) -> list[list[str]]:
    """The ids of each page, followed by its cursor to the last one."""
    found: list[list[str]] = []
    before: dict[str, str] = {}
    while True:
        answer = (await engine.client.get("/v1/sessions", params={"limit": limit} | before)).json()
        found.append([session["sessionId"] for session in answer["sessions"]])
        if answer["nextCursor"] is None:
            return found
        before = {"before": answer["nextCursor"]}


@promise("the list of sessions has every session once, page by page, however many changed in the same millisecond")
async def test_sessions_of_one_millisecond_are_all_listed_once_page_by_page(engine: Engine) -> None:
    for limit, last in ((7, 201 % 7), (67, 67)):
        found = await pages(engine, limit)
        assert [len(page) for page in found[:-1]] == [limit] * (len(found) - 1)
        assert len(found[-1]) == last
        listed = [session for page in found for session in page]
        assert sorted(listed) == sorted(f"session-{n}" for n in range(MADE + 1))
        assert listed[-1] == f"session-{MADE}", "the oldest is the last"


@promise("the list of sessions has every session once, page by page, however many changed in the same millisecond")
async def test_a_time_lists_what_changed_before_it_and_anything_else_is_refused(engine: Engine) -> None:
    for moment, listed in ((MOMENT, 1), (str(MOMENT_MS), 1), ("2023-11-14T22:13:20.124+00:00", 200)):
        answer = await engine.client.get("/v1/sessions", params={"before": moment, "limit": 200})
        assert len(answer.json()["sessions"]) == listed, moment
    [*_, cursor] = re.findall(r'"nextCursor":"([^"]+)"', (await engine.client.get("/v1/sessions?limit=1")).text)
    for wrong in ("yesterday", "", "x" + cursor, "2023-11-14T22:13:20"):
        answer = await engine.client.get("/v1/sessions", params={"before": wrong})
        assert answer.status_code == 422, wrong
        [error] = answer.json()["errors"]
        assert error["field"] == "before"
        assert "nextCursor" in error["message"]
