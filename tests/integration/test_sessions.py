"""Servers that keep state: each conversation or subject has a session of its own, in one worker."""

import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest

from deploy.local.ports import free_port
from plugins_contract.errors import ErrorCode
from plugins_contract.ledger.session_leases import forget_sessions
from plugins_contract.outcomes import ToolOutcome
from plugins_contract.pools import OWN_POOL
from plugins_contract.sessions import SessionMode, owner
from plugins_mcp.mcp.own_sessions import SPARED_SECONDS
from tests.marks import exhaustive, promise
from tests.support.forked import forked
from tests.support.notes import Notes, config, text, workers
from tests.support.processes import Process
from tests.support.quick_worker import QUICK
from tests.support.waiting import wait_until
from tests.support.working import Caller, working


@pytest.fixture
def notes(caller: Caller) -> Notes:
    return Notes(caller)


@promise("two conversations do not see each other's state at a server that keeps it, with any number of workers")
@pytest.mark.parametrize(("count", "old"), [pytest.param(1, False, marks=exhaustive("fewer workers")), (3, True)])
async def test_conversations_do_not_see_each_others_state(
    notes: Notes, redis_url: str, tmp_path: Path, count: int, old: bool
) -> None:
    """Also where an engine of an earlier release puts the calls before all workers."""
    async with workers(notes, redis_url, config(tmp_path), count):
        names = ["one", "two", "three", "four"]
        for step in range(3):
            said = [await notes.ask(name, text=f"{name}{step}", old=old) for name in names]
            for name, request in zip(names, said, strict=True):
                outcome = await notes.caller.outcome(request)
                assert text(outcome) == " ".join(f"{name}{n}" for n in range(step + 1))
                assert not outcome.state_lost
        streams = await notes.directory.streams()  # those that metrics count
        assert sum(OWN_POOL in each for each in streams) == count


async def test_a_session_of_a_trusted_server_may_call_what_was_accepted_for_all_and_nothing_else(
    notes: Notes, redis_url: str, tmp_path: Path
) -> None:
    async with workers(notes, redis_url, config(tmp_path, trust=True), 1):
        assert await notes.result("one", text="a") == "a"
        assert await notes.result("one", "learn") == "learnt"

        async def is_held_back() -> bool:
            error = (await notes.outcome("one", "forget")).error
            return error is not None and error.code is ErrorCode.DISABLED and "this session" in error.message

        await wait_until(is_held_back, 20)
        assert await notes.result("one", text="b") == "a b"
        catalog = await notes.redis.hget(notes.keys.catalog_of("notes"), "catalog")
        assert {tool["tool"] for tool in msgspec.json.decode(catalog)["tools"]} == {"note", "where", "die", "learn"}


async def test_two_first_calls_of_a_reply_open_one_session(notes: Notes, redis_url: str, tmp_path: Path) -> None:
    async with workers(notes, redis_url, config(tmp_path), 3):
        asked = [await notes.ask("one", "where") for _ in range(4)]
        assert len({text(await notes.caller.outcome(each)) for each in asked}) == 1
        await wait_until(partial(has_children, notes, 1), 20)


async def has_children(notes: Notes, count: int) -> bool:
    return await notes.children() == count


async def test_the_conversations_of_a_subject_share_its_state_and_no_other_subject_does(
    notes: Notes, redis_url: str, tmp_path: Path
) -> None:
    async with workers(notes, redis_url, config(tmp_path, session="subject"), 2):
        assert await notes.result("one", text="a") == "a"
        assert await notes.result("two", text="b") == "a b"
        assert await notes.result("three", text="c", subject="bob") == "c"
        mine, theirs = [(await notes.result("x", "where", subject=each)).split() for each in ("ann", "bob")]
        assert mine[1] == f"/notes/{owner(SessionMode.SUBJECT, 'ann')}"
        assert mine != theirs


@promise("a session that nobody uses is ended, and its process too")
async def test_idle_sessions_end(notes: Notes, redis_url: str, tmp_path: Path) -> None:
    async with workers(notes, redis_url, config(tmp_path, sessionIdleMs=400), 2):
        for name in ("one", "two", "three"):
            await notes.result(name, text="a")
        await wait_until(partial(has_children, notes, 0), 20)
        again = await notes.outcome("one", text="b")
        assert (text(again), again.state_lost) == ("b", True)


async def test_a_deleted_conversation_keeps_no_process(notes: Notes, redis_url: str, tmp_path: Path) -> None:
    async with workers(notes, redis_url, config(tmp_path), 1):
        await notes.result("one", text="a")
        await notes.result("two", text="a")
        await deleted(notes, "one")
        await wait_until(partial(has_children, notes, 1), 20)
        assert await notes.result("two", text="b") == "a b"
        assert await notes.result("one", text="b") == "b"


@promise("the deletion of a conversation or of a subject ends what MCP servers keep for it")
async def test_a_deletion_ends_a_session_before_its_lease_is_renewed(
    notes: Notes, redis_url: str, tmp_path: Path
) -> None:
    seldom = replace(QUICK, renew=60.0)
    async with working(redis_url, config(tmp_path), seldom):
        await notes.ready(1)
        await notes.result("one", text="a")
        await deleted(notes, "one")
        await wait_until(partial(has_children, notes, 0), 20)


async def deleted(notes: Notes, conversation: str) -> None:
    await forget_sessions(notes.redis, notes.keys, [owner(SessionMode.CONVERSATION, conversation)])


@promise("a thousand conversations that want a session of their own are bounded, refused by name, and hurt no other")
@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=exhaustive("all of the thousand"))])
async def test_more_sessions_than_a_server_may_have_are_refused(
    notes: Notes, redis_url: str, tmp_path: Path, count: int
) -> None:
    async with workers(notes, redis_url, config(tmp_path, maxSessions=3, maxSessionsPerSubject=2), 1):
        assert await notes.result("theirs", text="a", subject="bob") == "a"
        began = time.monotonic()
        asked = [await notes.ask(f"c{n}", text="a") for n in range(count)]
        assert await notes.result("theirs", text="b", subject="bob") == "a b", "in the middle of them"
        outcomes = [await notes.caller.outcome(each, 60) for each in asked]
        refused = [each.error for each in outcomes if each.error]
        turns = 1 + (time.monotonic() - began) // SPARED_SECONDS  # then a session that nobody uses gives up its place
        assert 2 <= len(outcomes) - len(refused) <= 2 * turns
        assert {each.code for each in refused} == {ErrorCode.OVERLOADED}
        assert "too many open sessions of this user (2)" in refused[0].message
        assert await notes.result("theirs", text="c", subject="bob") == "a b c"
        full = (await notes.outcome("more", text="a", subject="eve")).error
        assert full is not None
        assert "too many open sessions (3)" in full.message
        assert await notes.children() <= 3


async def test_more_sessions_than_a_worker_may_have_of_all_servers_are_refused(
    notes: Notes, redis_url: str, tmp_path: Path
) -> None:
    path = config(tmp_path)
    entry = json.loads(path.read_text())["mcpServers"]["notes"]
    path.write_text(json.dumps({"mcpServers": {"notes": entry, "other": entry}}))
    async with working(redis_url, path, worker_max_sessions=2):
        await notes.ready(1)
        assert await notes.result("one", text="a") == "a"
        assert await notes.result("one", text="b", server="other") == "b"
        full = (await notes.outcome("two", text="a", subject="bob")).error
        assert full is not None
        assert full.code is ErrorCode.OVERLOADED
        assert "too many open sessions of all MCP servers (2); try again" in full.message
        assert await notes.result("one", text="c") == "a c"


async def test_what_was_refused_is_not_said_to_be_lost_later(notes: Notes, redis_url: str, tmp_path: Path) -> None:
    async with workers(notes, redis_url, config(tmp_path, maxSessions=1), 1):
        await notes.result("one", text="a")
        refused = [await notes.ask("two", text="a") for _ in range(5)]
        assert all([(await notes.caller.outcome(each)).error for each in refused])
        await deleted(notes, "one")

        async def has_room() -> ToolOutcome | None:
            outcome = await notes.outcome("two", text="b")
            return None if outcome.error else outcome

        outcome = await wait_until(has_room, 20)
        assert outcome is not None
        assert not outcome.state_lost


async def test_a_worker_that_knows_no_sessions_gets_no_call_of_an_engine_that_does(
    notes: Notes, redis_url: str, tmp_path: Path
) -> None:
    """One of an earlier release announces itself like one with a shared server."""
    folders = [tmp_path / name for name in ("old", "new")]
    for folder in folders:
        folder.mkdir()
    old, new = config(folders[0], session="shared"), config(folders[1])
    async with working(redis_url, old), working(redis_url, new):
        await notes.ready(1)
        for step in range(3):
            for name in ("one", "two"):
                assert await notes.result(name, text=name) == " ".join([name] * (step + 1))


@promise("what somebody writes into Redis about sessions opens no state of another conversation")
async def test_a_forged_session_key_opens_no_state_of_another_conversation(
    notes: Notes, redis_url: str, tmp_path: Path
) -> None:
    async with workers(notes, redis_url, config(tmp_path), 2):
        await notes.result("secret", text="s3cret")
        key = partial(owner, SessionMode.CONVERSATION)
        rows = await notes.redis.hgetall(notes.keys.session(key("secret")))
        await notes.redis.hset(notes.keys.session(key("mine")), mapping=rows)
        assert await notes.result("mine", text="a") == "a"
        assert await notes.result("secret", text="b") == "s3cret b"


@pytest.mark.parametrize("protocol", ["legacy"])
async def test_a_remote_server_that_keeps_sessions_gets_one_for_each_conversation(
    notes: Notes, redis_url: str, tmp_path: Path, protocol: str
) -> None:
    port = free_port()
    server = Process(forked("tests.integration.servers.notes", "--port", str(port)))
    options = {"session": "conversation", "protocol": protocol}
    entry = {"url": f"http://127.0.0.1:{port}/mcp", "callstream": options}
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"notes": entry}}))
    try:
        async with workers(notes, redis_url, path, 2):
            for step in range(2):
                for name in ("one", "two"):
                    assert await notes.result(name, text=name) == " ".join([name] * (step + 1))
    finally:
        server.close()
