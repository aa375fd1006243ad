"""Erasures: accepted with the commit, found by whoever looks, and done when nothing can come any more."""

from typing import Any

import pytest
from redis import Redis as SyncRedis

from dialog_engine.errors import SessionNotFoundError
from dialog_engine.personal_data.redis_eraser import RedisEraser
from dialog_engine.personal_data.service import ErasedSession, Left
from dialog_engine.storage.erasures import DELETED_AT_ONCE, TOGETHER_MS
from plugins_contract.keys import Keys
from plugins_contract.ledger.session_leases import Holding, SessionLeases
from plugins_contract.pools import own_pool
from plugins_contract.sessions import SessionMode, owner
from tests.marks import promise
from tests.support.beginnings import begin
from tests.support.engine_stores import EngineStore, tool_call
from tests.support.ledger import Bench, answered

USE_THE_OLDEST = (
    "UPDATE sessions SET updated_at = now_ms() WHERE session_id IN"
    " (SELECT session_id FROM sessions WHERE subject = 'ada' ORDER BY updated_at LIMIT 1)"
)


async def ended(storage: EngineStore, text: str = "Hi") -> tuple[str, str]:
    """A session with a turn that has ended; both ids."""
    turn = await begin(storage.turns, "ada", None, text)
    await storage.end(turn)
    return turn.session_id, turn.turn_id


async def settled(storage: EngineStore) -> None:
    """The time that deletions need is over, and so are the claims of other engines."""
    await storage.change("UPDATE erasures SET due_at = now_ms() WHERE traces IS NOT NULL")


@promise("an erasure misses no session that is used meanwhile")
async def test_every_session_is_erased_in_one_pass_though_they_are_used_meanwhile(
    storage: EngineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = dict([await ended(storage) for _ in range(DELETED_AT_ONCE * 2 + 1)])
    other = await begin(storage.turns, "eve", None, "Hi")
    assert await storage.erasures.erase("ada") == Left(len(sessions), 0, ())
    write = storage.database.write

    async def used(*args: Any) -> Any:
        await write(lambda tx: tx.execute(USE_THE_OLDEST))
        return await write(*args)

    monkeypatch.setattr(storage.database, "write", used)
    assert await storage.erasures.due() == []  # what is on its way to Redis is waited for
    assert await storage.database.read("SELECT session_id FROM sessions") == [(other.session_id,)]
    assert await storage.erasures.erase("ada") == Left(0, len(sessions), ())

    await settled(storage)
    due = {each.session_id: each.turn_ids for each in await storage.erasures.due()}
    assert due == {session: {turn} for session, turn in sessions.items()}


@promise("an erasure costs one pass over each stream, whatever the number of sessions")
async def test_deletions_of_one_subject_that_follow_each_other_are_erased_together(storage: EngineStore) -> None:
    early, late = [(await ended(storage))[0] for _ in range(2)]
    await storage.erasures.delete("ada", early)
    await settled(storage)
    await storage.erasures.delete("ada", late)
    assert await storage.erasures.due() == []
    await storage.change("UPDATE erasures SET due_at = now_ms() - $1 WHERE session_id = $2", TOGETHER_MS, early)
    assert [each.session_id for each in await storage.erasures.due()] == [early]  # but not without end


@promise("an erasure misses no session that is used meanwhile")
async def test_a_session_with_a_running_turn_is_named_and_erased_after_it(storage: EngineStore) -> None:
    turn = await begin(storage.turns, "ada", None, "Hi")
    await storage.add_round(turn, call := tool_call())
    left = Left(1, 0, (turn.session_id,))
    assert await storage.erasures.erase("ada") == left
    await storage.erasures.due()
    assert await storage.erasures.erase("ada") == left
    await storage.end(turn)
    await storage.erasures.due()
    assert await storage.erasures.erase("ada") == Left(1, 0, ())  # it is looked at again in a moment
    await storage.change("UPDATE erasures SET due_at = 0")
    await storage.erasures.due()

    assert await storage.erasures.erase("ada") == Left(0, 1, ())
    assert await storage.outbox.event_types() == frozenset()
    await settled(storage)
    [due] = await storage.erasures.due()
    assert (due.session_id, due.correlation_ids) == (turn.session_id, {call.correlation_id})


@promise("an erasure that was accepted is completed, whatever becomes of Redis and of the engine")
async def test_an_unfinished_erasure_is_due_again_for_other_engines(storage: EngineStore) -> None:
    here, there = storage.erasures, EngineStore(storage.database, "another").erasures
    session, _ = await ended(storage)
    with pytest.raises(SessionNotFoundError):
        await here.delete("eve", session)
    await here.delete("ada", session)
    await settled(storage)
    assert len(await here.due()) == 1
    assert await there.due() == []
    await settled(storage)  # it died
    [due] = await there.due()
    assert await here.delete("ada", session) == Left(0, 1, ())
    with pytest.raises(SessionNotFoundError):
        await here.delete("eve", session)

    await there.done([due.session_id])
    assert await there.backlog() == (0, 0)
    with pytest.raises(SessionNotFoundError):
        await here.delete("ada", session)


async def test_a_session_that_somebody_else_has_deleted_is_not_waited_for(storage: EngineStore) -> None:
    await ended(storage)
    await storage.erasures.erase("ada")
    await storage.change("DELETE FROM sessions")
    assert await storage.erasures.due() == []
    assert await storage.erasures.backlog() == (0, 0)


@promise("the deletion of a conversation or of a subject ends what MCP servers keep for it")
async def test_what_servers_keep_for_a_deleted_conversation_or_subject_is_ended(redis: Any, redis_url: str) -> None:
    traces, leases = RedisEraser(redis, Keys(), []), SessionLeases(redis, Keys(), own_pool("a"), lease_ms=10_000)
    gone = [owner(SessionMode.CONVERSATION, "s"), owner(SessionMode.SUBJECT, "ada")]
    answers = [await leases.hold("notes", each, "1") for each in (*gone, "other")]
    held = [each.lease for each in answers if isinstance(each, Holding)]
    await traces.erase([ErasedSession("s", 0)])
    await traces.end_state("ada")
    with SyncRedis.from_url(redis_url) as thread:
        assert leases.keep(thread, held) == held[:2]


@promise("an erasure that was accepted is completed, whatever becomes of Redis and of the engine")
async def test_a_call_that_still_runs_is_waited_for_and_keeps_its_ledger(redis: Any, redis_url: str) -> None:
    traces, keys = RedisEraser(redis, Keys(), ["events.ltm"]), Keys()
    with SyncRedis.from_url(redis_url) as thread:
        bench = Bench(redis, thread)
        await bench.open()
        request = await bench.queued()
        await redis.xadd("events.ltm", {"event": f'{{"turnId": "{request.turn_id}"}}'})
        await redis.xadd("events.ltm", {"event": "not JSON"})
        session = ErasedSession("s", 0, frozenset({request.turn_id}), frozenset({request.correlation_id}))
        another = ErasedSession("another", 0)

        assert await traces.erase([session, another]) == {"another"}
        assert await redis.exists(keys.call(request.correlation_id))
        delivery = await bench.deliver()
        await bench.worker.complete(delivery, await bench.run(delivery), answered("x"), dead_reason="a letter")
        assert await traces.erase([session]) == {"s"}
    assert not await redis.exists(keys.call(request.correlation_id), keys.response(request.correlation_id))
    assert (await redis.xlen(keys.dead), await redis.xlen("events.ltm")) == (0, 1)
