"""The audit: every step of a call, every decision and every deletion leaves one event, which nothing changes."""

import json
import sqlite3
from dataclasses import astuple, replace
from pathlib import Path

import psycopg
import pytest

from dialog_engine.chat.audit import AuditAction, AuditEvent
from dialog_engine.chat.outbox import AUDIT_RECORDED
from dialog_engine.model import ApprovalStatus, AssistantMessage, Brought, ToolCall, Turn
from dialog_engine.operators import commands
from dialog_engine.storage.audit import COLUMNS, AuditTrail, fitted, read_digest_key
from dialog_engine.tool_calls.values import Asked, Decision
from plugins_contract.encryption import CLEAR
from plugins_contract.errors import ErrorCode
from plugins_contract.messages import new_id
from plugins_contract.outcomes import CallState, ToolOutcome
from tests.marks import promise
from tests.support.beginnings import begin
from tests.support.engine_stores import OUTCOME, EngineStore, OpenDatabase, question, requested, tool_call

REFUSED = ToolOutcome.failure(CallState.FAILED, ErrorCode.NOT_APPROVED, "marker-in-a-result")
INTEGRITY_ERRORS = (sqlite3.IntegrityError, psycopg.IntegrityError)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engine.sqlite3"


async def recorded(store: EngineStore) -> list[AuditEvent]:
    """Every event, oldest first."""
    rows = await store.database.read(f"SELECT {', '.join(COLUMNS)} FROM audit ORDER BY seq")  # noqa: S608
    return [AuditEvent(AuditAction(action), *rest) for action, *rest in rows]


def ids(turn: Turn, correlation_id: str = "") -> dict[str, str]:
    return {"session_id": turn.session_id, "turn_id": turn.turn_id, "correlation_id": correlation_id}


def assistant(*calls: ToolCall) -> AssistantMessage:
    return AssistantMessage("marker-in-a-message", calls)


DIGEST = AuditTrail(b"key").digest({})
UNKNOWN = AuditTrail(b"key").unknown("demo__add")


@promise("every call, decision and deletion is in the audit, which nothing changes")
async def test_a_call_is_recorded_when_it_is_accepted_and_when_it_has_ended(store: EngineStore) -> None:
    turn = await begin(store.turns, "ada", None, "marker-in-a-message")
    call, never_run = tool_call(), tool_call()
    await store.calls.add_round(turn, assistant(call, never_run), [requested(turn, call)], {
        never_run.correlation_id: REFUSED,
    })  # fmt: skip
    assert await store.calls.add_result(turn, call, OUTCOME)
    assert not await store.calls.add_result(turn, call, OUTCOME)

    about = ids(turn, call.correlation_id) | {"server": "demo", "tool": "demo__add"}
    refused = ids(turn, never_run.correlation_id) | {"tool": UNKNOWN, "outcome": "failed NOT_APPROVED"}
    assert await recorded(store) == [
        AuditEvent(AuditAction.TURN_STARTED, "ada", **ids(turn)),
        AuditEvent(AuditAction.CALL_ACCEPTED, "ada", **about, digest=DIGEST),
        AuditEvent(AuditAction.CALL_ENDED, "ada", **refused),
        AuditEvent(AuditAction.CALL_ENDED, "ada", **about, outcome="succeeded"),
    ]


@promise("every call, decision and deletion is in the audit, which nothing changes")
async def test_an_event_and_what_it_records_are_one_commit(store: EngineStore) -> None:
    turn = await begin(store.turns, "ada", None, "Hi")
    before = store.database.commits
    call = tool_call()
    await store.add_round(turn, call)
    await store.calls.add_result(turn, call, OUTCOME)

    assert store.database.commits - before == 2
    assert len(await recorded(store)) == 3


@promise("every call, decision and deletion is in the audit, which nothing changes")
async def test_a_decision_is_recorded_with_the_credential_of_the_person(store: EngineStore) -> None:
    turn = await begin(store.turns, "ada", None, "Hi")
    yes, no, late = tool_call(), tool_call(), tool_call()
    await store.add_round(turn, asked=(yes, no, late))
    for call, status in ((yes, ApprovalStatus.APPROVED), (no, ApprovalStatus.REFUSED), (late, ApprovalStatus.EXPIRED)):
        approved = status is ApprovalStatus.APPROVED
        decision = Decision(status=status, at=1, key_id="laptop")
        assert await store.approvals.decide(
            turn.turn_id,
            Asked(call, question()),
            decision,
            (lambda turn, call=call: requested(turn, call)) if approved else None,
            None if approved else REFUSED,
        )

    events = [(each.action, each.key_id, each.correlation_id, each.outcome) for each in await recorded(store)][1:]
    assert events == [
        (AuditAction.CALL_APPROVED, "laptop", yes.correlation_id, "approved"),
        (AuditAction.CALL_ACCEPTED, "", yes.correlation_id, ""),
        (AuditAction.CALL_DENIED, "laptop", no.correlation_id, "refused"),
        (AuditAction.CALL_ENDED, "", no.correlation_id, "failed NOT_APPROVED"),
        (AuditAction.APPROVAL_EXPIRED, "laptop", late.correlation_id, "expired"),
        (AuditAction.CALL_ENDED, "", late.correlation_id, "failed NOT_APPROVED"),
    ]


@promise("every call, decision and deletion is in the audit, which nothing changes")
async def test_the_events_of_a_session_outlive_it_and_hold_no_text(store: EngineStore) -> None:
    turn = await begin(store.turns, "ada", None, "marker-in-a-message")
    call = tool_call()
    await store.add_round(turn, call)
    await store.calls.add_result(turn, call, REFUSED)
    await store.end(turn, "marker-in-an-answer")
    await store.erasures.delete("ada", turn.session_id, key_id="phone")

    events = await recorded(store)
    assert [each.action for each in events] == [
        AuditAction.TURN_STARTED, AuditAction.CALL_ACCEPTED, AuditAction.CALL_ENDED, AuditAction.SESSION_DELETED,
    ]  # fmt: skip
    assert events[-1] == AuditEvent(AuditAction.SESSION_DELETED, "ada", key_id="phone", session_id=turn.session_id)
    assert "marker" not in repr(events)


@promise("every call, decision and deletion is in the audit, which nothing changes")
async def test_a_response_that_is_forgotten_is_recorded_where_its_session_stays_too(store: EngineStore) -> None:
    brought = Brought(response={"said": {"metadata": {"marker": "marker"}}})
    turn = Turn(new_id(), new_id(), "ada", brought=brought)
    await store.turns.begin(turn, "Hi", new_session=True)
    assert await store.responses.forget("ada", turn.turn_id, key_id="laptop")

    _, forgotten = await recorded(store)
    assert forgotten == AuditEvent(AuditAction.RESPONSE_DELETED, "ada", key_id="laptop", **ids(turn))
    assert (await store.responses.brought(turn.turn_id)).response is None


@promise("every call, decision and deletion is in the audit, which nothing changes")
async def test_a_name_of_any_length_is_recorded_in_few_characters(store: EngineStore) -> None:
    long = "marker-in-a-name" * 50_000
    turn = await begin(store.turns, long[:1_000], None, "Hi")
    invented, known = (replace(tool_call(), name=long) for _ in range(2))
    await store.calls.add_round(
        turn, assistant(invented, known), [], {each.correlation_id: REFUSED for each in (invented, known)}, {},
        {known.correlation_id: long},
    )  # fmt: skip

    started, unknown, named = await recorded(store)
    assert "marker" not in unknown.tool
    assert (named.tool, named.server) == (fitted(long, 64), fitted(long, 64))
    assert fitted(long, 64) != fitted(long + "x", 64)
    assert started.subject == fitted(long[:1_000], 256)
    assert max(len(value) for each in (started, unknown, named) for value in astuple(each)) == 256
    assert max(len(each.tool) for each in (unknown, named)) == 64
    facts = await store.database.read("SELECT payload FROM outbox WHERE event_type = 'ToolCallFinished' ORDER BY seq")
    assert [json.loads(fact)["toolName"] for (fact,) in facts] == [fitted(long, 64), long]


def test_a_digest_needs_the_key_of_its_store_and_not_the_order_of_the_arguments() -> None:
    trail = AuditTrail(b"key")
    assert trail.digest({"a": 1, "b": 2}) == trail.digest({"b": 2, "a": 1})
    assert trail.digest({"a": 1}) != trail.digest({"a": 2})
    assert trail.digest({"a": 1}) != AuditTrail(b"other").digest({"a": 1})


async def test_the_key_of_the_digests_stays_the_same(open_database: OpenDatabase) -> None:
    keys: list[bytes] = []
    for _ in range(2):
        async with open_database() as database:
            keys.append(await read_digest_key(database, CLEAR))
    assert keys[0] == keys[1]
    assert len(keys[0]) == 32


async def test_a_single_event_is_committed_before_it_is_reported_as_recorded(store: EngineStore) -> None:
    event = AuditEvent(AuditAction.SIGNED_IN, "ada", key_id="page")
    await store.store.record(event)
    assert await recorded(store) == [event]


REFUSED_STATEMENTS = {
    "sqlite": ["REPLACE INTO audit SELECT 1, at, action, 'eve', '', '', '', '', '', '', '', '' FROM audit"],
    "postgres": [
        "INSERT INTO audit OVERRIDING SYSTEM VALUE"
        " SELECT 1, at, action, 'eve', '', '', '', '', '', '', '', '' FROM audit"
        " ON CONFLICT (seq) DO UPDATE SET subject = excluded.subject",
        "MERGE INTO audit USING meta ON true WHEN MATCHED THEN UPDATE SET subject = 'eve'",
        "TRUNCATE audit",
        "TRUNCATE audit_seals",
    ],
}


@promise("every call, decision and deletion is in the audit, which nothing changes")
async def test_the_database_refuses_to_change_delete_or_replace_an_event(
    store: EngineStore, request: pytest.FixtureRequest
) -> None:
    await begin(store.turns, "ada", None, "Hi")
    before = await recorded(store)

    dialect = "sqlite" if "sqlite" in request.node.name else "postgres"
    for statement in ("UPDATE audit SET subject = 'eve'", "DELETE FROM audit", *REFUSED_STATEMENTS[dialect]):
        with pytest.raises(INTEGRITY_ERRORS, match=r"(events|seals) of the audit"):
            await store.database.write(lambda tx, statement=statement: tx.execute(statement))
    assert await recorded(store) == before


async def test_a_streamed_event_is_in_the_outbox_of_the_same_commit(store: EngineStore) -> None:
    turn = await begin(store.turns, "ada", None, "Hi")
    store, call = EngineStore(store.database, stream=True), tool_call()
    await store.calls.add_round(turn, assistant(call), [requested(turn, call)], {})

    [event] = [json.loads(row.payload) for row in store.offered if row.event_type == AUDIT_RECORDED]
    assert event.pop("at") > 0
    assert event == {
        "eventType": "AuditRecorded", "eventVersion": 1, "seq": 2, "action": "call.accepted", "subject": "ada",
        "sessionId": turn.session_id, "turnId": turn.turn_id, "correlationId": call.correlation_id,
        "server": "demo", "tool": "demo__add", "digest": DIGEST,
    }  # fmt: skip
    assert [row.event_type for row in await store.outbox.waiting(9)].count(AUDIT_RECORDED) == 1


# --- The command ---


async def test_the_command_reads_the_audit_while_an_engine_writes_it(
    open_database: OpenDatabase, path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    if "postgres" in request.node.name:
        monkeypatch.setenv("DATABASE_URL", request.getfixturevalue("postgres_url"))
    else:
        monkeypatch.setenv("OUTBOX_PATH", str(path))
    async with open_database() as database:
        store = EngineStore(database)
        turn = await begin(store.turns, "ada", None, "Hi")
        call = tool_call()
        await store.add_round(turn, call)
        await begin(store.turns, "eve\x1b[31m", None, "Hi")

        def shown(*arguments: str) -> list[str]:
            assert commands.run(["audit", *arguments]) == 0
            return capsys.readouterr().out.splitlines()

        assert len(shown()) == 3
        assert "\\x1b[31m" in shown()[2]
        assert [json.loads(line)["action"] for line in shown("--json", "--subject", "ada")] == [
            "turn.started", "call.accepted",
        ]  # fmt: skip
        [accepted] = shown("--json", "--tool", "demo")
        assert json.loads(accepted)["correlation_id"] == call.correlation_id
        assert shown("--json", "--tool", "demo__add") == [accepted]
        assert shown("--json", "--id", call.correlation_id, "--action", "call.accepted") == [accepted]
        assert shown("--since", "2999-01-01") == []
        assert len(shown("--since", "1h")) == 3
