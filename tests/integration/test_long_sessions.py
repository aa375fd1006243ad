"""Long sessions: whoever reads one reads a page of it, or one turn, or one call."""

import base64
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from dialog_engine.chat.conversation import Memory, newest_said
from dialog_engine.model import UserMessage
from tests.integration.engines import Engine, Model, running_engine, settings
from tests.support.engine_stores import DIALECTS, EngineStore, OpenDatabase, opener
from tests.support.long_sessions import CountedReads, write_session

pytestmark = pytest.mark.anyio

TURNS = 2_500
IMAGE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20_000)).decode()
MEMORY = Memory(40, 1_000_000)


@pytest.fixture(params=DIALECTS)
def open_database(request: pytest.FixtureRequest, tmp_path: Path) -> OpenDatabase:
    return opener(request.param, tmp_path / "engine.sqlite3", request)


@pytest.fixture
async def store(open_database: OpenDatabase) -> AsyncGenerator[EngineStore]:
    """A store with a session of 5,000 messages and 500 images, of which everything that is read is counted."""
    async with open_database() as database:
        await database.write(lambda tx: write_session(tx, "long", "ann", TURNS, image=IMAGE))
        yield EngineStore(CountedReads(database))


def read_of(store: EngineStore) -> int:
    assert isinstance(store.database, CountedReads)
    count, store.database.read_bytes = store.database.read_bytes, 0
    return count


async def test_of_a_long_session_only_what_is_needed_is_read(store: EngineStore) -> None:
    newest = f"long-{TURNS - 5:06}"
    said, left_out = await newest_said(store.archive, "long", MEMORY)
    assert sum(isinstance(each, UserMessage) for each in said) == 18
    assert left_out == 2 * TURNS - 36
    assert read_of(store) < 150_000

    assert len(await store.archive.turn_messages(newest)) == 2
    assert read_of(store) < 30_000
    assert await store.archive.asked(newest, f"call-of-{newest}") == []
    assert read_of(store) < 1_000
    transcript = await store.archive.transcript("ann", "long", limit=20)
    assert (len(transcript.page.messages), len(transcript.turns)) == (20, 10)
    assert read_of(store) < 100_000


async def test_what_is_read_at_once_is_bounded_in_bytes_too_and_a_turn_is_sent_whole(store: EngineStore) -> None:
    await store.database.write(lambda tx: write_session(tx, "large", "ann", 30, text="x" * 300_000))

    page = await store.archive.page("large", before=None, limit=50, size=1_000_000)
    assert len(page.messages) == 4
    assert page.more
    transcript = await store.archive.transcript("ann", "large", limit=50, before=page.messages[0].message_id)
    assert [message.role for message in transcript.page.messages] == ["user", "assistant"] * 2
    one = await store.archive.page("large", before=2, limit=50, size=1)
    assert (len(one.messages), one.more) == (1, False)

    said, left_out = await newest_said(store.archive, "large", Memory(50, 500_000))
    assert (len(said), left_out) == (6, 54)
    assert (await newest_said(store.archive, "large", Memory(1, 1)))[0] == said[-2:]


async def test_pages_together_are_the_whole_session_in_both_directions(store: EngineStore) -> None:
    backwards, before = list[int](), None
    while True:
        page = (await store.archive.transcript("ann", "long", limit=199, before=before)).page
        assert page.messages[0].role == "user"
        backwards = [each.message_id for each in page.messages] + backwards
        if not page.more:
            break
        before = page.messages[0].message_id
    assert backwards == [*range(1, 2 * TURNS + 1)]

    forwards, after = list[int](), 0
    while messages := (await store.archive.transcript("ann", "long", limit=199, after=after)).page.messages:
        forwards += [each.message_id for each in messages]
        after = forwards[-1]
    assert forwards == backwards


# --- Over HTTP ---


@pytest.fixture
async def engine(
    request: pytest.FixtureRequest, open_database: OpenDatabase, tmp_path: Path, redis_url: str, model: Model
) -> AsyncGenerator[Engine]:
    async with open_database() as database:
        await database.write(lambda tx: write_session(tx, "long", "local", 150, image=IMAGE))
        await database.write(lambda tx: write_session(tx, "foreign", "bob", 1))
    url = request.getfixturevalue("postgres_url") if "postgres" in request.node.name else None
    changes = {"database_url": url} if url else {}
    async with running_engine(settings(tmp_path, redis_url, model.url, **changes)) as engine:
        yield engine


async def test_messages_are_paged_by_an_opaque_cursor(engine: Engine) -> None:
    url, pages, before = "/v1/sessions/long/messages", list[dict[str, Any]](), dict[str, str]()
    while not pages or pages[-1]["nextCursor"]:
        pages.append((await engine.client.get(url, params=before)).json())
        before = {"before": pages[-1]["nextCursor"] or ""}
    assert [len(page["messages"]) for page in pages] == [100, 100, 100]
    numbers = [each["messageId"] for page in reversed(pages) for each in page["messages"]]
    assert numbers == [*range(1, 301)]
    for page in pages:
        assert [each["turnId"] for each in page["turns"]] == [each["turnId"] for each in page["messages"][::2]]
    assert [len((await engine.client.get(f"{url}?limit={n}")).json()["messages"]) for n in (1, 3, 200)] == [1, 2, 200]

    foreign = await engine.client.get("/v1/sessions/foreign/messages", params={"before": pages[0]["nextCursor"]})
    assert foreign.status_code == 404
    for name, value in [("limit", "0"), ("limit", "201"), ("before", ""), ("before", "1"), ("before", "x" * 5_000)]:
        refused = await engine.client.get(url, params={name: value})
        assert (refused.status_code, [each["field"] for each in refused.json()["errors"]]) == (422, [name])


async def test_an_export_has_all_of_a_session_in_one_line(engine: Engine) -> None:
    lines = (await engine.client.get("/v1/me/data")).text.splitlines()
    assert len(lines) == 1

    line = json.loads(lines[0])
    assert [each["messageId"] for each in line["messages"]] == [*range(1, 301)]
    assert len(line["turns"]) == 150
