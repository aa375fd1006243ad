"""WaitingStore, and how turns begin and end around it: one suite for SQLite and for PostgreSQL."""

import asyncio
import threading
from dataclasses import replace

import pytest

from dialog_engine.chat.audit import AuditAction
from dialog_engine.chat.ports import Ended
from dialog_engine.chat.waiting_messages import MAX_WAITING, Candidate, HeldReason
from dialog_engine.errors import (
    LimitExceededError,
    TurnFencedError,
    TurnNotFoundError,
    TurnRunningError,
    TurnStartedError,
)
from dialog_engine.model import (
    NOTHING_BROUGHT,
    AssistantMessage,
    Brought,
    Choice,
    Done,
    DoneReason,
    Turn,
    TurnFailed,
    Usage,
    UserMessage,
)
from dialog_engine.storage import waiting
from dialog_engine.storage.database import Transaction
from dialog_engine.storage.outbox import mark_restored
from plugins_contract.messages import new_id
from tests.marks import promise
from tests.support.beginnings import begin
from tests.support.engine_stores import EngineStore
from tests.support.locks import blocked


def message(session_id: str, **fields: object) -> Turn:
    return replace(Turn(new_id(), session_id, "ada", roles=("user",), key_id="k", credential="c"), **fields)


async def queued(storage: EngineStore, session_id: str, text: str = "Next", brought: Brought | None = None) -> Turn:
    turn = replace(message(session_id), brought=brought)
    assert not await storage.turns.begin(turn, text, queue=True)
    return turn


async def candidate(storage: EngineStore, session_id: str, held: HeldReason | None = None) -> Candidate | None:
    """The first message, whose sender has another role by now."""
    first = await storage.waiting.first(session_id)
    return first and Candidate(replace(first.turn, roles=("user", "late")), first.version, held)


async def end(storage: EngineStore, turn: Turn, reason: DoneReason = DoneReason.STOP) -> Ended:
    next_one = await candidate(storage, turn.session_id)
    done = Done(turn.turn_id, reason, Usage(1, 2), 3)
    failure = TurnFailed("CODE", "why") if reason is DoneReason.ERROR else None
    return await storage.turns.finish(turn, AssistantMessage("Bye"), done, failure, next_one)


async def texts(storage: EngineStore, session_id: str) -> list[str]:
    return [each.text for each in await storage.waiting.of_session("ada", session_id)]


@promise("messages that wait for their session are answered in the order in which they came, on all engines")
@promise("a message that waits is sent once, whatever becomes of the engine and of its client")
async def test_the_end_of_a_turn_begins_the_message_that_came_first(storage: EngineStore) -> None:
    running = await begin(storage.turns, "ada", None, "Hi")
    session = running.session_id
    sent = message(session, choice=Choice("openai:x", "native"), expires_at=12.5, traceparent="00-trace")
    assert not await storage.turns.begin(sent, "a" * 100_000, queue=True)
    second = await queued(storage, session, "second")

    assert await end(storage, running) == Ended(2, begun=True)

    said = await storage.messages(session)
    assert said[1:] == [AssistantMessage("Bye"), UserMessage("a" * 100_000)]
    assert await texts(storage, session) == ["second"]
    [adopted] = await storage.engines.adopt_own(None)
    first = adopted.turn
    assert (first.turn_id, first.roles, first.choice) == (sent.turn_id, ("user", "late"), sent.choice)
    assert (first.credential, first.traceparent) == ("c", "00-trace")
    assert storage.freed == [session]
    assert (await end(storage, first)).begun
    assert await storage.turns.is_running(second.turn_id)
    assert await texts(storage, session) == []


@promise("messages that wait for their session are answered in the order in which they came, on all engines")
async def test_a_message_that_does_not_wait_overtakes_none_that_does(storage: EngineStore) -> None:
    running = await begin(storage.turns, "ada", None, "Hi")
    first, _ = [await queued(storage, running.session_id) for _ in range(2)]

    async def refused_for() -> str:
        with pytest.raises(TurnRunningError) as caught:
            await begin(storage.turns, "ada", running.session_id, "Me")
        return caught.value.turn_id

    assert await refused_for() == running.turn_id
    await storage.end(running)  # by an engine that begins nothing
    assert await refused_for() == first.turn_id
    assert not await storage.turns.begin(message(running.session_id), "later", queue=True)
    assert await storage.waiting.due(9) == [running.session_id]


@promise("a message that waits is sent once, whatever becomes of the engine and of its client")
async def test_what_no_end_has_begun_is_begun_by_one_engine(storage: EngineStore) -> None:
    running = await begin(storage.turns, "ada", None, "Hi")
    turn = await queued(storage, running.session_id)
    found = await candidate(storage, running.session_id)
    assert found is not None
    assert await storage.waiting.due(9) == []
    assert not await storage.waiting.begin(found), "another turn runs"
    await storage.end(running)
    other = EngineStore(storage.database, "other")

    begun = await asyncio.gather(storage.waiting.begin(found), other.waiting.begin(found))

    assert sorted(begun) == [False, True]
    assert await storage.turns.is_running(turn.turn_id)
    assert await storage.waiting.due(9) == []
    assert await storage.waiting.waiting([turn.turn_id]) == set()


@promise("a message that waits is sent once, whatever becomes of the engine and of its client")
@pytest.mark.parametrize(
    ("order", "reason", "becomes"),
    [
        ("end, message", DoneReason.STOP, (True, 0, 0)),
        ("message, end", DoneReason.STOP, (False, 1, 1)),
        ("message, end", DoneReason.CANCELLED, (False, 0, 1)),
    ],
)
async def test_an_end_and_a_message_at_the_same_time_do_not_miss_each_other(
    storage: EngineStore, order: str, reason: DoneReason, becomes: tuple[bool, int, int]
) -> None:
    running = await begin(storage.turns, "ada", None, "Hi")
    session, sent, other = running.session_id, message(running.session_id), EngineStore(storage.database, "other")
    locked, go_on = threading.Event(), threading.Event()

    def holding(tx: Transaction) -> None:
        tx.change("UPDATE sessions SET updated_at = updated_at WHERE session_id = $1", session)
        locked.set()
        go_on.wait(30)

    holder = asyncio.create_task(storage.database.write(holding))
    await asyncio.to_thread(locked.wait, 30)
    tasks: list[asyncio.Task[object]] = []
    for number, unit in enumerate(order.split(", "), 1):
        done = Done(running.turn_id, reason, Usage(), None)
        work = (
            storage.turns.finish(running, None, done, None)
            if unit == "end"
            else other.turns.begin(sent, "Next", queue=True)
        )
        tasks.append(asyncio.create_task(work))
        await blocked(storage.database, number)
    go_on.set()
    await asyncio.gather(holder, *tasks)

    due = len(await storage.waiting.due(9))
    waits = await storage.waiting.of_session("ada", session)
    # PostgreSQL does not promise the lock to who has waited longest: then the message came after the end, and begins.
    assert (await storage.turns.is_running(sent.turn_id), due, len(waits)) in (becomes, (True, 0, 0))
    assert [each.held for each in waits] == ["STOPPED" if reason is DoneReason.CANCELLED else ""] * len(waits)


@promise("a message that waits begins only with the rights that its sender has then, and is held otherwise")
@pytest.mark.parametrize(
    ("reason", "held"), [(DoneReason.CANCELLED, HeldReason.STOPPED), (DoneReason.ERROR, HeldReason.FAILED)]
)
async def test_after_a_turn_that_did_not_end_well_the_next_message_is_held(
    storage: EngineStore, reason: DoneReason, held: HeldReason
) -> None:
    running = await begin(storage.turns, "ada", None, "Hi")
    session = running.session_id
    first, second = await queued(storage, session, "first"), await queued(storage, session, "second")

    assert not (await end(storage, running, reason)).begun

    assert [each.held for each in await storage.waiting.of_session("ada", session)] == [held, ""]
    assert await storage.waiting.due(9) == []
    assert await storage.waiting.first(session) is None
    await storage.waiting.withdraw("ada", first.turn_id)
    assert [each.held for each in await storage.waiting.of_session("ada", session)] == [held], "it holds the next too"
    assert await storage.waiting.send(message(session, turn_id=second.turn_id)) == (session, None)
    assert await storage.waiting.due(9) == [session]


@promise("a message that waits begins only with the rights that its sender has then, and is held otherwise")
async def test_a_message_whose_sender_may_not_send_it_is_held_until_somebody_does(storage: EngineStore) -> None:
    running = await begin(storage.turns, "ada", None, "Hi")
    turn = await queued(storage, running.session_id)
    await storage.end(running)
    found = await candidate(storage, running.session_id, HeldReason.CREDENTIAL_REVOKED)
    assert found is not None

    assert not await storage.waiting.begin(found)

    [held] = await storage.waiting.of_subject("ada", 9)
    assert (held.held, held.turn.key_id) == (HeldReason.CREDENTIAL_REVOKED, "k")
    [listed] = await storage.sessions.list("ada", limit=9, before=None)
    assert (listed.waiting, listed.held) == (1, HeldReason.CREDENTIAL_REVOKED)
    await storage.waiting.send(message("", turn_id=turn.turn_id, key_id="new", credential="n", expires_at=9.0))
    assert not await storage.waiting.begin(found), "it has another sender by now"
    sent = await storage.waiting.first(running.session_id)
    assert sent is not None
    assert (sent.turn.key_id, sent.turn.credential, sent.turn.expires_at) == ("new", "n", 9.0)


async def test_a_message_is_sent_first_and_also_after_a_stop_when_its_user_says_so(storage: EngineStore) -> None:
    running = await begin(storage.turns, "ada", None, "Hi")
    session = running.session_id
    await queued(storage, session, "first")
    second = await queued(storage, session, "second")

    assert await storage.waiting.send(message("", turn_id=second.turn_id)) == (session, running.turn_id)

    assert await texts(storage, session) == ["second", "first"]
    assert (await end(storage, running, DoneReason.CANCELLED)).begun
    assert await storage.turns.is_running(second.turn_id)
    assert [each.held for each in await storage.waiting.of_session("ada", session)] == [""]


@promise("a message that waits is sent once, whatever becomes of the engine and of its client")
async def test_the_turn_that_is_stopped_for_a_message_ends_though_the_engine_of_the_request_dies(
    storage: EngineStore,
) -> None:
    """Stopped with what it sends; a parked turn is due, so that any engine takes it up."""
    for parked in (False, True):
        running = await begin(storage.turns, "ada", None, "Hi")
        turn = await queued(storage, running.session_id)
        if parked:
            await storage.change("UPDATE turns SET owner = '' WHERE turn_id = $1", running.turn_id)

        await storage.waiting.send(message("", turn_id=turn.turn_id), stop=True)

        if parked:
            [row] = await storage.database.read("SELECT now_ms() AS now")
            assert await storage.parked.due(row.now, 9) == [(running.turn_id, False)]
            assert await storage.parked.take(running.turn_id)
        assert running.turn_id in await storage.engines.stop_requests()


async def test_a_message_is_changed_and_withdrawn_until_its_turn_begins(storage: EngineStore) -> None:
    running = await begin(storage.turns, "ada", None, "Hi")
    session = running.session_id
    first, second = await queued(storage, session, "first"), await queued(storage, session, "second")
    late = await candidate(storage, session)
    await storage.waiting.edit(message("", turn_id=first.turn_id), "edited")
    done = Done(running.turn_id, DoneReason.STOP, Usage(), None)
    assert not (await storage.turns.finish(running, None, done, None, late)).begun, "of the text before"
    for _ in range(2):
        assert await storage.waiting.withdraw("ada", second.turn_id) == session
    found = await storage.waiting.find("ada", second.turn_id)
    assert found is not None
    assert (found.status, found.text) == ("withdrawn", "")
    assert await texts(storage, session) == ["edited"]

    now = await candidate(storage, session)
    assert now is not None
    assert await storage.waiting.begin(now)
    assert (await storage.messages(session))[-1] == UserMessage("edited")

    for refused in (
        storage.waiting.edit(message("", turn_id=first.turn_id), "later"),
        storage.waiting.send(message("", turn_id=first.turn_id)),
        storage.waiting.withdraw("ada", first.turn_id),
    ):
        with pytest.raises(TurnStartedError):
            await refused
    for nobodys in (
        message("", turn_id=second.turn_id),
        message(""),
        message("", turn_id=first.turn_id, subject="eve"),
    ):
        with pytest.raises(TurnNotFoundError):
            await storage.waiting.edit(nobodys, "later")
    assert await storage.waiting.find("eve", second.turn_id) is None
    rows = await storage.database.read("SELECT action FROM audit ORDER BY seq")
    assert [row.action for row in rows if row.action.startswith("message.")] == [
        AuditAction.MESSAGE_QUEUED,
        AuditAction.MESSAGE_QUEUED,
        AuditAction.MESSAGE_EDITED,
        AuditAction.MESSAGE_WITHDRAWN,
    ]


async def older(storage: EngineStore, column: str, ms: int) -> None:
    """What these rows tell is by so much longer ago."""
    await storage.store.write(lambda tx: tx.change(f"UPDATE {column} - $1", ms + 1))


async def test_a_withdrawn_message_is_known_for_a_week_and_so_is_what_its_protocol_says_of_it(
    storage: EngineStore,
) -> None:
    session = (await begin(storage.turns, "ada", None, "Hi")).session_id
    brought = Brought("Be brief.", response={"said": {}})
    first, second = await queued(storage, session, brought=brought), await queued(storage, session, brought=brought)
    await storage.waiting.withdraw("ada", first.turn_id)
    assert await storage.responses.brought(first.turn_id) == Brought(response={"said": {}})
    await older(storage, "waiting_messages SET withdrawn_at = withdrawn_at", waiting.KEPT_MS)
    await storage.waiting.withdraw("ada", second.turn_id)
    assert await storage.waiting.find("ada", first.turn_id) is None
    assert await storage.responses.brought(first.turn_id) == NOTHING_BROUGHT


async def test_so_many_messages_may_wait_in_a_session_and_no_more(storage: EngineStore) -> None:
    session = (await begin(storage.turns, "ada", None, "Hi")).session_id
    sent = [await queued(storage, session, str(number)) for number in range(MAX_WAITING)]
    with pytest.raises(LimitExceededError, match=f"{MAX_WAITING} messages may wait"):
        await queued(storage, session)
    await storage.waiting.withdraw("ada", sent[0].turn_id)
    await queued(storage, session, "last")
    assert await texts(storage, session) == [*map(str, range(1, MAX_WAITING)), "last"]
    assert await storage.waiting.count() == MAX_WAITING


async def test_messages_go_with_their_session_and_with_their_subject(storage: EngineStore) -> None:
    running, other = await begin(storage.turns, "ada", None, "Hi"), await begin(storage.turns, "ada", None, "Hi")
    first, second = await queued(storage, running.session_id), await queued(storage, other.session_id)
    await storage.end(running)

    await storage.erasures.delete("ada", running.session_id)
    assert await storage.waiting.waiting([first.turn_id, second.turn_id]) == {second.turn_id}
    gone = await candidate(storage, other.session_id)
    await storage.erasures.erase("ada")
    assert await storage.waiting.count() == 0
    assert gone is not None
    assert not await storage.waiting.begin(gone)
    assert not (await end(storage, other)).begun


async def test_a_fenced_engine_begins_nothing(storage: EngineStore) -> None:
    running = await begin(storage.turns, "ada", None, "Hi")
    turn = await queued(storage, running.session_id)
    await storage.engines.adopt_own(None)
    with pytest.raises(TurnFencedError):
        await end(storage, running)
    assert await storage.waiting.waiting([turn.turn_id]) == {turn.turn_id}


async def test_a_restored_message_is_held(storage: EngineStore) -> None:
    running = await begin(storage.turns, "ada", None, "Hi")
    await queued(storage, running.session_id)
    await storage.end(running)
    await storage.database.write(mark_restored)
    assert await storage.waiting.due(9) == []
    assert [each.held for each in await storage.waiting.of_subject("ada", 9)] == [HeldReason.RESTORED]
