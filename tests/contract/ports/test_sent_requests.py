"""What the store knows of requests that were sent: one suite for SQLite and for PostgreSQL."""

import asyncio
import threading
from dataclasses import replace

import pytest

from dialog_engine.chat.requests import SessionName, StartingRequest
from dialog_engine.errors import (
    ClientMessageReusedError,
    EngineError,
    IdempotencyKeyReusedError,
    SentBeforeError,
    SessionNamedError,
    TurnRunningError,
)
from dialog_engine.model import Choice, Turn
from dialog_engine.storage import requests
from dialog_engine.storage.database import Database, Transaction
from dialog_engine.storage.store import StoreTransaction
from plugins_contract.choice import ToolChoice
from plugins_contract.messages import new_id
from tests.marks import promise
from tests.support.engine_stores import EngineStore
from tests.support.locks import blocked

NAMED = StartingRequest(message_id="m1")
KEYED = StartingRequest(key="k1", content="one")
PLAIN = StartingRequest(content="one")
REPEATED = replace(PLAIN, repeated=True)
KEPT_MS = {NAMED: requests.MESSAGE_MS, KEYED: requests.KEY_MS, REPEATED: requests.CONTENT_MS}


async def sent(
    store: EngineStore, request: StartingRequest, session_id: str = "", text: str = "Hi", **fields: object
) -> str:
    """The turn that it begins; or the one that it has begun before, of which nothing is begun now."""
    turn = replace(Turn(new_id(), session_id or new_id(), "ada"), **fields)
    try:
        await store.turns.begin(turn, text, new_session=not session_id, queue=bool(session_id), request=request)
    except SentBeforeError as error:
        [row] = await store.database.read("SELECT count(*) AS found FROM turns WHERE turn_id = $1", turn.turn_id)
        assert row.found == 0
        return error.turn_id
    return turn.turn_id


async def age(store: EngineStore, ms: int) -> None:
    await store.change("UPDATE client_messages SET created_at = created_at - $1", ms)


@promise("a message that a client names and sends again begins no second turn")
async def test_a_message_that_is_sent_again_is_the_same_turn(storage: EngineStore) -> None:
    turn = Turn(new_id(), new_id(), "ada")
    await storage.turns.begin(turn, "Hi", new_session=True, request=NAMED)
    assert {await sent(storage, NAMED), await sent(storage, NAMED, turn.session_id)} == {turn.turn_id}
    choices = Choice(model="b"), Choice(tool_mode="native"), Choice(tools=ToolChoice(servers=("a",)))
    others = {"parent": ""}, *({"choice": each} for each in choices)
    for text, changes in ("Ho", {}), *(("Hi", each) for each in others):
        with pytest.raises(ClientMessageReusedError):
            await sent(storage, NAMED, turn.session_id, text, **changes)
    assert await sent(storage, NAMED, subject="eve") != turn.turn_id, "another subject's"

    other = StartingRequest(message_id="m2")
    with pytest.raises(TurnRunningError):
        await storage.turns.begin(Turn(new_id(), turn.session_id, "ada"), "Next", request=other)
    assert await sent(storage, other, turn.session_id, "Other") != turn.turn_id, "one that is refused is not kept"


@promise("a chat of another protocol is one session of its subject, whatever name it has there")
async def test_the_name_of_a_session_is_stored_with_the_turn_that_begins_it(a: EngineStore, b: EngineStore) -> None:
    name = SessionName("chat", "one")
    first = StartingRequest(session_name=name)
    turn = Turn(new_id(), new_id(), "ada")
    assert await a.sessions.find_named("ada", name) is None
    await a.turns.begin(turn, "Hi", new_session=True, request=first)
    assert await b.sessions.find_named("ada", name) == turn.session_id
    assert await b.sessions.find_named("ada", SessionName("chat", turn.session_id)) == turn.session_id
    with pytest.raises(SessionNamedError):
        await sent(b, first)
    others = SessionName("other", "one"), SessionName("chat", "two")
    assert {await b.sessions.find_named("ada", each) for each in others} == {None}
    assert await b.sessions.find_named("eve", name) is None
    assert [each.session_id for each in await b.sessions.list("ada", limit=9, before=None)] == [turn.session_id]


@promise("a request with an Idempotency-Key begins one turn, however often and at whichever engine it is sent")
async def test_a_key_stands_for_one_request_of_its_subject(a: EngineStore, b: EngineStore) -> None:
    turn_id = await sent(a, KEYED)
    assert await sent(b, replace(KEYED, repeated=True)) == turn_id
    with pytest.raises(SentBeforeError):
        await b.sent.check_new("ada", KEYED)
    other = replace(KEYED, content="other")
    for refused in (sent(b, other), b.sent.check_new("ada", other), b.sessions.create("ada", other)):
        with pytest.raises(IdempotencyKeyReusedError):
            await refused
    await b.sent.check_new("eve", other)
    assert await sent(b, other, subject="eve") != turn_id
    assert await sent(b, replace(KEYED, key="k2")) != turn_id

    session_id = await a.sessions.create("ada", StartingRequest(key="k3", content="s"))
    assert await b.sessions.create("ada", StartingRequest(key="k3", content="s")) == session_id
    assert await b.sessions.create("ada", StartingRequest(content="s")) != session_id


@promise("a request that the SDK of OpenAI repeats joins the turn that it has begun")
async def test_a_request_without_a_key_joins_the_newest_equal_one_only_if_it_says_that_it_is_repeated(
    a: EngineStore, b: EngineStore
) -> None:
    first, second = await sent(a, PLAIN), await sent(b, PLAIN)
    assert first != second
    await a.sent.check_new("ada", PLAIN)
    assert await sent(a, REPEATED) == second
    with pytest.raises(SentBeforeError):
        await a.sent.check_new("ada", REPEATED)
    assert await sent(a, replace(REPEATED, content="other")) not in (first, second)
    assert await sent(a, REPEATED, subject="eve") not in (first, second)


@pytest.mark.parametrize("request_", KEPT_MS, ids=["message", "key", "content"])
async def test_a_request_is_known_for_its_time_and_then_forgotten(
    storage: EngineStore, request_: StartingRequest
) -> None:
    turn_id = await sent(storage, request_)
    await age(storage, KEPT_MS[request_] - 60_000)
    assert await storage.sent.forget() == 0
    assert await sent(storage, request_) == turn_id
    await age(storage, 60_001)
    await storage.sent.check_new("ada", request_)
    later = await sent(storage, request_)
    assert later != turn_id, "although it is not forgotten yet"
    assert await sent(storage, request_) == later
    await age(storage, KEPT_MS[request_] + 1)
    assert [await storage.sent.forget(), await storage.sent.forget()] == [1, 0]


@promise("a request with an Idempotency-Key begins one turn, however often and at whichever engine it is sent")
@pytest.mark.parametrize("request_", [NAMED, KEYED, REPEATED], ids=["message", "key", "content"])
async def test_of_two_at_once_at_two_engines_one_begins_a_turn_and_the_other_one_joins_it(
    a: EngineStore, b: EngineStore, request_: StartingRequest
) -> None:
    assert len({*await asyncio.gather(*(sent(each, request_) for each in (a, b, a, b)))}) == 1


@pytest.mark.parametrize("request_", [KEYED, REPEATED], ids=["key", "content"])
@pytest.mark.parametrize("fails", [False, True], ids=["goes on", "fails"])
async def test_a_repetition_waits_for_a_commit_that_is_under_way(
    database: Database, a: EngineStore, b: EngineStore, request_: StartingRequest, fails: bool
) -> None:
    """The first engine stands still before its commit."""
    begun, go_on = threading.Event(), threading.Event()
    turn = Turn(new_id(), new_id(), "ada")

    def held(tx: Transaction) -> None:
        requests.note_message(StoreTransaction(tx, a.store), turn, "Hi", replace(request_, repeated=False))
        begun.set()
        go_on.wait(30)
        if fails:
            raise EngineError

    holder = asyncio.create_task(database.write(held))
    await asyncio.to_thread(begun.wait, 30)
    repetition = asyncio.create_task(sent(b, request_))
    await blocked(database, 1)
    go_on.set()
    await asyncio.gather(holder, return_exceptions=True)
    assert (await repetition == turn.turn_id) is not fails, "what is not committed was not sent"
