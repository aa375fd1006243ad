"""The transaction carries what every write needs: nothing is stored in clear, or published without its offer."""

import asyncio
import base64
import json
import threading
from collections.abc import Sequence

import pytest

from callstream_runtime.encryption_keys import cipher_of
from dialog_engine.chat.audit import AuditAction, AuditEvent
from dialog_engine.chat.conversations import Addition
from dialog_engine.chat.outbox import OutboxRow
from dialog_engine.chat.requests import StartingRequest
from dialog_engine.model import (
    ApprovalStatus,
    AssistantMessage,
    Brought,
    ClientMessage,
    Done,
    DoneReason,
    QuestionStatus,
    ToolCall,
    Turn,
    TurnFailed,
    Usage,
)
from dialog_engine.storage.audit import DIGEST_KEY, read_digest_key
from dialog_engine.storage.database import Database
from dialog_engine.storage.schemas.sealed_columns import TABLES
from dialog_engine.storage.store import StoreTransaction
from dialog_engine.tool_calls.questions.values import Answer, Asking
from dialog_engine.tool_calls.values import Asked, Decision, WholeResult
from plugins_contract.encryption import key_of
from plugins_contract.messages import new_id
from plugins_contract.outcomes import CallState, MediaBlock, TextBlock, ToolOutcome
from plugins_contract.questions import InputRequired, QuestionKind, ServerQuestion
from tests.marks import promise
from tests.support.beginnings import begin
from tests.support.engine_stores import EngineStore, NotedOffers, question, requested, store_of
from tests.support.long_sessions import write_session
from tests.support.waiting import wait_until

MARKER = "the-hidden-marzipan"
IN_BASE64 = base64.b64encode(MARKER.encode()).decode()
CIPHER = cipher_of(["k" * 32])
EVENT = AuditEvent(AuditAction.SIGNED_IN, "ada")


async def write_everything(store: EngineStore) -> str:
    """Run each unit that writes texts, arguments or results. Returns the session."""
    session = await store.sessions.create("ada")
    turn = await begin(store.turns, "ada", session, MARKER)
    call, approved, again = (
        ToolCall(name, new_id(), "demo__add", json.dumps({"text": MARKER}), {"signature": MARKER}) for name in "abc"
    )
    ask = question(arguments={"text": MARKER})
    message = AssistantMessage(MARKER, (call, approved, again), reasoning=MARKER)
    questions = {each.correlation_id: ask for each in (approved, again)}
    request = requested(turn, call, arguments={"text": MARKER})
    await store.calls.add_round(turn, message, [request], {}, questions)
    content = TextBlock(MARKER), MediaBlock("image/png", IN_BASE64)
    outcome = ToolOutcome(CallState.SUCCEEDED, content, truncated=True)
    assert await store.calls.add_result(turn, call, outcome, WholeResult(MARKER))
    edited = Decision(status=ApprovalStatus.EDITED, at=5, arguments={"text": MARKER})
    asked = Asked(approved, ask)
    assert await store.approvals.decide(
        turn.turn_id, asked, edited, lambda turn: requested(turn, approved, arguments={"text": MARKER}), None
    )
    form = ServerQuestion("k", QuestionKind.FORM, MARKER)
    sent = requested(turn, approved, arguments={"text": MARKER})
    await store.questions.ask(
        turn, approved, sent, lambda text: Asking("demo", "add", InputRequired((form,), MARKER), text, 1, 2)
    )
    [asked_on] = (await store.archive.open_calls(turn)).rounds
    answers = {1: Answer(QuestionStatus.ANSWERED, 5, {"text": MARKER})}
    assert await store.questions.answer(turn.turn_id, asked_on, answers, None, None)
    assert await store.large.keep(approved.correlation_id, 1, "digest", MARKER.encode())
    assert await store.approvals.ask_again(turn.turn_id, Asked(again, ask), question(arguments={"new": MARKER}))
    assert len(await store.approvals.close(turn, lambda _: outcome)) == 1
    brought = Brought(MARKER, media=(MediaBlock("image/png", IN_BASE64),))
    await store.turns.begin(Turn(new_id(), session, "ada", brought=brought), MARKER, queue=True)
    failure = TurnFailed("INTERNAL", MARKER)
    await store.turns.finish(turn, message, Done(turn.turn_id, DoneReason.ERROR, Usage(1, 1), 5), failure)
    added = Addition(new_id(), [ClientMessage("user", MARKER)])
    await store.conversations.add("ada", session, added, StartingRequest())
    await store.conversations.describe("ada", session, {MARKER: MARKER})
    return session


@promise("with encryption at rest no text is readable in the store or in Redis")
async def test_whatever_a_unit_writes_into_a_sealed_column_or_the_outbox_is_encrypted(database: Database) -> None:
    store = EngineStore(database, cipher=CIPHER, facts_with_text=True, stream=True)
    await read_digest_key(database, CIPHER)
    session = await write_everything(store)

    for table in TABLES:
        only = f" WHERE {table.only}" if table.only else ""
        rows = await database.read(f"SELECT {', '.join(table.columns)} FROM {table.name}{only}")  # noqa: S608
        for column in table.columns:
            values = [value for row in rows if (value := getattr(row, column))]
            assert values, f"nothing was written into {table.name}.{column}"
            assert {key_of(value) for value in values} == {CIPHER.first}, f"{table.name}.{column}"
    payloads = [row.payload.decode() for row in await database.read("SELECT payload FROM outbox")]
    assert any("userMessage" in each for each in payloads)
    assert MARKER not in "".join(payloads)

    transcript = await store.archive.transcript("ada", session, limit=10)
    assert transcript.session.title == MARKER
    assert [message.content for message in transcript.page.messages] == [MARKER] * 3
    assert transcript.turns[0].failure == TurnFailed("INTERNAL", MARKER)
    [first, second, third] = transcript.page.messages[1].calls
    assert {json.loads(each.call.arguments)["text"] for each in (first, second, third)} == {MARKER}
    assert first.call.extra == {"signature": MARKER}
    assert second.approval
    assert second.approval.decision
    assert second.approval.decision.arguments == {"text": MARKER}
    assert third.approval
    assert third.approval.question.arguments == {"new": MARKER}
    turn_id, call_id = transcript.turns[0].turn_id, first.call.correlation_id
    assert await store.archive.whole("ada", turn_id, call_id) == WholeResult(MARKER)
    image = await store.archive.media("ada", turn_id, call_id, 1)
    assert image
    assert image.data == IN_BASE64


async def test_an_outcome_of_an_earlier_release_is_encrypted_in_both_its_parts_when_it_is_split(
    database: Database,
) -> None:
    store = EngineStore(database, cipher=CIPHER)
    await database.write(lambda tx: write_session(tx, "s", "ada", 1, image=IN_BASE64))
    await store.messages("s")
    [row] = await database.read("SELECT outcome, data FROM tool_calls JOIN media USING (correlation_id)")
    assert key_of(row.outcome) == key_of(row.data) == CIPHER.first


async def test_every_row_that_a_unit_publishes_is_offered(database: Database) -> None:
    store = EngineStore(database, stream=True, facts_with_text=True)
    await write_everything(store)
    await store.store.record(EVENT)
    other = await begin(store.turns, "eve", None, "Hi")
    await store.end(other)
    await store.erasures.delete("eve", other.session_id)
    await store.erasures.erase("eve")

    offered = {row.seq: row.event_id for row in store.offered}
    rows = await database.read("SELECT seq, event_id FROM outbox")
    assert {row.seq: row.event_id for row in rows}.items() <= offered.items()
    [last] = await database.read("SELECT max(seq) AS seq FROM outbox")
    assert sorted(offered) == [*range(1, last.seq + 1)], "those that are deleted were offered too"


async def test_rows_that_another_engine_publishes_are_left_to_it(database: Database) -> None:
    owner, other = EngineStore(database, "owner"), EngineStore(database, "other")
    turn, call = await begin(owner.turns, "ada", None, "Hi"), ToolCall("a", new_id(), "demo__add", "{}")
    await owner.calls.add_round(turn, AssistantMessage("", (call,)), [], {}, {call.correlation_id: question()})
    approved, asked = Decision(status=ApprovalStatus.APPROVED, at=5), Asked(call, question())
    assert await other.approvals.decide(turn.turn_id, asked, approved, lambda turn: requested(turn, call), None)
    assert other.offered == []
    assert [row.event_id for row in await owner.outbox.waiting(9)] == [call.correlation_id]


class CommitsAtOffer(NotedOffers):
    """Notes how many transactions were committed when rows were offered."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self.commits: list[int] = []

    def offer(self, rows: Sequence[OutboxRow]) -> None:
        super().offer(rows)
        self.commits.append(self._database.commits)


async def test_rows_are_offered_after_the_commit_and_before_the_caller_goes_on(database: Database) -> None:
    relay = CommitsAtOffer(database)
    store = store_of(database, relay=relay, stream=True)
    before = database.commits
    for number in range(1, 4):
        await store.record(EVENT)
        assert relay.commits == [*range(before + 1, before + number + 1)]


async def test_rows_are_offered_though_the_caller_was_cancelled_during_the_commit(database: Database) -> None:
    relay = NotedOffers()
    store = store_of(database, relay=relay, stream=True)
    begun, go_on = threading.Event(), threading.Event()

    def unit(tx: StoreTransaction) -> None:
        tx.audit(EVENT)
        begun.set()
        assert go_on.wait(10)

    writing = asyncio.create_task(store.write(unit))
    await asyncio.to_thread(begun.wait, 10)
    writing.cancel()
    asyncio.get_running_loop().call_later(0.05, go_on.set)  # the cancellation arrives first
    with pytest.raises(asyncio.CancelledError):
        await writing
    await wait_until(lambda: len(relay.rows) == 1, what="the offer")


async def test_a_unit_that_fails_offers_nothing_and_one_that_is_run_again_because_of_it_once(
    database: Database,
) -> None:
    relay = NotedOffers()
    store = store_of(database, relay=relay, stream=True)

    def failing(tx: StoreTransaction) -> None:
        tx.audit(EVENT)
        raise ValueError("refused")

    units = store.record(EVENT), store.write(failing), store.record(EVENT)
    done = await asyncio.gather(*units, return_exceptions=True)
    assert [type(each) for each in done] == [type(None), ValueError, type(None)]
    rows = await database.read("SELECT seq FROM outbox ORDER BY seq")
    assert sorted(row.seq for row in relay.rows) == [row.seq for row in rows]
    assert len(rows) == 2


async def test_the_key_of_the_audit_is_the_only_sealed_value_that_a_unit_seals_itself() -> None:
    assert [table.only for table in TABLES if table.only] == [f"key = '{DIGEST_KEY}'"]
