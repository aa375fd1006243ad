"""Long sessions: whoever reads one reads a page of it, or one turn, or one call."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from dialog_engine.chat.history import Memory
from dialog_engine.errors import StorageUnavailableError, TurnNotFoundError
from dialog_engine.model import ToolMessage, UserMessage
from dialog_engine.operators import split_media
from dialog_engine.storage import media
from dialog_engine.storage.results import NAMED
from dialog_engine.storage.sqlite_file import open_sqlite
from dialog_engine.storage.store import SealedTransaction
from plugins_contract.encryption import CLEAR
from tests.integration.engines import Engine, Model, running_engine, settings
from tests.support.engine_stores import EngineStore, OpenDatabase
from tests.support.long_sessions import CountedReads, write_session

TURNS = 1_000
IMAGE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20_000)).decode()
MEMORY = Memory(40, 1_000_000)


@pytest.fixture
async def store(open_database: OpenDatabase) -> AsyncGenerator[EngineStore]:
    """A store with a session of 2,000 messages and 200 images, of which everything that is read is counted."""
    async with open_database() as database:
        await database.write(lambda tx: write_session(tx, "long", "ann", TURNS, image=IMAGE))
        yield EngineStore(CountedReads(database))


def read_of(store: EngineStore) -> int:
    assert isinstance(store.database, CountedReads)
    count, store.database.read_bytes = store.database.read_bytes, 0
    return count


async def test_of_a_long_session_only_what_is_needed_is_read(store: EngineStore) -> None:
    newest = f"long-{TURNS - 5:06}"
    said, left_out = await store.said("long", MEMORY)
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


async def test_the_turns_of_a_page_are_found_from_either_end(store: EngineStore) -> None:
    ids = [f"long-{number:06}" for number in range(TURNS)]
    walk = store.conversations
    assert await walk.forth(ids[-1], "", 20) == ids[:20]
    assert await walk.forth(ids[-1], ids[500], 20) == ids[500:520]
    assert await walk.forth(ids[-1], ids[-2], 20) == ids[-2:]
    assert await walk.forth(ids[500], ids[501], 20) == [], "it is not on this path"
    assert await walk.back(ids[-1], 20) == ids[:-21:-1]
    assert await walk.back(ids[3], 20) == ids[3::-1]
    assert await walk.back("", 20) == await walk.forth("", "", 20) == []
    assert read_of(store) < 3_000


async def test_what_is_read_at_once_is_bounded_in_bytes_too_and_a_turn_is_sent_whole(store: EngineStore) -> None:
    await store.database.write(lambda tx: write_session(tx, "large", "ann", 30, text="x" * 300_000))

    page = await store.archive.page("large", await store.leaf("large"), before=None, limit=50, size=1_000_000)
    assert len(page.messages) == 4
    assert page.more
    transcript = await store.archive.transcript("ann", "large", limit=50, before=page.messages[0].message_id)
    assert [message.role for message in transcript.page.messages] == ["user", "assistant"] * 2
    one = await store.archive.page("large", await store.leaf("large"), before=2, limit=50, size=1)
    assert (len(one.messages), one.more) == (1, False)

    said, left_out = await store.said("large", Memory(50, 500_000))
    assert (len(said), left_out) == (6, 54)
    assert (await store.said("large", Memory(1, 1)))[0] == said[-2:]


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


# --- Media of an earlier release ---


async def stored(store: EngineStore, sql: str) -> list[Any]:
    return await store.database.read(sql)


async def unsplit(store: EngineStore) -> int:
    """How many outcomes have media in them."""
    return sum(len(outcome) > 1_000 for (outcome,) in await stored(store, "SELECT outcome FROM tool_calls"))


async def test_media_are_split_when_they_are_read_and_the_model_is_sent_the_same(store: EngineStore) -> None:
    before, _ = await store.said("long", MEMORY)
    assert sum(len(each.media) for each in before if isinstance(each, ToolMessage)) == 3
    assert await unsplit(store) == TURNS // 5 - 4
    read_of(store)

    assert (await store.said("long", MEMORY))[0] == before
    assert read_of(store) < 4 * len(IMAGE) + 50_000
    assert await stored(store, "SELECT DISTINCT data FROM media") == [(IMAGE.encode(),)]
    await store.said("long", Memory(2, 1_000_000))
    assert read_of(store) < 50_000, "no image of a message that is not sent is read"


async def test_large_media_are_read_one_at_a_time(store: EngineStore) -> None:
    large = "A" * 400_000
    await store.database.write(lambda tx: write_session(tx, "large", "ann", 50, image=large))
    assert isinstance(store.database, CountedReads)
    await store.archive.transcript("ann", "large", limit=100)
    assert store.database.largest_read < len(large)
    assert await stored(store, "SELECT count(*) FROM media") == [(10,)]
    block = await store.archive.media("ann", "large-000005", "call-of-large-000005", 1)
    assert block is not None
    assert (block.data, block.size) == (large, 300_000)
    await store.database.write(lambda tx: write_session(tx, "direct", "ann", 1, image=large))
    for _ in range(2):  # the first one splits it
        block = await store.archive.media("ann", "direct-000000", "call-of-direct-000000", 1)
        assert block is not None
        assert block.data == large
        assert await stored(store, "SELECT count(*) FROM media") == [(11,)]
    with pytest.raises(TurnNotFoundError):
        await store.archive.media("bob", "large-000005", "call-of-large-000005", 1)


async def test_a_result_is_split_wholly_or_not_at_all_and_the_command_goes_on_where_it_was(
    store: EngineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    page_bytes = 10 * len(IMAGE)
    keep, kept = media.keep_media, list[str]()

    def failing(tx: SealedTransaction, correlation_id: str, parts: media.Parts) -> None:
        if len(kept) == 25:
            raise StorageUnavailableError("killed")
        kept.append(correlation_id)
        keep(tx, correlation_id, parts)

    with monkeypatch.context() as patch:
        patch.setattr(media, "keep_media", failing)
        with pytest.raises(StorageUnavailableError):
            await split_media.split_media(store.database, CLEAR, page_bytes)
    assert await stored(store, "SELECT count(*) FROM media") == [(20,)]
    assert await unsplit(store) == TURNS // 5 - 20

    looked_at = list[str]()

    def noted(tx: SealedTransaction, correlation_id: str) -> bool:
        looked_at.append(correlation_id)
        return media.split_stored(tx, correlation_id)

    monkeypatch.setattr(split_media, "split_stored", noted)
    assert await split_media.split_media(store.database, CLEAR) == TURNS // 5 - 20
    assert len(looked_at) == TURNS // 5 - 20, "it goes on where it was"
    assert await unsplit(store) == 0
    assert await split_media.split_media(store.database, CLEAR) == 0


async def test_engines_and_the_command_split_at_the_same_time(store: EngineStore) -> None:
    other = EngineStore(store.database, "another engine")
    reads = [each.archive.transcript("ann", "long", limit=200) for each in (store, other) for _ in range(3)]
    count, _ = await asyncio.gather(split_media.split_media(store.database, CLEAR), asyncio.gather(*reads))
    assert count <= TURNS // 5
    assert await unsplit(store) == 0
    assert await stored(store, "SELECT count(*) FROM media") == [(TURNS // 5,)]


async def test_a_session_that_is_erased_while_it_is_split_leaves_no_media(store: EngineStore) -> None:
    for number in range(5):
        session = f"gone-{number}"
        await store.database.write(lambda tx, s=session: write_session(tx, s, "ann", 20, image=IMAGE))
        if number % 2:
            await store.archive.transcript("ann", session, limit=9)
        await asyncio.gather(
            store.archive.transcript("ann", session, limit=200),
            store.erasures.delete("ann", session),
            split_media.split_media(store.database, CLEAR),
            return_exceptions=True,
        )
        assert await stored(store, "SELECT count(*) FROM media WHERE correlation_id LIKE 'call-of-gone%'") == [(0,)]


async def test_the_index_of_short_ids_is_used(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "engine.sqlite3") as database:
        plan = await database.read(f"EXPLAIN QUERY PLAN {NAMED}", "session", "ann", "turn", "x" * 8, "x" * 8)
    assert any("tool_calls_by_short_id" in str(row) for row in plan)


# --- Over HTTP ---


async def test_a_turn_in_a_long_session_is_sent_its_images_and_keeps_no_loop(
    request: pytest.FixtureRequest, open_database: OpenDatabase, tmp_path: Path, redis_url: str, model: Model
) -> None:
    """The fixture `short_turns` measures the loop, which 16,000 messages at once would hold for 0.15 s."""
    async with open_database() as database:
        await database.write(lambda tx: write_session(tx, "long", "local", 8 * TURNS, image=IMAGE[:400]))
    changes: dict[str, Any] = {"history_max_messages": 41, "llm_profile": "openai"}
    if "postgres" in request.node.name:
        changes["database_url"] = request.getfixturevalue("postgres_url")
    async with running_engine(settings(tmp_path, redis_url, model.url, **changes)) as engine:
        for _ in range(2):  # the second one with media that the first has split
            assert (await engine.chat(sessionId="long"))[-1].data["reason"] == "stop"
    assert [json.dumps(each).count(IMAGE[:100]) for each in model.asked] == [3, 3]


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
    assert [each["data"] for each in line["media"]] == [IMAGE] * 30
    [shown] = line["messages"][-9]["toolCalls"][0]["result"]["media"]
    assert shown["url"] == line["media"][-1]["url"]
    assert (await engine.client.get(shown["url"])).content == base64.b64decode(IMAGE)
