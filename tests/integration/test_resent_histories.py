"""Conversations that clients send again: which turn is continued, and what a request brings for its turn."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from dialog_engine.chat.history import Memory
from dialog_engine.chat.resent import Resent, find_place
from dialog_engine.chat.waiting_messages import Candidate
from dialog_engine.errors import TooManyBranchesError
from dialog_engine.model import (
    AssistantMessage,
    Brought,
    ClientCall,
    ClientMessage,
    Done,
    DoneReason,
    Message,
    Sampling,
    ToolMessage,
    Turn,
    Usage,
    UserMessage,
)
from dialog_engine.personal_data.retention import Retention, one_pass
from dialog_engine.storage import branches
from dialog_engine.storage.resent import SqlResent
from dialog_engine.storage.responses import SqlAskedResponses
from dialog_engine.storage.store import StoreTransaction
from plugins_contract.messages import new_id
from plugins_contract.outcomes import MediaBlock
from tests.marks import promise
from tests.support.engine_stores import EngineStore
from tests.support.loop_probe.sitecustomize import slowness

MEMORY = Memory(1_000, 100_000)
IMAGE = MediaBlock("image/png", "iVBORw0KGgo=")
SAID = (
    ClientMessage("user", "What is it?", (IMAGE,)),
    ClientMessage("assistant", "", calls=(ClientCall("call_1", "look", '{"at":1}'),)),
    ClientMessage("tool", "a cat", call_id="call_1"),
    ClientMessage("assistant", "A cat."),
)
BROUGHT = Brought("Be brief.", media=(IMAGE,), said=SAID, sampling=Sampling(temperature=0.5, stop=("END",)))


def one(question: str, answer: str = "Bye") -> tuple[ClientMessage, ...]:
    return ClientMessage("user", question), ClientMessage("assistant", answer)


async def begun(store: EngineStore, text: str, session_id: str = "", subject: str = "ada", **fields: Any) -> Turn:
    """A turn that runs, in a new session when none is named."""
    turn = Turn(new_id(), session_id or new_id(), subject, **fields)
    return await store.turns.begin(turn, text, new_session=not session_id) or turn


async def ended(store: EngineStore, text: str, session_id: str = "", answer: str = "Bye", **fields: Any) -> Turn:
    turn = await begun(store, text, session_id, **fields)
    await store.end(turn, answer)
    return turn


async def place(
    store: EngineStore, session_id: str | None, said: Sequence[ClientMessage], subject: str = "ada"
) -> str | None:
    """The turn that a question follows behind this conversation."""
    resent = Resent.of(Brought(said=tuple(said)))
    found = SqlResent(store.store, store.store.trail)
    follows = await find_place(found, subject, session_id, resent, named=session_id is not None)
    return follows and follows.turn_id


async def asked(store: EngineStore, turn: Turn) -> tuple[Message, ...]:
    """What a model is sent for the turn."""
    messages, _ = await store.said(turn.session_id, MEMORY)
    return messages


@promise("a conversation that a client sends again goes on where it was, however the client trims it")
async def test_the_turn_is_found_by_the_questions_on_its_path(store: EngineStore) -> None:
    first = await ended(store, "one")
    session = first.session_id
    second = await ended(store, "two", session)
    edited = await ended(store, "zwei", session, parent=first.turn_id)
    third = await ended(store, "three", session, parent=second.turn_id)

    whole = (*one("one"), *one("  two "), *one("three", "an answer of another's"))
    for trimmed in (whole, whole[2:], whole[4:]):
        assert await place(store, session, trimmed) == third.turn_id
    assert await place(store, session, (*one("one"), *one("zwei"))) == edited.turn_id
    assert await place(store, session, (*one("two"), *one("two"))) is None
    assert await place(store, session, (*one("zero"), *whole)) is None, "more than is stored"
    assert await place(store, session, one("one"), subject="eve") is None
    assert await place(store, (await ended(store, "one")).session_id, whole) is None


@promise("a conversation that a client sends again goes on where it was, however the client trims it")
async def test_what_a_client_said_before_is_part_of_the_path_of_its_turn(store: EngineStore) -> None:
    turn = await ended(store, "And now?", "", "Still a cat.", brought=BROUGHT)
    again = (*SAID, *one("And now?"))
    assert await place(store, turn.session_id, again) == turn.turn_id
    assert await place(store, turn.session_id, again[1:]) == turn.turn_id
    assert await place(store, turn.session_id, (*one("Who?"), *again)) is None


@promise("a conversation without a name is nobody's but its client's: not listed, and deleted after a time")
async def test_a_conversation_without_a_name_goes_on_only_where_the_answer_is_the_same(store: EngineStore) -> None:
    nameless = Brought(stateless=True)
    mine = await ended(store, "Hi", "", "Hello, Ada.", brought=nameless)
    await ended(store, "Hi", "", "Hello, Bob.", brought=nameless)
    await ended(store, "Hi", "", "Hello, Ada.")  # a listed one
    assert await place(store, None, one("Hi", "Hello,\nAda.")) == mine.turn_id
    assert await place(store, None, one("Hi", "Hello, Eve.")) is None
    assert await place(store, None, one("Hi", "Hello, Ada."), subject="eve") is None
    longer = await ended(store, "Hm", mine.session_id, "So?", parent=mine.turn_id, brought=nameless)
    assert await place(store, None, one("Hm", "So?")) is None, "a part of it may be of any conversation"
    whole = (*one("Hi", "Hello, Ada."), *one("Hm", "So?"))
    assert await place(store, None, whole) == longer.turn_id


@promise("a conversation without a name is nobody's but its client's: not listed, and deleted after a time")
async def test_a_conversation_without_a_name_is_not_listed_and_goes_with_its_time(store: EngineStore) -> None:
    listed = await ended(store, "Hi")
    nameless = await ended(store, "Hi", brought=Brought(stateless=True))
    assert [each.session_id for each in await store.sessions.list("ada", limit=9, before=None)] == [listed.session_id]
    assert {*await store.sessions.ids("ada", after="", limit=9)} == {listed.session_id, nameless.session_id}, "exported"

    retention = Retention.of([("*", 0)], stateless_seconds=3_600)
    assert await one_pass(retention, store.erasures) == (0, 0)
    await store.change("UPDATE sessions SET updated_at = updated_at - 3700000")
    assert await one_pass(retention, store.erasures) == (1, 0)
    assert [each.session_id for each in await store.erasures.page("", 9)] == [listed.session_id]
    rows = await store.database.read("SELECT session_id FROM deleted_sessions")
    assert rows == [], "no reader of events is told of what it was not shown"


@promise("a conversation without a name is nobody's but its client's: not listed, and deleted after a time")
async def test_a_beginning_that_a_client_has_left_goes_with_its_time_and_one_of_a_user_stays(
    store: EngineStore,
) -> None:
    own = await ended(store, "Hi")
    session, sent = own.session_id, Brought(said=one("Hm"))
    old = await ended(store, "And?", session, parent="", brought=sent)
    after = await ended(store, "So?", session, parent=old.turn_id)
    instructed = await ended(store, "Hi", session, parent="", brought=Brought("Be brief."))
    last = await ended(store, "Ah", session, parent=after.turn_id)
    older = "UPDATE turns SET created_at = created_at - 3700000, finished_at = finished_at - 3700000"

    async def passed() -> int:
        await one_pass(Retention.of([("*", 0)], stateless_seconds=3_600), store.erasures)
        return len(await store.database.read("SELECT 1 FROM turns"))

    await store.change(older)
    assert await passed() == 5, "it is shown"
    newest = await begun(store, "Well?", session, parent="", brought=Brought(said=one("Hm?")))
    assert await passed() == 6, "a turn runs"
    await store.end(newest)
    await store.change("UPDATE turns SET finished_at = finished_at + 3700000 WHERE turn_id = $1", last.turn_id)
    assert await passed() == 6, "it was used"
    await store.change(older)
    await passed()

    left = {row.turn_id for row in await store.database.read("SELECT turn_id FROM turns")}
    assert left == {own.turn_id, instructed.turn_id, newest.turn_id}
    assert len(await store.database.read("SELECT 1 FROM turn_inputs")) == 2
    await store.change("UPDATE erasures SET due_at = 0")
    [erased] = await store.erasures.due()
    assert erased.turn_ids == {old.turn_id, after.turn_id, last.turn_id}, "their traces go from Redis"
    more = await begun(store, "Go on", session, parent=newest.turn_id)
    assert [each.content for each in await asked(store, more)] == ["Hm?", "Bye", "Well?", "Bye", "Go on"]


async def test_long_conversations_are_compared_off_the_event_loop(store: EngineStore) -> None:
    said = one("a " * 2_000_000, "b " * 2_000_000)
    mine = await ended(store, "Hi", "", "c " * 2_000_000, brought=Brought(stateless=True, said=said))
    again = (*said, *one("Hi", "c " * 2_000_000))
    began = time.thread_time()
    assert await place(store, None, again) == mine.turn_id
    assert time.thread_time() - began < 0.05 * slowness()


async def test_a_beginning_with_what_was_added_to_the_conversation_stays(store: EngineStore) -> None:
    added = (ClientMessage("user", "Hm", id="msg_1"),)
    first = await ended(store, "Hi", brought=Brought(said=added, own_api=True))
    await ended(store, "Ho", first.session_id, parent="", brought=Brought(said=one("Hm")))
    await store.change("UPDATE turns SET created_at = created_at - 3700000, finished_at = finished_at - 3700000")
    await one_pass(Retention.of([("*", 0)], stateless_seconds=3_600), store.erasures)
    assert len(await store.database.read("SELECT 1 FROM turns")) == 2


@promise("what a request brings reaches the model in every round, at any engine, and whatever waits before it")
async def test_what_a_request_brings_is_there_after_an_adoption(store: EngineStore) -> None:
    turn = await begun(store, "And this?", brought=BROUGHT)
    assert turn.brought == BROUGHT.committed(), "a running turn does not keep what is in the store"

    [adopted] = await store.engines.adopt_own(None)

    assert adopted.turn.brought == turn.brought
    user, assistant, result, answer, question = await asked(store, turn)
    assert (user, question) == (UserMessage("What is it?", (IMAGE,)), UserMessage("And this?", (IMAGE,)))
    assert (assistant.content, answer) == ("", AssistantMessage("A cat."))
    assert result == ToolMessage("call_1", "look", "a cat")
    await store.end(adopted.turn)
    last = await begun(store, "Thanks", turn.session_id, parent=turn.turn_id)
    assert (await asked(store, last))[:5] == (user, assistant, result, answer, question)


@promise("what a request brings reaches the model in every round, at any engine, and whatever waits before it")
async def test_what_a_message_brings_that_waits_is_there_when_it_begins(store: EngineStore) -> None:
    running = await begun(store, "one")
    message = Turn(new_id(), running.session_id, "ada", parent="", brought=BROUGHT)
    assert await store.turns.begin(message, "two", queue=True) is None
    first = await store.waiting.first(running.session_id)
    assert first is not None
    candidate = Candidate(first.turn, first.version)

    stopped = Done(running.turn_id, DoneReason.CANCELLED, Usage(), None)
    ended = await store.turns.finish(running, None, stopped, None, candidate)

    assert ended.begun, "its client cannot say that it is sent all the same"
    assert candidate.turn.brought == BROUGHT.committed()
    assert [each.content for each in await asked(store, message)] == ["What is it?", "", "a cat", "A cat.", "two"]


def _bring(tx: StoreTransaction, **row: Any) -> None:
    tx.change("UPDATE turn_inputs SET brought = $brought WHERE turn_id = $turn_id", **row)


async def test_what_an_earlier_version_has_stored_too_deep_breaks_no_other_conversation(store: EngineStore) -> None:
    turns = [await ended(store, "Hi", brought=Brought(stateless=True)) for _ in range(2)]
    running = await begun(store, "Hm", brought=BROUGHT)
    deep = b'{"sampling":{"response_format":%s1%s}}' % (b'{"a":' * 2_000, b"}" * 2_000)
    for each in (turns[1].turn_id, running.turn_id):
        await store.store.write(partial(_bring, turn_id=each, brought=deep))
    assert await place(store, None, one("Hi")) == turns[1].turn_id
    [message, *_] = await store.archive.turn_messages(turns[1].turn_id)
    assert (message.content, message.brought) == ("Hi", Brought())
    [adopted] = await store.engines.adopt_own(None)
    assert adopted.turn.brought == Brought()
    assert await SqlAskedResponses(store.store).forget("ada", turns[1].turn_id)


async def test_what_came_with_a_message_goes_with_it(store: EngineStore) -> None:
    running = await begun(store, "one")
    message = Turn(new_id(), running.session_id, "ada", brought=BROUGHT)
    await store.turns.begin(message, "two", queue=True)
    await store.waiting.withdraw("ada", message.turn_id)
    for table in ("turn_inputs", "turn_images"):
        assert await store.database.read(f"SELECT turn_id FROM {table}") == []  # noqa: S608


async def test_clients_that_rewrite_their_history_may_begin_any_number_of_branches(
    store: EngineStore,
) -> None:
    first = await ended(store, "one")
    for number in range(branches.MAX_SIBLINGS):
        await ended(store, f"{number}", first.session_id, parent="", brought=Brought())
    await ended(store, "more", first.session_id, parent="", brought=Brought())
    with pytest.raises(TooManyBranchesError):
        await begun(store, "native", first.session_id, parent="")
