"""Attacks by somebody who can write to Redis and has no key: no forged, changed or copied request runs a tool."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from plugins_contract.dead_letters import DeadLetters
from plugins_contract.encryption import CLEAR
from plugins_contract.keys import Keys
from plugins_contract.ledger import EngineLedger
from plugins_contract.messages import ToolCallRequested, approve, encode_request, new_id
from plugins_contract.outcomes import CallState
from plugins_contract.signing import RequestKeys
from tests.integration.demo import Demo
from tests.marks import promise
from tests.support.waiting import wait_until, wait_until_is
from tests.support.working import Caller, calling, working

OLD, NEW, FOREIGN = "o" * 32, "n" * 32, "f" * 32
KEYS = Keys()


@pytest.fixture
async def caller(redis: Redis, redis_url: str, files: tuple[Path, Path]) -> AsyncGenerator[Caller]:
    """The producer's side of a worker that accepts two keys."""
    config, keys = files
    async with calling(redis_url) as caller, working(redis_url, config, request_keys_file=keys):
        yield caller


@pytest.fixture
def files(demo: Demo, tmp_path: Path) -> tuple[Path, Path]:
    """The servers file and the keys of the worker. No tool has done anything yet."""
    demo.log.unlink(missing_ok=True)
    config, keys = tmp_path / "mcp.json", tmp_path / "keys"
    config.write_text(json.dumps({"mcpServers": {"demo": {"url": demo.url}}}))
    keys.write_text(f"# the first one signs\n{NEW}\n\n{OLD}\n")
    return config, keys


async def request_of(caller: Caller, **changes: Any) -> ToolCallRequested:
    add = {"server": "demo", "tool": "add_note", "tool_name": "demo__add_note", "arguments": {"note": "x"}}
    return msgspec.structs.replace(await caller.request(), **(add | changes))


async def put(caller: Caller, event: bytes, **fields: bytes | str) -> None:
    await caller.redis.xadd(KEYS.requests, {"event": event, **fields})


def signed_by(secret: str) -> RequestKeys:
    return RequestKeys([secret])


async def test_requests_that_are_signed_with_any_of_the_keys_are_run_those_of_others_with_a_deadline_within_a_day(
    caller: Caller,
) -> None:
    for secret in (NEW, OLD):
        request = await request_of(caller)
        await EngineLedger(caller.redis, KEYS, signed_by(secret), cipher=CLEAR).enqueue(request)
        assert (await caller.outcome(request)).state is CallState.SUCCEEDED
    keys, day = signed_by(OLD), 24 * 3_600_000
    for deadline, state in ((60_000, "succeeded"), (day + 60_000, "dead"), (None, "dead")):
        request = await request_of(caller, deadline=await caller.now_ms() + (deadline or 0))
        event = encode_request(request)
        if deadline is None:
            event = json.dumps(json.loads(event) | {"deadline": None}).encode()
        await put(caller, event, signature=keys.sign(event, has_ledger=False))
        assert (await caller.outcome(request)).state == state


CHANGES: dict[str, Any] = {
    "tool": "increment_counter",
    "server": "other",
    "arguments": {"note": "y"},
    "execution_class": "repeatable",
    "deadline": 2_000_000_000_000,
    "subject": "somebody else",
    "session_id": "another",
    "correlation_id": new_id(),
}


@promise("requests are signed, and a worker with keys runs no other")
async def test_unsigned_forged_changed_and_foreign_requests_are_answered_and_not_run(
    caller: Caller, demo: Demo
) -> None:
    forged: list[ToolCallRequested] = []
    for keys in (RequestKeys(), signed_by(FOREIGN)):
        forged.append(request := await request_of(caller))
        await EngineLedger(caller.redis, KEYS, keys, cipher=CLEAR).enqueue(request)
    for field, value in CHANGES.items():
        request = await request_of(caller)
        signature = signed_by(NEW).sign(encode_request(request), has_ledger=False)
        changed = msgspec.structs.replace(request, **{field: value})
        changed = msgspec.structs.replace(changed, response_channel=KEYS.response(changed.correlation_id))
        forged.append(changed)
        await put(caller, encode_request(changed), signature=signature)
    for signature in ("", "0" * 64, "ä"):
        forged.append(request := await request_of(caller))
        await put(caller, encode_request(request), signature=signature)
    for request in forged:
        outcome = await caller.outcome(request)
        assert (outcome.state, outcome.error.code if outcome.error else "") == (CallState.DEAD, "PERMISSION_DENIED")
        assert "REQUEST_KEYS_FILE" in (outcome.error.message if outcome.error else "")

    # What says that it has a ledger and has none, and what names the channel of another call, is not answered.
    for signature in ("", "0" * 64, "ä"):
        await put(caller, encode_request(await request_of(caller)), signature=signature, ledger="1")
    victim = {"response_channel": KEYS.response("victim"), "mailbox": KEYS.mailbox("victim")}
    await put(caller, encode_request(await request_of(caller, **victim)))
    await wait_until_is(lambda: caller.redis.xlen(KEYS.dead), len(forged) + 4, what="the dead letters")
    assert await caller.redis.exists(*victim.values()) == 0
    assert demo.effects() == ""
    assert await caller.redis.xlen(KEYS.requests) == 0


async def test_a_copy_of_an_engines_request_does_not_run_again_without_its_ledger(caller: Caller, demo: Demo) -> None:
    """Without the mark `ledger` a worker creates a ledger for a request: an engine's signature does not allow that."""
    request, keys = await request_of(caller), signed_by(NEW)
    await EngineLedger(caller.redis, KEYS, keys, cipher=CLEAR).enqueue(request)
    assert (await caller.outcome(request)).state is CallState.SUCCEEDED
    await caller.redis.delete(KEYS.call(request.correlation_id), KEYS.response(request.correlation_id))

    event = encode_request(request)
    await put(caller, event, signature=keys.sign(event, has_ledger=True))
    assert (await caller.outcome(request)).state is CallState.DEAD
    assert len(demo.effects().splitlines()) == 1


# --- Approvals, and what the ledger says ---


@pytest.fixture
async def asking(redis: Redis, redis_url: str, demo: Demo, files: tuple[Path, Path]) -> AsyncGenerator[Caller]:
    """The producer's side of a worker whose tool needs approval."""
    config, keys = files
    options = {"tools": {"add_note": {"approval": "always"}}}
    config.write_text(json.dumps({"mcpServers": {"demo": {"url": demo.url, "callstream": options}}}))
    async with calling(redis_url) as caller, working(redis_url, config, request_keys_file=keys):
        yield caller


async def code_of(caller: Caller, request: ToolCallRequested) -> str:
    outcome = await caller.outcome(request)
    return str(outcome.error.code) if outcome.error else str(outcome.state)


async def test_a_tool_that_needs_approval_runs_only_as_it_was_approved_whoever_asks(asking: Caller, demo: Demo) -> None:
    signed = signed_by(NEW)
    engine = EngineLedger(asking.redis, KEYS, signed, cipher=CLEAR)
    approved = approve(await request_of(asking), "ann")
    other = msgspec.structs.replace(approve(await request_of(asking), "ann"), arguments={"note": "y"})
    for request in (approve(await request_of(asking), ""), other):
        await engine.enqueue(request)
        assert await code_of(asking, request) == "APPROVAL_REQUIRED"
    # Another producer, with a key and without the field: the previous release did not ask it either.
    for foreign in (await request_of(asking), other):
        request = msgspec.structs.replace(foreign, **ids(foreign))
        event = encode_request(request)
        await put(asking, event, signature=signed.sign(event, has_ledger=False))
        assert await code_of(asking, request) == "APPROVAL_REQUIRED"
    assert demo.effects() == ""

    await engine.enqueue(approved)
    assert await code_of(asking, approved) == "succeeded"
    mine = approve(await request_of(asking), "a person of the producer")
    await put(asking, encode_request(mine), signature=signed.sign(encode_request(mine), has_ledger=False))
    assert await code_of(asking, mine) == "succeeded"
    of_the_previous_release = await request_of(asking)
    assert b"approved" not in encode_request(of_the_previous_release)
    await engine.enqueue(of_the_previous_release)
    assert await code_of(asking, of_the_previous_release) == "succeeded"


def ids(request: ToolCallRequested) -> dict[str, str]:
    correlation_id = new_id()
    return {"correlation_id": correlation_id, "response_channel": KEYS.response(correlation_id)}


async def test_an_operator_with_a_key_signs_what_is_requeued_and_has_to_approve_it(asking: Caller) -> None:
    await put(asking, encode_request(approve(await request_of(asking), "a forged dead letter")))
    letters = DeadLetters(asking.redis, KEYS, signed_by(NEW), cipher=CLEAR)

    async def found() -> list[Any]:
        return [letter async for letter in letters.newest_first()]

    [letter] = await wait_until(found, 20, what="the dead letter")
    deadline = await asking.now_ms() + 60_000
    for approved_by, code in (("", "APPROVAL_REQUIRED"), ("operator", "succeeded")):
        new = letters.again(letter.request, deadline=deadline, approved_by=approved_by)
        await letters.requeue(letter, new)
        if not approved_by:
            assert await code_of(asking, new) == code
            await asking.redis.xadd(KEYS.dead, {"event": letter.event, "reason": "again"})
            [letter] = await found()
        else:
            assert await code_of(asking, new) == code
