"""The leases of engines that share a database, adoption, and the fence of each turn: on both databases."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from dialog_engine.errors import TurnFencedError
from dialog_engine.model import ApprovalStatus, Turn
from dialog_engine.storage.engines import LONG_MS
from dialog_engine.tool_calls.values import Decision
from plugins_contract.messages import EVENT_TYPE, decode_request
from tests.marks import exhaustive, promise
from tests.support.beginnings import begin
from tests.support.engine_stores import LEASE_MS, OUTCOME, EngineStore, mailbox_of, requested, tool_call

APPROVED = Decision(status=ApprovalStatus.APPROVED, at=1)


async def taken_over(dead: EngineStore, by: EngineStore) -> Turn:
    """The only turn of an engine, adopted by another."""
    [adopted] = await by.engines.adopt(await by.seen(dead), 16)
    return adopted.turn


# --- Leases ---


async def test_an_engine_is_seen_by_the_others_and_renews_its_lease_on_the_clock_of_the_database(
    a: EngineStore, b: EngineStore
) -> None:
    seen = await b.seen(a)
    assert not seen.released
    [(left,)] = await a.database.read("SELECT lease_until - now_ms() FROM engines WHERE engine_id = 'a'")
    assert 0 < left <= LEASE_MS

    await a.engines.renew(2 * LEASE_MS)
    assert (await b.seen(a)).lease_until > seen.lease_until
    assert {each.engine_id for each in await a.engines.others()} == {"b"}


@promise("an engine that goes down in good order leaves its turns to the others at once")
async def test_a_released_lease_is_seen_by_others_and_by_the_next_start(a: EngineStore, b: EngineStore) -> None:
    await begin(a.turns, "ada", None, "Hi")
    await a.engines.release()
    seen = await b.seen(a)
    assert seen.released
    [adopted] = await b.engines.adopt(seen, 1)
    assert adopted.crashes == 0
    assert await a.engines.register(LEASE_MS)
    assert not await a.engines.register(LEASE_MS)


async def test_a_stop_is_requested_by_any_engine_and_found_by_the_owner(a: EngineStore, b: EngineStore) -> None:
    turn = await begin(a.turns, "ada", None, "Hi")
    assert await a.engines.stop_requests() == []

    assert await b.turns.request_stop(turn.turn_id) == "a"

    assert await a.engines.stop_requests() == [turn.turn_id]
    assert await b.engines.stop_requests() == []
    [owned] = await a.engines.renew(LEASE_MS)
    assert owned.stop_requested
    [adopted] = await b.engines.adopt(await b.seen(a), 16)
    assert adopted.stopped
    await b.end(adopted.turn)
    assert await a.turns.request_stop(turn.turn_id) is None
    assert await b.engines.renew(LEASE_MS) == []


# --- Adoption ---


async def test_only_the_turns_of_an_engine_whose_lease_is_as_it_was_seen_are_adopted(
    a: EngineStore, b: EngineStore
) -> None:
    turn = await begin(a.turns, "ada", None, "Hi", "trace")
    seen = await b.seen(a)
    await a.engines.renew(LEASE_MS + 1000)
    assert await b.engines.adopt(seen, 16) == []
    assert await b.engines.remove(seen) is None
    assert await a.engines.fenced([turn]) == []

    adopted = await taken_over(a, b)

    assert (adopted.turn_id, adopted.session_id, adopted.subject) == (turn.turn_id, turn.session_id, "ada")
    assert (adopted.epoch, adopted.traceparent) == (2, "trace")
    assert await a.engines.fenced([turn]) == [turn.turn_id]
    assert await b.engines.fenced([adopted]) == []
    assert await b.engines.fenced([turn]) == [turn.turn_id]  # its earlier epoch


async def test_a_deleted_turn_is_fenced(a: EngineStore) -> None:
    turn = await begin(a.turns, "ada", None, "Hi")
    assert await a.engines.fenced([turn, Turn("gone", "s", "ada")]) == ["gone"]
    assert len(await a.engines.fenced([Turn(str(n), "s", "ada") for n in range(1100)])) == 1100


async def test_no_more_turns_are_adopted_at_once_than_asked_for_and_the_oldest_first(
    a: EngineStore, b: EngineStore
) -> None:
    turns = [await begin(a.turns, "ada", None, f"Hi {n}") for n in range(7)]
    for n, turn in enumerate(turns):
        await a.change("UPDATE turns SET created_at = $1 WHERE turn_id = $2", n, turn.turn_id)
    seen, adopted = await b.seen(a), list[str]()

    while some := await b.engines.adopt(seen, 3):
        assert len(some) <= 3
        adopted += sorted((each.turn.turn_id for each in some), key=[turn.turn_id for turn in turns].index)
    assert adopted == [turn.turn_id for turn in turns]


@promise("a turn of a dead engine is adopted by exactly one other")
async def test_each_turn_is_adopted_by_exactly_one_of_several_engines_that_adopt_at_once(
    a: EngineStore, engines: Callable[[str], EngineStore]
) -> None:
    turns = {(await begin(a.turns, "ada", None, "Hi")).turn_id for _ in range(60)}
    others = [await engines(f"other {n}").registered() for n in range(4)]
    seen = await others[0].seen(a)

    async def adopt_all(store: EngineStore) -> list[str]:
        mine: list[str] = []
        while some := await store.engines.adopt(seen, 4):
            mine += [each.turn.turn_id for each in some]
        await store.engines.remove(seen)
        return mine

    found = [each for mine in await asyncio.gather(*map(adopt_all, others)) for each in mine]
    assert sorted(found) == sorted(turns)
    assert await a.database.read("SELECT min(epoch), max(epoch) FROM turns") == [(2, 2)]


async def test_an_engine_adopts_its_own_turns_all_or_by_name_or_none(a: EngineStore, b: EngineStore) -> None:
    one, two, _ = [await begin(store.turns, "ada", None, "Hi") for store in (a, a, b)]
    assert await a.engines.adopt_own([]) == []
    [adopted] = await a.engines.adopt_own([two.turn_id])
    assert (adopted.turn.turn_id, adopted.turn.epoch) == (two.turn_id, 2)
    everything = await a.engines.adopt_own(None)
    assert {each.turn.turn_id: each.turn.epoch for each in everything} == {one.turn_id: 2, two.turn_id: 3}


@promise("a turn of a dead engine is adopted by exactly one other")
async def test_a_removed_engine_is_there_again_with_its_next_renewal_and_its_turn_is_adopted(
    a: EngineStore, b: EngineStore
) -> None:
    await b.engines.remove(await b.seen(a))
    assert await b.engines.others() == []
    turn = await begin(a.turns, "ada", None, "Hi")
    assert (await taken_over(a, b)).turn_id == turn.turn_id

    await a.engines.renew(LEASE_MS)
    assert not (await b.seen(a)).released


@promise("a turn that its engines die of is given up")
async def test_crashes_in_a_row_are_counted_until_the_turn_is_written(a: EngineStore) -> None:
    turn = await begin(a.turns, "ada", None, "Hi")

    async def next_life(*, released: bool = False) -> int:
        nonlocal turn
        [adopted] = await a.engines.adopt_own(None, released=released)
        turn = adopted.turn
        return adopted.crashes

    assert [await next_life() for _ in range(3)] == [1, 2, 3]
    await a.archive.open_calls(turn)  # a look is no step
    assert await next_life() == 4
    await a.add_round(turn, tool_call())
    assert await next_life() == 1
    assert await next_life(released=True) == 0
    assert [await next_life() for _ in range(2)] == [1, 2]
    await a.change("UPDATE turns SET owned_since = now_ms() - $1", LONG_MS)
    assert await next_life() == 0
    await a.change("UPDATE turns SET crashes = 3, owned_since = now_ms() - $1", LONG_MS - 10_000)
    assert await next_life() == 4


@promise("a turn of a dead engine is adopted by exactly one other")
async def test_the_outbox_rows_of_an_adopted_turn_move_with_it(a: EngineStore, b: EngineStore) -> None:
    turn = await begin(a.turns, "ada", None, "Hi")
    published, waiting, answered = tool_call(), tool_call(), tool_call()
    await a.add_round(turn, published, waiting, answered)
    rows = {row.event_id: row for row in await a.outbox.waiting(9)}
    await a.outbox.published([rows[published.correlation_id]])
    await a.outbox.postpone(rows[waiting.correlation_id], "no", 600_000)
    await a.calls.add_result(turn, answered, OUTCOME)
    other = await begin(a.turns, "ada", None, "Another")
    await a.add_round(other, left := tool_call())

    await a.change("UPDATE turns SET created_at = created_at - 1000 WHERE turn_id = $1", turn.turn_id)
    [adopted] = await b.engines.adopt(await b.seen(a), 1)

    assert adopted.turn.turn_id == turn.turn_id
    assert [row.event_id for row in adopted.rows] == [waiting.correlation_id, answered.correlation_id]
    assert decode_request(adopted.rows[0].payload).mailbox == mailbox_of("b")
    assert list(await b.outbox.waiting(9)) == [*adopted.rows]
    assert [row.event_id for row in await b.outbox.unanswered()] == [published.correlation_id]
    assert [row.event_id for row in await a.outbox.waiting(9)] == [left.correlation_id]
    opened = {
        each.request.correlation_id: each.request for each in (await b.archive.open_calls(adopted.turn)).requested
    }
    assert opened[waiting.correlation_id].mailbox == mailbox_of("b")
    assert opened[published.correlation_id].mailbox == mailbox_of("a")  # it is answered in its response channel


async def test_a_request_that_this_release_cannot_read_moves_as_it_is(a: EngineStore, b: EngineStore) -> None:
    turn = await begin(a.turns, "ada", None, "Hi")
    await a.add_round(turn, tool_call())
    await a.change("UPDATE outbox SET payload = $1", b"{}")
    [adopted] = await b.engines.adopt(await b.seen(a), 1)
    assert [row.payload for row in adopted.rows] == [b"{}"]


# --- Engines that are removed ---


async def test_facts_of_a_removed_engine_are_taken_over(a: EngineStore, b: EngineStore) -> None:
    turn = await begin(a.turns, "ada", None, "Hi")
    seen = await b.seen(a)
    assert await b.engines.remove(seen) is None  # it has a running turn
    await a.end(turn)
    await a.engines.renew(LEASE_MS + 1000)
    assert await b.engines.remove(seen) is None  # it lives

    seen = await b.seen(a)
    removed = await b.engines.remove(seen)

    assert removed is not None
    [fact] = removed
    assert await b.engines.remove(seen) is None  # it is gone
    assert (fact.event_type, fact.event_id) == ("TurnFinished", turn.turn_id)
    assert [*await b.outbox.waiting(9)] == [fact]
    assert await a.outbox.waiting(9) == []
    assert await b.engines.others() == []
    assert await begin(b.turns, "ada", turn.session_id, "More")


# --- The fence ---


@promise("an engine that lost a turn writes nothing of it, not even at the moment of the adoption")
async def test_a_fenced_engine_cannot_write(a: EngineStore, b: EngineStore) -> None:
    turn = await begin(a.turns, "ada", None, "Hi")
    call, asked = tool_call(), tool_call()
    await a.add_round(turn, call, asked=[asked])
    adopted = await taken_over(a, b)
    offered, before = len(a.offered), await everything(b)

    attempts: list[Callable[[], Awaitable[object]]] = [
        lambda: a.add_round(turn, tool_call()),
        lambda: a.calls.add_result(turn, call, OUTCOME),
        lambda: a.end(turn, "From the past"),
        lambda: a.approvals.close(turn, lambda _: OUTCOME),
        lambda: a.archive.open_calls(turn),
        lambda: b.end(turn, "In an earlier epoch"),
        lambda: b.add_round(turn, tool_call()),
        lambda: b.calls.add_result(turn, call, OUTCOME),
    ]
    for attempt in attempts:
        with pytest.raises(TurnFencedError):
            await attempt()
    assert await everything(b) == before
    assert len(a.offered) == offered

    # What was asked of a person is decided by whichever engine hears of it, and runs where the turn does.
    [waiting] = (await b.archive.open_calls(adopted)).asked
    assert await a.approvals.decide(turn.turn_id, waiting, APPROVED, lambda turn: requested(turn, asked), None)
    assert len(a.offered) == offered
    request = next(row for row in await b.outbox.waiting(9) if row.event_id == asked.correlation_id)
    assert decode_request(request.payload).mailbox == mailbox_of("b")
    assert await b.calls.add_result(adopted, call, OUTCOME)
    assert await b.end(adopted) == 3
    for late in (b.add_round(adopted, tool_call()), b.archive.open_calls(adopted)):
        with pytest.raises(TurnFencedError):  # the turn has ended
            await late


async def everything(store: EngineStore) -> list[object]:
    tables = ("turns", "messages", "tool_calls", "approvals", "outbox", "sessions")
    return [sorted(map(repr, await store.database.read(f"SELECT * FROM {table}"))) for table in tables]  # noqa: S608


@promise("an engine that lost a turn writes nothing of it, not even at the moment of the adoption")
@pytest.mark.parametrize("races", [30, pytest.param(100, marks=exhaustive("more of them"))])
async def test_a_turn_that_is_adopted_while_its_owner_writes_is_written_by_one_of_them(
    a: EngineStore, b: EngineStore, races: int
) -> None:
    random.seed(1)
    seen = await b.seen(a)
    sides: set[str] = set()

    async def answered(store: EngineStore, turn: Turn, correlation_id: str) -> str:
        for each in (await store.archive.open_calls(turn)).requested:  # the other one may have answered it
            assert each.call.correlation_id == correlation_id
            assert await store.calls.add_result(turn, each.call, OUTCOME)
        await store.end(turn, store.engine_id)
        return store.engine_id

    async def adopter(correlation_id: str, looks: int) -> str:
        for _ in range(looks):
            await b.engines.others()
        adopted = await b.engines.adopt(seen, 1)
        return await answered(b, adopted[0].turn, correlation_id) if adopted else ""

    for race in range(races):
        turn = await begin(a.turns, "ada", None, "Hi")
        await a.add_round(turn, call := tool_call())
        results = await asyncio.gather(
            answered(a, turn, call.correlation_id),
            adopter(call.correlation_id, random.randrange(8)),
            return_exceptions=True,
        )
        unexpected = [each for each in results if isinstance(each, Exception) and not isinstance(each, TurnFencedError)]
        assert not unexpected, f"race {race}: {unexpected}"
        writers = [message.content for message in await a.messages(turn.session_id)][3:]
        assert len(writers) == 1
        assert writers[0] in results
        sides.add(writers[0])
        facts = await a.database.read(
            "SELECT event_type, owner FROM outbox WHERE turn_id = $1 AND event_type <> $2", turn.turn_id, EVENT_TYPE
        )
        assert sorted(each for each, _ in facts) == ["ToolCallFinished", "TurnFinished"]
    assert sides == {"a", "b"}
