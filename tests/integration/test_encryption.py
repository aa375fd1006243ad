"""Looking for a text in every key of Redis and in every page of the store, with encryption at rest; and its keys."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from callstream_runtime.connections import command_client
from callstream_runtime.encryption_keys import cipher_of, key_id
from dialog_engine.calls.subscriptions import Subscriptions
from dialog_engine.chat.outbox import DEFAULT_ROUTES, TurnFinished, TurnUsage
from dialog_engine.errors import ConfigurationError
from dialog_engine.identity.authenticator import NoCredentials
from dialog_engine.operators import commands
from dialog_engine.operators.encrypt import encrypt
from dialog_engine.operators.pages import PAGE_BYTES
from dialog_engine.relay.relay import Relay
from dialog_engine.storage.outbox import SqlOutbox
from dialog_engine.storage.schemas.sealed_columns import TABLES
from dialog_engine.storage.sealed import check_keys, follow_all_sealed
from dialog_engine.storage.sqlite_file import open_sqlite
from dialog_engine.storage.statements import open_value
from dialog_engine.wiring.engine import run_engine
from plugins_contract.dead_letters import DeadLetters
from plugins_contract.encryption import CLEAR, DecryptionError, fact_owner, open_request, seal_request
from plugins_contract.keys import Keys
from plugins_contract.ledger import Delivery, EngineLedger, WorkerLedger, decode_reply
from plugins_contract.messages import decode_request
from plugins_contract.outcomes import CallFinished, CallProgress, CallState, TextBlock, ToolOutcome
from tests.integration.engines import Engine, Model, Start, Stream, at_work, publish, running_engine, settings
from tests.integration.test_attacks_deletion import FIND
from tests.integration.test_store import write_everything
from tests.marks import promise
from tests.support.engine_stores import EngineStore, OpenDatabase, store_of
from tests.support.forked import forked_server
from tests.support.hidden import files_with, keys_with
from tests.support.ledger import CANCELLED, EXPIRED, Bench
from tests.support.long_sessions import CountedReads, write_session
from tests.support.waiting import wait_until, wait_until_is
from tests.support.working import working

MARKER = "the-hidden-marzipan"
LARGE = MARKER * 3000
"""More than a model is shown, and than a notification holds."""
OLD, NEW = "o" * 32, "n" * 32


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    return write_keys(tmp_path, NEW)


def write_keys(folder: Path, *secrets: str) -> Path:
    path = folder / "encryption.keys"
    path.write_text("\n".join(secrets))
    return path


def demo_servers(folder: Path) -> Path:
    config = folder / "mcp.json"
    server = forked_server("examples.demo_server", "--transport", "stdio") | {
        "env": {"DEMO_EFFECT_LOG": str(folder / "elsewhere" / "effects.jsonl")},
        "callstream": {"trust": True, "approval": "destructive"},
    }
    config.write_text(json.dumps({"mcpServers": {"demo": server}}))
    return config


@promise("with encryption at rest no text is readable in the store or in Redis")
async def test_no_key_and_no_page_holds_a_text_an_argument_or_a_result(
    tmp_path: Path, redis_url: str, redis: Redis, model: Model, keys_file: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    configured = settings(tmp_path, redis_url, model.url, encryption_keys_file=keys_file, facts_with_text=True)
    async with (
        working(redis_url, demo_servers(tmp_path), encryption_keys_file=keys_file),
        running_engine(configured) as engine,
    ):
        await wait_until(engine.offers, 30, what="the tools")
        model.will_call_with("demo__echo", {"text": MARKER})
        model.will_call_with("demo__echo", {"text": LARGE})
        model.will_call_with("demo__fail", {"reason": MARKER})
        model.will_say(f"Found {MARKER}.")
        events = await engine.chat(f"Where is {MARKER}?")
        states = [event.data["status"] for event in events if event.data.get("type") == "tool"]
        assert [state for state in states if state in ("succeeded", "failed")] == ["succeeded", "succeeded", "failed"]
        assert events[-1].data["reason"] == "stop"
        await wait_until_is(lambda: redis.xlen("events.ltm"), 1)
        await refuse_a_call(engine, model)
        assert await keys_with(redis, MARKER) == []
        assert files_with(tmp_path, MARKER) == []

        # It is all there for its owner.
        titles = [each["title"] for each in (await engine.client.get("/v1/sessions")).json()["sessions"]]
        assert f"Where is {MARKER}?" in titles
        assert (await engine.client.get("/v1/me/data")).text.count(MARKER) > 5
        replayed = await engine.events("GET", f"/v1/turns/{events[0].data['turnId']}/events")
        assert MARKER in repr(replayed)
    assert files_with(tmp_path, MARKER) == []

    async with running_engine(configured) as engine:
        replayed = await engine.events("GET", f"/v1/turns/{events[0].data['turnId']}/events")
        assert MARKER in repr(replayed)


async def refuse_a_call(engine: Engine, model: Model) -> None:
    """A turn whose call asks a person, who refuses it with the marker as the reason."""
    model.will_call_with("demo__delete_everything", {"token": MARKER})
    model.will_say("Then not.")
    turn_id = (await engine.begin("Delete it"))["turnId"]
    async with engine.stream("GET", f"/v1/turns/{turn_id}/events") as stream:
        while (data := (await stream.until("control")).data).get("status") != "asked":
            pass
        path = f"/v1/turns/{turn_id}/approvals/{data['toolCallId']}"
        refused = await engine.client.post(path, json={"decision": "refuse", "reason": MARKER})
        assert refused.status_code == 200, refused.text
        assert (await stream.until("done")).data["reason"] == "stop"


# --- The ledger ---


DONE = ToolOutcome(CallState.SUCCEEDED, (TextBlock(LARGE),))


@asynccontextmanager
async def begun_call(
    bench: Bench, redis_url: str, model: Model, folder: Path, keys_file: Path
) -> AsyncGenerator[tuple[Engine, Stream, Delivery, int]]:
    """An engine with a key, the stream of a turn, and its one call with its fence, which a worker has begun."""
    publish(redis_url, FIND)
    model.will_call_with("demo__find", {"what": MARKER})
    model.will_say("It is over.")
    configured = settings(folder, redis_url, model.url, encryption_keys_file=keys_file)
    async with (
        running_engine(configured) as engine,
        engine.stream("POST", "/v1/chat", json={"message": "Find it"}) as stream,
    ):
        await stream.until("control")
        taken = await wait_until(lambda: bench.next_delivery("w"), 20, what="the call")
        assert taken is not None
        yield engine, stream, taken, await bench.run(taken)


async def test_progress_a_reply_and_a_dead_letter_of_an_encrypted_request_are_encrypted(
    tmp_path: Path, redis_url: str, model: Model, bench: Bench, keys_file: Path
) -> None:
    cipher = cipher_of([NEW])
    worker = WorkerLedger(bench.redis, bench.keys, cipher)
    async with begun_call(bench, redis_url, model, tmp_path, keys_file) as (_, stream, taken, fence):
        assert taken.request.arguments == {}
        assert open_request(taken.request, cipher).arguments == {"what": MARKER}
        assert await worker.progress(taken.request, fence, CallProgress(0.5, message=MARKER))
        progress = await wait_for_progress(stream)
        assert progress["message"] == MARKER
        await worker.complete(taken, fence, DONE, dead_reason="kept for the test")
        assert (await stream.until("done")).data["reason"] == "stop"
        assert await keys_with(bench.redis, MARKER) == []

    letters = DeadLetters(bench.redis, bench.keys, cipher=cipher)
    [letter] = [letter async for letter in letters.newest_first()]
    assert letter.request is not None
    assert (letter.request.arguments, letter.outcome) == ({"what": MARKER}, DONE)
    again = await letters.requeue(letter, letters.again(letter.request, deadline=letter.request.deadline))
    assert again is not None
    [(_, fields)] = await bench.redis.xrange(bench.keys.requests)
    requeued = open_request(decode_request(fields[b"event"]), cipher)
    assert (requeued.correlation_id, requeued.arguments) == (again.correlation_id, {"what": MARKER})
    assert await keys_with(bench.redis, MARKER) == []


async def wait_for_progress(stream: Any) -> dict[str, Any]:
    while True:
        data = (await stream.until("control")).data
        if data.get("status") == "progress" or data.get("progress") is not None:
            return data["progress"] if isinstance(data.get("progress"), dict) else data


async def test_a_reply_whose_key_is_missing_ends_its_call_as_unknown_and_stays(bench: Bench) -> None:
    cipher = cipher_of([NEW])
    request = await bench.request()
    sealed = msgspec.structs.replace(request, sealed="x", event_version=2)
    engine = EngineLedger(bench.redis, bench.keys, cipher=CLEAR)
    await engine.enqueue(sealed)
    taken = await bench.deliver()
    await WorkerLedger(bench.redis, bench.keys, cipher).complete(taken, await bench.run(taken), DONE)

    answer = await engine.enqueue(sealed)
    outcome: Any = getattr(answer, "outcome", None)
    assert outcome.state is CallState.UNKNOWN
    assert f"key {key_id(NEW)}: add this key to ENCRYPTION_KEYS_FILE" in outcome.error.message
    [*_, (_, fields)] = await bench.redis.xrange(request.response_channel)
    assert decode_reply(fields[b"reply"], request.correlation_id, cipher=cipher) == CallFinished(DONE)


async def test_a_worker_without_the_key_refuses_by_name_and_loses_nothing(
    start: Start, tmp_path: Path, redis_url: str, bench: Bench, model: Model, keys_file: Path
) -> None:
    async with working(redis_url, demo_servers(tmp_path)), start(encryption_keys_file=keys_file) as engine:
        await wait_until(engine.offers, 30, what="the tools")
        model.will_call_with("demo__echo", {"text": MARKER})
        model.will_say("It did not work.")
        events = await engine.chat("Say it")
        assert "ENCRYPTION_KEYS_FILE" in repr(events)
    [letter] = [each async for each in DeadLetters(bench.redis, bench.keys, cipher=cipher_of([NEW])).newest_first()]
    assert letter.request is not None
    assert letter.request.arguments == {"text": MARKER}


# --- Keys ---


async def chat_with(start: Start, text: str, **changes: Any) -> str:
    """One turn of an engine of its own; every text of all sessions."""
    async with start(**changes) as engine:
        await engine.chat(text)
        return (await engine.client.get("/v1/me/data")).text


@promise("with encryption at rest no text is readable in the store or in Redis")
async def test_an_engine_without_a_key_of_its_store_does_not_start_and_names_it(
    start: Start, tmp_path: Path, redis_url: str, model: Model
) -> None:
    await chat_with(start, "Hi", encryption_keys_file=write_keys(tmp_path, OLD))
    named = f"ENCRYPTION_KEYS_FILE.* the key {key_id(OLD)}, which is not there"
    for changes in ({}, {"encryption_keys_file": write_keys(tmp_path, NEW)}):
        with pytest.raises(ConfigurationError, match=named):
            async with run_engine(
                settings(tmp_path, redis_url, model.url, **changes), asyncio.Event(), NoCredentials()
            ):
                pass


@promise("with encryption at rest no text is readable in the store or in Redis")
async def test_a_key_is_retired_by_the_command(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await chat_with(start, MARKER)
    await chat_with(start, MARKER, encryption_keys_file=write_keys(tmp_path, OLD))
    monkeypatch.setenv("OUTBOX_PATH", str(tmp_path / "engine.sqlite3"))
    monkeypatch.setenv("ENCRYPTION_KEYS_FILE", str(write_keys(tmp_path, NEW, OLD)))
    assert await asyncio.to_thread(commands.run, ["encrypt"]) == 0
    assert f"needs the key {key_id(NEW)}" in capsys.readouterr().out
    assert files_with(tmp_path, MARKER) == []
    assert key_id(OLD).encode() not in (tmp_path / "engine.sqlite3").read_bytes()

    only_new = write_keys(tmp_path, NEW)
    assert (await chat_with(start, "Hi", encryption_keys_file=only_new)).count(MARKER) >= 4
    assert await asyncio.to_thread(commands.run, ["encrypt", "--remove"]) == 0
    assert (await chat_with(start, "Hi")).count(MARKER) >= 4


async def test_every_column_with_a_text_is_encrypted_and_decrypted_by_the_command(open_database: OpenDatabase) -> None:
    cipher = cipher_of([NEW, OLD])
    async with open_database() as database:
        await write_everything(EngineStore(database))
        before = await contents(database)
        done = await encrypt(database, cipher)
        assert set(done.written) >= {table.name for table in TABLES} - {"meta"}
        assert MARKER not in repr(await contents(database))
        assert not (await encrypt(database, cipher)).written
        await encrypt(database, cipher, remove=True)
        assert await contents(database) == before


async def test_after_the_command_has_run_clear_values_are_refused_by_engines_that_run_and_that_start(
    open_database: OpenDatabase,
) -> None:
    running, starting, command = cipher_of([NEW]), cipher_of([NEW]), cipher_of([NEW])
    async with open_database() as database:
        await write_everything(EngineStore(database))
        async with at_work(partial(follow_all_sealed, database, running, look_seconds=0.05)):
            assert open_value(running, MARKER, "sessions.title", "s") == MARKER
            await encrypt(database, command)
            await wait_until(lambda: running.strict, what="the engine that runs")
        await check_keys(database, starting)
        for cipher in (running, starting):
            with pytest.raises(DecryptionError, match="not encrypted, and everything was"):
                open_value(cipher, MARKER, "sessions.title", "s")
            with pytest.raises(DecryptionError, match="not encrypted, and everything was"):
                open_value(cipher, b"{}", "tool_calls.outcome", "1")
            assert open_value(cipher, "", "sessions.title", "s") == ""
        await database.write(lambda tx: tx.execute("UPDATE sessions SET title = 'forged'"))
        with pytest.raises(DecryptionError):
            await encrypt(database, cipher_of([NEW]))
        await encrypt(database, cipher_of([NEW]), remove=True)
        after = cipher_of([NEW])
        await check_keys(database, after)
        assert not after.strict


async def test_a_clear_fact_that_waited_is_encrypted_by_the_command_and_a_later_one_is_not_published(
    open_database: OpenDatabase, redis_url: str, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    def fact(turn_id: str) -> TurnFinished:
        usage, reason = TurnUsage(1, 1), "stop"
        return TurnFinished(
            turn_id=turn_id, session_id="s", subject="a", reason=reason, usage=usage, user_message=MARKER, at=1
        )

    cipher = cipher_of([NEW])
    async with open_database() as database:
        store = store_of(database)
        await store.write(lambda tx: tx.publish(fact("waited")))
        await encrypt(database, cipher)
        await store.write(lambda tx: tx.publish(fact("forged")))
        await check_keys(database, cipher)
        async with (
            aclosing(command_client(redis_url)) as commands_of,
            at_work(
                Relay(
                    SqlOutbox(store),
                    commands_of,
                    EngineLedger(commands_of, Keys(), cipher=CLEAR),
                    Keys(),
                    DEFAULT_ROUTES,
                    Subscriptions(),
                    cipher=cipher,
                ).run
            ),
        ):
            await wait_until(lambda: "somebody without a key wrote it" in caplog.text, what="the refusal")
            await wait_until(lambda: redis.xlen("events.ltm"), what="the fact that waited")
        with pytest.raises(DecryptionError):
            await encrypt(database, cipher)
    entries: Any = await redis.xrange("events.ltm")
    [(_, fields)] = entries
    published = msgspec.json.decode(fields[b"event"], type=TurnFinished)
    assert published.user_message
    assert cipher.open_text(published.user_message, fact_owner("waited", "userMessage")) == MARKER


async def test_a_clear_reply_to_an_encrypted_request_ends_its_call_at_once(
    tmp_path: Path, redis_url: str, model: Model, bench: Bench, keys_file: Path
) -> None:
    async with begun_call(bench, redis_url, model, tmp_path, keys_file) as (engine, stream, taken, fence):
        clear = msgspec.structs.replace(taken.request, sealed=msgspec.UNSET)
        forger = WorkerLedger(bench.redis, bench.keys, cipher=CLEAR)
        await forger.progress(clear, fence, CallProgress(0.5, message="forged progress"))
        forged = ToolOutcome(CallState.SUCCEEDED, (TextBlock("forged result"),))
        await forger.complete(replace(taken, request=clear), fence, forged)
        assert (await stream.until("done")).data["reason"] == "stop"
        shown = (await engine.client.get("/v1/me/data")).text
        assert "OUTCOME_UNKNOWN" in shown, shown
        assert "forged" not in shown


async def test_what_engine_and_worker_say_about_an_encrypted_call_is_encrypted_too(bench: Bench) -> None:
    cipher = cipher_of([NEW])
    engine, worker = EngineLedger(bench.redis, bench.keys, cipher=cipher), WorkerLedger(bench.redis, bench.keys, cipher)
    stopped, late = [seal_request(await bench.request(expires_in_ms=-1), cipher) for _ in range(2)]
    for request in (late, stopped):
        await engine.enqueue(request)
    await engine.cancel(stopped, CANCELLED)
    delivery = replace(await bench.deliver(), request=late)
    await worker.start(delivery, max_starts=1, expired=EXPIRED)
    for request, state in ((stopped, CallState.CANCELLED), (late, CallState.EXPIRED)):
        answer: Any = await engine.enqueue(request)
        assert answer.outcome.state is state


async def contents(database: Any) -> list[Any]:
    return [await database.read(f"SELECT * FROM {table.name} ORDER BY 1") for table in TABLES if table.name != "meta"]  # noqa: S608


async def test_large_values_are_not_encrypted_together(open_database: OpenDatabase) -> None:
    async with open_database() as database:
        await database.write(lambda tx: write_session(tx, "s", "ann", 100, image="A" * (PAGE_BYTES // 5)))
        counted = CountedReads(database)
        assert (await encrypt(counted, cipher_of([NEW]))).written["tool_calls"] == 40
        assert counted.largest_read < PAGE_BYTES * 1.5


async def test_every_column_that_can_hold_a_text_is_among_the_sealed_ones(tmp_path: Path) -> None:
    """A new column of text or bytes must be named here or there."""
    ids_names_and_states = {
        "action", "chosen_model", "chosen_tools", "correlation_id", "credential", "digest", "engine_id", "error",
        "error_code",
        "event_id", "event_type", "execution_class", "hash", "held", "key", "key_id", "leaf_moved_after",
        "leaf_turn_id", "message_key", "model", "name", "offered_to", "outcome", "owner", "parent_turn_id", "payload",
        "addition_id", "name_key", "question_digest",
        "reason", "release", "role", "roles", "server", "session_id", "status", "subject", "text_digest", "tool",
        "tool_call_id", "tool_mode", "tool_title", "traceparent", "traces", "turn_id",
    }  # fmt: skip
    async with open_sqlite(tmp_path / "engine.sqlite3") as database:
        rows = await database.read(
            "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c"
            " WHERE m.type = 'table' AND c.type IN ('TEXT', 'BLOB') AND m.name NOT LIKE 'sqlite%'"
        )
    sealed = {(table.name, column) for table in TABLES for column in table.columns}
    left = {row for row in rows if row not in sealed}
    assert {column for _, column in left} <= ids_names_and_states
    assert ("audit", "outcome") in left
    assert ("tool_calls", "outcome") not in left
