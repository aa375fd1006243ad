"""State of MCP servers that is lost, and what is not: killed workers and children, lost replies of Redis."""

import asyncio
import os
import signal
from functools import partial
from hashlib import sha1
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dialog_engine.tool_calls.results.texts import STATE_LOST
from plugins_contract.ledger.scripts import load
from plugins_contract.outcomes import CallState
from tests.chaos.faults import Faults
from tests.chaos.proxy import Proxy
from tests.integration.engines import Engine, Event, Model, running_engine, settings
from tests.marks import exhaustive, promise
from tests.support.notes import Notes, config, holder, processes, text, workers
from tests.support.waiting import wait_until
from tests.support.working import Caller, working


@pytest.fixture
def notes(caller: Caller) -> Notes:
    return Notes(caller)


@promise("a worker that holds sessions is killed: model and user are told that state is lost, once, and nobody else is")
@exhaustive("twelve sessions, and the death of a worker of two")
async def test_a_holder_is_killed(notes: Notes, redis_url: str, tmp_path: Path) -> None:
    async with processes(notes, redis_url, config(tmp_path), 2):
        names = ["one", "two", "three", "four"]
        for name in names:
            assert await notes.result(name, text="a") == "a"
        held = {name: await holder(notes, name) for name in names}
        assert len({*held.values()}) == 2, "the sessions are spread"
        running = await notes.ask("one", text="b", seconds=60)
        await notes.caller.started(running)
        os.kill(held["one"], signal.SIGKILL)
        assert (await notes.caller.outcome(running, 30)).state is CallState.UNKNOWN
        for name in names:
            first, second = [await notes.outcome(name, text=each) for each in "cd"]
            lost = held[name] == held["one"]
            assert (first.state_lost, second.state_lost) == (lost, False)
            assert text(second) == ("c d" if lost else "a c d")


async def test_a_child_that_dies_loses_the_state_of_its_session_alone(
    notes: Notes, redis_url: str, tmp_path: Path
) -> None:
    async with workers(notes, redis_url, config(tmp_path), 1):
        for name in ("one", "two"):
            await notes.result(name, text="a")
        assert (await notes.outcome("one", "die")).state is CallState.UNKNOWN
        first = await notes.outcome("one", text="b")
        assert (text(first), first.state_lost) == ("b", True)
        other = await notes.outcome("two", text="b")
        assert (text(other), other.state_lost) == ("a b", False)


async def test_a_worker_that_stops_leaves_its_sessions_to_others(notes: Notes, redis_url: str, tmp_path: Path) -> None:
    path = config(tmp_path)
    async with working(redis_url, path) as stopping:
        await notes.ready(1)
        await notes.result("one", text="a")
        async with working(redis_url, path):
            await notes.ready(2)
            stopping.set()
            again = await notes.outcome("one", text="b")
            assert (text(again), again.state_lost) == ("b", True)


async def test_a_lost_reply_of_redis_is_not_taken_for_lost_state(notes: Notes, redis_url: str, tmp_path: Path) -> None:
    with Proxy(urlsplit(redis_url).port or 0) as proxy:
        async with workers(notes, proxy.url, config(tmp_path), 1):
            proxy.set(Faults(lose_first_of_each=True))
            first = await notes.outcome("one", text="a")
            assert (text(first), first.state_lost) == ("a", False)
            lost = await asyncio.to_thread(proxy.counts)
    assert f"EVALSHA {sha1(load('hold').encode(), usedforsecurity=False).hexdigest()}" in lost.lost


@promise("a worker that holds sessions is killed: model and user are told that state is lost, once, and nobody else is")
async def test_model_user_and_history_have_the_loss_of_state_of_a_killed_worker(
    notes: Notes, redis_url: str, tmp_path: Path, model: Model
) -> None:
    path = config(tmp_path, timeoutMs=120_000)
    configured = settings(tmp_path, redis_url, model.url)
    async with processes(notes, redis_url, path, 1) as [worker], running_engine(configured) as engine:
        await wait_until(partial(engine.offers, 4), 30, what="the tools")
        session_id = (await engine.client.post("/v1/sessions")).json()["sessionId"]
        before, told = await noted(engine, model, session_id, "a")
        assert ("stateLost" in before, STATE_LOST in told) == (False, False)
        worker.kill()
        async with processes(notes, redis_url, path, 1):
            lost, told = await noted(engine, model, session_id, "b")
            after, told_later = await noted(engine, model, session_id, "c")
        assert (lost["stateLost"], STATE_LOST in told) == (True, True)
        assert "stateLost" not in after
        assert STATE_LOST not in told_later
        messages = (await engine.client.get(f"/v1/sessions/{session_id}/messages")).json()["messages"]
        calls = [call for each in messages for call in each.get("toolCalls", ())]
        assert [call.get("stateLost", False) for call in calls] == [False, True, False]


async def noted(engine: Engine, model: Model, session_id: str, note: str) -> tuple[dict[str, object], str]:
    """A turn that keeps a note: the last event of its call, and its result as the model has it."""
    model.will_call_with("notes__note", {"text": note})
    model.will_say("Kept.")
    events: list[Event] = await engine.chat("Keep this", sessionId=session_id)
    steps = [each.data for each in events if each.name == "control" and each.data["type"] == "tool"]
    assert steps[-1]["status"] == "succeeded"
    [*_, result] = [each["content"] for each in model.asked[-1]["messages"] if each["role"] == "tool"]
    return steps[-1], result
