"""The logs of turns: live for who is attached, stored for all others, and never two stories of one turn."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from callstream_runtime.connections import command_client
from dialog_engine.chat.events import START, Cursor, Frame, LogGoneError
from dialog_engine.event_log.growing_log import Entry
from dialog_engine.event_log.stored_logs import LIFETIME_SECONDS, PAGE, LogStore
from dialog_engine.event_log.turn_log import LiveLog, LogTimes
from dialog_engine.event_log.turn_logs import KEEP_UNSTORED, RedisTurnLogs
from dialog_engine.model import Done, DoneReason, Reset, TextDelta, Turn, TurnEvent, TurnStarted, Usage
from plugins_contract.encryption import CLEAR
from plugins_contract.keys import Keys
from tests.integration.engines import at_work
from tests.marks import promise
from tests.support.servers import LocalServer
from tests.support.waiting import wait_until

TURN = Turn("turn", "session", "ann")
DONE = Done("turn", DoneReason.STOP, Usage(), None)


class NotedStore(LogStore):
    """Notes the logs that were polled at last, and how many were to be stored at last."""

    polled: frozenset[str] = frozenset()
    appended = 0

    async def read_many(self, places: Mapping[str, Cursor]) -> dict[str, list[Entry]]:
        self.polled = frozenset(places)
        return await super().read_many(places)

    async def append(self, logs: Sequence[LiveLog]) -> list[Cursor | Exception]:
        self.appended = len(logs)
        return await super().append(logs)


class Archive:
    """The logs of one engine, and a second engine's view of them."""

    def __init__(self, url: str, times: LogTimes = LogTimes()) -> None:
        self.redis: Any = command_client(url)
        self.keys = Keys()
        self.store = NotedStore(self.redis, self.keys, CLEAR)
        self.logs = RedisTurnLogs(self.store, times)
        self.elsewhere = RedisTurnLogs(self.store)

    async def aclose(self) -> None:
        await self.redis.aclose()

    async def stored(self, turn_id: str = "turn") -> list[str]:
        return [entry.decode() for entry, _ in await self.redis.xrange(self.keys.turn(turn_id))]

    async def reads(self) -> int:
        """How often a log was read that no other reader follows."""
        stats = await self.redis.info("commandstats")
        return stats.get("cmdstat_xrange", {"calls": 0})["calls"]


@pytest.fixture
async def archive(redis_url: str, request: pytest.FixtureRequest) -> AsyncGenerator[Archive]:
    times = getattr(request, "param", LogTimes())
    async with aclosing(Archive(redis_url, times)) as archive, at_work(archive.elsewhere.run):
        yield archive


async def read(logs: RedisTurnLogs, after: Cursor = START, turn_id: str = "turn") -> list[Frame]:
    async with asyncio.timeout(10), aclosing(logs.follow(turn_id, after)) as frames:
        return [frame async for batch in frames for frame in batch]


async def kept(logs: RedisTurnLogs, after: Cursor = START, turn_id: str = "turn") -> list[Frame]:
    async with asyncio.timeout(10), aclosing(logs.kept(turn_id, after)) as frames:
        return [frame async for batch in frames for frame in batch]


def text(frames: Iterable[Frame]) -> str:
    return "".join(json.loads(frame.data).get("delta", f"<{frame.name}>") for frame in frames)


def ids(frames: Iterable[Frame]) -> list[Cursor]:
    return [Cursor.parse(frame.id) for frame in frames]


async def stored(archive: Archive, *events: TurnEvent, turn: Turn = TURN) -> None:
    """Make a log of these events and of the end of the turn."""
    async with at_work(archive.logs.run):
        log = archive.logs.open(turn)
        for event in (*events, DONE):
            log.append(event)
        await log.close()


@promise("one id per entry, given after deltas are coalesced, and the first delta goes at once")
async def test_here_and_elsewhere_the_ids_are_the_same_and_after_each_comes_exactly_what_was_missed(
    archive: Archive,
) -> None:
    await stored(archive, TurnStarted("turn", "session"), TextDelta("It "), TextDelta("is "), TextDelta("noon."))
    story = await read(archive.logs)
    assert text(story) == "<control>It is noon.<done>"
    assert ids(story) == sorted(set(ids(story)))
    for logs in (archive.logs, archive.elsewhere):
        assert await kept(logs) == story
        assert await logs.newest("turn") == story[-1]
        for seen, frame in enumerate(story, 1):
            assert await read(logs, Cursor.parse(frame.id)) == story[seen:]
        with pytest.raises(LogGoneError):
            await kept(logs, turn_id="no-turn")
        assert await logs.newest("no-turn") is None


@promise("ids never go back: what died with an engine is a reset in the next epoch")
async def test_a_later_life_goes_on_after_what_is_stored_of_the_earlier_one(archive: Archive) -> None:
    async with at_work(archive.logs.run):
        log = archive.logs.open(TURN)
        log.append(TextDelta("cut"))
        await log.close()
    later = RedisTurnLogs(archive.store)
    async with at_work(later.run):
        log = later.open(Turn("turn", "session", "ann", epoch=2))
        log.append(Reset(""))
        log.append(TextDelta("whole"))
        assert text(await kept(later)) == "cut<reset>whole", "what is there, without waiting for more"
        log.append(DONE)
        await log.close()
        for logs in (later, archive.elsewhere):
            for reading in (read, kept):
                assert [frame.id for frame in await reading(logs)] == ["1-1", "2-1", "2-2", "2-3"]
                assert text(await reading(logs, Cursor(1, 1))) == "<reset>whole<done>"


async def test_a_log_of_more_pages_than_one_is_read_to_its_end(archive: Archive) -> None:
    await stored(archive, *(Reset(str(n)) for n in range(1200)))
    frames = await read(archive.elsewhere)
    assert len(frames) == 1201
    assert await kept(archive.logs) == frames
    assert ids(frames) == sorted(ids(frames))


@promise("the turn log is in Redis, fenced by epoch, and any replica serves it")
@pytest.mark.every_redis
async def test_a_stale_owner_cannot_write_into_a_log_that_was_taken_over(archive: Archive) -> None:
    stale, owner = RedisTurnLogs(archive.store), archive.logs
    async with at_work(stale.run, owner.run):
        old = stale.open(TURN)
        old.append(TextDelta("a"))
        await old.close()
        new = owner.open(Turn("turn", "session", "ann", epoch=2))
        new.append(TextDelta("b"))
        await new.close()
        old.append(TextDelta("from the past"))
        old.append(DONE)
        async with asyncio.timeout(10):
            await old.close()
        assert await archive.stored() == ["1-1", "2-1"]


@pytest.mark.every_redis
async def test_an_append_whose_reply_was_lost_is_stored_once(archive: Archive) -> None:
    log = archive.logs.open(TURN)
    for n in range(3):
        log.append(Reset(str(n)))
    for entry in log.to_store():
        await archive.redis.xadd(
            archive.keys.turn("turn"), {"event": entry.name, "data": entry.data}, id=f"1-{entry.seq}"
        )
    log.append(DONE)
    async with at_work(archive.logs.run):
        await log.close()
    assert await archive.stored() == ["1-1", "1-2", "1-3", "1-4"]


async def test_without_redis_local_clients_get_everything_and_the_log_catches_up(own_redis: LocalServer) -> None:
    own_redis.kill()
    async with aclosing(Archive(own_redis.url)) as archive, at_work(archive.logs.run, archive.elsewhere.run):
        log = archive.logs.open(TURN)
        log.append(TextDelta("Hello"))
        async with asyncio.timeout(10), aclosing(archive.logs.follow("turn")) as frames:
            assert text(await anext(frames)) == "Hello"
        with pytest.raises(LogGoneError):
            await kept(archive.elsewhere)
        waiting = asyncio.create_task(read(archive.elsewhere))
        log.append(DONE)
        assert text(await read(archive.logs)) == "Hello<done>"
        own_redis.start()
        await wait_until(archive.stored)
        assert text(await kept(archive.elsewhere)) == text(await waiting) == "Hello<done>"


@promise("a Redis that falls silent does not keep a turn's first words")
async def test_the_first_words_of_a_new_turn_do_not_wait_for_a_redis_that_hangs(archive: Archive) -> None:
    log = archive.logs.open(TURN)
    log.append(TextDelta("Hello"))
    await archive.redis.execute_command("CLIENT", "PAUSE", 1500)
    async with asyncio.timeout(1), aclosing(archive.logs.follow("turn")) as frames:
        assert text(await anext(frames)) == "Hello"
    await archive.redis.execute_command("CLIENT", "UNPAUSE")


async def test_a_log_that_cannot_be_stored_holds_up_no_other(archive: Archive) -> None:
    await archive.redis.set(archive.keys.turn("bad"), "somebody else's", ex=60)
    async with at_work(archive.logs.run):
        bad, good = archive.logs.open(Turn("bad", "session", "ann")), archive.logs.open(TURN)
        bad.append(TextDelta("a"))
        good.append(TextDelta("b"))
        good.append(DONE)
        async with asyncio.timeout(10):
            await good.close()
    assert await archive.stored() == ["1-1", "1-2"]


@promise("a log that Redis lost is stored again by its owner")
@pytest.mark.every_redis
async def test_a_log_that_redis_lost_is_stored_again_from_its_beginning_and_readers_elsewhere_miss_nothing(
    archive: Archive,
) -> None:
    async with at_work(archive.logs.run):
        log = archive.logs.open(TURN)
        log.append(TextDelta("a"))
        log.append(Reset(""))
        await wait_until(lambda: log.stored == 2)
        reader = asyncio.create_task(read(archive.elsewhere))
        await wait_until(lambda: archive.store.polled)
        await archive.redis.flushall()
        log.append(TextDelta("b"))
        await wait_until(lambda: log.stored == 3)
        assert await archive.stored() == ["1-1", "1-2", "1-3"]
        log.append(DONE)
        assert text(await reader) == "a<reset>b<done>"


@promise("a log that Redis lost is stored again by its owner")
@pytest.mark.parametrize("archive", [LogTimes(look=0.1)], indirect=True)
async def test_a_log_is_stored_again_without_new_events(archive: Archive) -> None:
    async with at_work(archive.logs.run):
        log = archive.logs.open(TURN)
        log.append(TextDelta("a"))
        await wait_until(archive.stored)
        await archive.redis.flushall()
        await wait_until(archive.stored, what="the log to be stored again")
        assert text(await kept(archive.elsewhere)) == "a"
        await archive.redis.expire(archive.keys.turn("turn"), 100)

        async def lives_for_a_day() -> bool:
            return LIFETIME_SECONDS - 5 <= await archive.redis.ttl(archive.keys.turn("turn")) <= LIFETIME_SECONDS

        await wait_until(lives_for_a_day)
        log.append(DONE)
        await log.close()


async def test_a_reader_that_would_miss_an_entry_gets_an_error(archive: Archive) -> None:
    await stored(archive, TextDelta("a"), Reset(""), TextDelta("b"))
    await archive.redis.xdel(archive.keys.turn("turn"), "1-2")
    for follow in (read, kept):
        with pytest.raises(LogGoneError):
            await follow(archive.elsewhere)
        assert text(await follow(archive.elsewhere, Cursor(1, 2))) == "b<done>"


@promise("ids never go back: what died with an engine is a reset in the next epoch")
async def test_a_reader_ahead_of_a_dead_engines_log_waits_for_the_next_epoch(archive: Archive) -> None:
    """Nothing that it gets has an id below one that it has seen, wherever it asks."""
    async with at_work(archive.logs.run):
        log = archive.logs.open(TURN)
        log.append(Reset("1"))
        await wait_until(archive.stored)
    readers = [asyncio.create_task(read(archive.elsewhere, Cursor(1, seq))) for seq in (39, 1, 38)]
    await wait_until(lambda: archive.store.polled)
    adopter = RedisTurnLogs(archive.store)
    async with at_work(adopter.run):
        log = adopter.open(Turn("turn", "session", "ann", epoch=2))
        log.append(Reset("2"))
        log.append(DONE)
        await log.close()
        for reader in readers:
            assert [frame.id for frame in await reader] == ["2-1", "2-2"]
        assert [frame.id for frame in await read(adopter, Cursor(1, 39))] == ["2-1", "2-2"]


async def test_a_later_owner_knows_whether_the_turn_has_ended_for_its_readers(archive: Archive) -> None:
    later = Turn("turn", "session", "ann", epoch=2)
    async with at_work(archive.logs.run):
        log = archive.logs.open(TURN)
        log.append(Reset("1"))
        await wait_until(archive.stored)
        assert not await archive.elsewhere.has_ended(later)
        log.append(DONE)
        await log.close()
        assert await archive.elsewhere.has_ended(later)
        assert not await archive.elsewhere.has_ended(TURN)


async def test_a_reader_beyond_the_end_of_an_ended_log_gets_nothing(archive: Archive) -> None:
    await stored(archive)
    for logs in (archive.logs, archive.elsewhere):
        for place in (Cursor(1, 1), Cursor(1, 99), Cursor(7, 1)):
            assert await read(logs, place) == await kept(logs, place) == []


async def test_elsewhere_a_reader_who_needs_what_redis_lost_and_got_back_asks_again_and_misses_nothing(
    archive: Archive,
) -> None:
    log = archive.logs.open(TURN)
    for n in range(10):
        log.append(Reset(str(n)))
    async with at_work(archive.logs.run):
        await wait_until(lambda: log.stored == 10)
    first = asyncio.create_task(read(archive.elsewhere, Cursor(1, 8)))
    await wait_until(lambda: archive.store.polled)
    await archive.redis.delete(archive.keys.turn("turn"))
    assert await read(archive.elsewhere, Cursor(1, 3)) == []
    async with at_work(archive.logs.run):
        log.append(DONE)
        frames = await wait_until(lambda: read(archive.elsewhere, Cursor(1, 3)))
        assert ids(frames) == [Cursor(1, number) for number in range(4, 12)]
        assert ids(await first) == [Cursor(1, number) for number in range(9, 12)]


async def test_elsewhere_one_reader_may_be_ahead_of_what_is_stored_and_another_behind_it(archive: Archive) -> None:
    log = archive.logs.open(TURN)
    log.append(Reset("1"))
    async with at_work(archive.logs.run):
        await wait_until(archive.stored)
    for n in (2, 3):
        log.append(Reset(str(n)))
    ahead = asyncio.create_task(read(archive.elsewhere, Cursor(1, 3)))
    await wait_until(lambda: archive.store.polled)
    behind = asyncio.create_task(read(archive.elsewhere))
    async with at_work(archive.logs.run):
        log.append(DONE)
        assert ids(await ahead) == [Cursor(1, 4)]
        assert ids(await behind) == [Cursor(1, number) for number in range(1, 5)]


async def test_a_lost_earlier_epoch_is_no_gap(archive: Archive) -> None:
    await stored(archive, Reset("first"), Reset("first"))
    await archive.redis.xdel(archive.keys.turn("turn"), "1-2")
    await stored(archive, turn=Turn("turn", "session", "ann", epoch=2))
    for follow in (read, kept):
        assert ids(await follow(archive.logs, Cursor(1, 1))) == [Cursor(2, 1)]


async def test_of_earlier_epochs_that_cannot_be_read_all_or_nothing_is_left_out(
    own_redis: LocalServer,
) -> None:
    async with aclosing(Archive(own_redis.url)) as archive:
        await stored(archive, *[Reset("first")] * PAGE)
        await stored(archive, Reset("second"), turn=Turn("turn", "session", "ann", epoch=2))
        async with aclosing(archive.logs.follow("turn")) as follows, aclosing(archive.logs.kept("turn")) as keeps:
            for batches in (follows, keeps):
                assert ids(await anext(batches))[-1] == Cursor(1, PAGE)
            own_redis.kill()
            for batches in (follows, keeps):
                with pytest.raises(LogGoneError):
                    await anext(batches)
        for read_all in (read, kept):
            assert ids(await read_all(archive.logs)) == [Cursor(2, 1), Cursor(2, 2)]


@promise("the turn log is in Redis, fenced by epoch, and any replica serves it")
async def test_however_many_follow_logs_that_grow_elsewhere_each_is_read_once(archive: Archive) -> None:
    async with at_work(archive.logs.run):
        logs = [archive.logs.open(Turn(f"turn-{n}", "session", "ann")) for n in range(10)]
        for log in logs:
            log.append(TextDelta("a"))
        readers = [asyncio.create_task(read(archive.elsewhere, Cursor(1, n % 2), f"turn-{n % 10}")) for n in range(100)]
        await wait_until(lambda: len(archive.store.polled) == 10)
        await wait_until(lambda: all(log.stored == 1 for log in logs))
        before = await archive.reads()
        for log in logs:
            log.append(TextDelta("b"))
            log.append(DONE)
        heard = [text(await reader) for reader in readers]
        assert await archive.reads() - before <= 10
    assert heard == ["b<done>" if n % 2 else "ab<done>" for n in range(100)]
    other = asyncio.create_task(read(archive.elsewhere, Cursor(9, 9), "other"))
    await wait_until(lambda: archive.store.polled == frozenset({"other"}), what="the end of all others")
    other.cancel()
    await asyncio.wait([other])


@pytest.mark.parametrize("archive", [LogTimes(keep=0.2)], indirect=True)
async def test_an_ended_log_stays_in_memory_for_a_bounded_time(archive: Archive) -> None:
    log = archive.logs.open(TURN)
    log.append(DONE)
    assert text(await read(archive.logs)) == "<done>"
    assert await archive.logs.newest("turn")

    async def is_gone() -> bool:
        return await archive.logs.newest("turn") is None

    await wait_until(is_gone)


async def test_a_long_outage_does_not_fill_the_memory(own_redis: LocalServer) -> None:
    own_redis.kill()
    async with aclosing(Archive(own_redis.url)) as archive:
        running = archive.logs.open(TURN)
        running.append(TextDelta("a"))
        ended = [archive.logs.open(Turn(f"turn-{n}", "session", "ann")) for n in range(KEEP_UNSTORED + 10)]
        for log in ended:
            log.append(DONE)
        async with at_work(archive.logs.run):
            await wait_until(lambda: archive.store.appended == KEEP_UNSTORED + 1)
            own_redis.start()
            await wait_until(lambda: archive.stored(ended[-1].turn.turn_id))
            await wait_until(archive.stored)
        assert await archive.stored("turn-0") == []


async def test_a_shutdown_releases_readers_after_the_last_entry(archive: Archive) -> None:
    async with at_work(archive.logs.run):
        log = archive.logs.open(TURN)
        log.append(TextDelta("a"))
        await wait_until(archive.stored)
        here, elsewhere = (asyncio.create_task(read(logs)) for logs in (archive.logs, archive.elsewhere))
        await wait_until(lambda: archive.store.polled)
        log.append(TextDelta("b"))
        archive.logs.release_readers()
        assert text(await here) == text(await read(archive.logs)) == "ab"
        await wait_until(lambda: log.stored == 2)
        archive.elsewhere.release_readers()
        assert "ab".startswith(text(await elsewhere))
