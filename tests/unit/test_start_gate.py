"""When an engine that has started says that it is ready."""

import pytest

from dialog_engine.observe.status import FIRST_WORKER_SECONDS, StartGate
from dialog_engine.tool_calls.ports import ServerView
from plugins_contract.catalog import ServerCatalog, ServerState, ToolEntry
from tests.marks import promise
from tests.support.hand_clock import HandClock

WAIT_SECONDS = 30.0
UNLISTED = ServerCatalog(server="demo")
LISTED = ServerCatalog(server="demo", tools=(ToolEntry(name="demo__add", server="demo", tool="add", input_schema={}),))
STARTING = ServerView(UNLISTED, ServerState.CONNECTING, None, 1)
READY = ServerView(LISTED, ServerState.READY, None, 1)


@pytest.fixture
def watch() -> HandClock:
    return HandClock()


@pytest.fixture
def gate(watch: HandClock) -> StartGate:
    return StartGate(WAIT_SECONDS, now=watch)


@pytest.mark.parametrize(
    ("view", "opened"),
    [
        (STARTING, False),
        (READY, True),
        (ServerView(UNLISTED, ServerState.FAILED, "no route", 1), True),
        (ServerView(UNLISTED, ServerState.DISABLED, "off", 1), True),
        (ServerView(LISTED, ServerState.CONNECTING, None, 1), False),
    ],
    ids=["starting", "ready", "failed", "disabled", "listed by an earlier worker and not reached yet"],
)
def test_it_waits_for_servers_that_were_neither_reached_nor_failed(
    gate: StartGate, view: ServerView, opened: bool
) -> None:
    assert gate.opened([READY, view], workers=1, redis=True) is opened


@pytest.mark.parametrize(
    ("seconds", "workers", "redis"),
    [
        (WAIT_SECONDS, 1, True),
        (FIRST_WORKER_SECONDS, 0, True),
        (FIRST_WORKER_SECONDS, 0, False),
        (FIRST_WORKER_SECONDS, 1, False),
    ],
)
def test_it_waits_for_servers_and_a_shorter_time_for_redis_and_a_first_worker(
    gate: StartGate, watch: HandClock, seconds: float, workers: int, redis: bool
) -> None:
    servers = [STARTING] if workers and redis else []
    watch.now += seconds - 0.1
    assert not gate.opened(servers, workers=workers, redis=redis)
    watch.now += 0.1
    assert gate.opened(servers, workers=workers, redis=redis)


def test_a_worker_that_appears_late_has_the_whole_time_to_list_its_servers(gate: StartGate, watch: HandClock) -> None:
    watch.now += FIRST_WORKER_SECONDS - 0.1
    assert not gate.opened([], workers=0, redis=True)
    watch.now += 1
    assert not gate.opened([STARTING], workers=1, redis=True)


@promise("the engine waits for tools at its start only, and for a bounded time")
def test_once_open_it_stays_open(gate: StartGate) -> None:
    assert gate.opened([READY], workers=1, redis=True)
    assert gate.opened([READY, STARTING], workers=1, redis=True)
    assert gate.opened([], workers=0, redis=False)


def test_without_tools_there_is_nothing_to_wait_for(gate: StartGate) -> None:
    assert gate.opened([], workers=None, redis=False)
