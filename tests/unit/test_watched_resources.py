"""Which resources of a server are watched, what is reported of them, and what an engine shows of it."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from mcp import types as sdk

from dialog_engine.chat.read_resources import ReadResources
from dialog_engine.model import Done, DoneReason, Reset, ResourceUpdated, ToolCall, ToolStatus, ToolStep, Turn, Usage
from plugins_contract.sessions import SessionMode, owner
from plugins_contract.signing import RequestKeys
from plugins_contract.updates import (
    MAX_WATCHED,
    WATCHED_MS,
    ResourcesUpdated,
    decode_update,
    encode_update,
    watched_until,
    watched_value,
)
from plugins_mcp.mcp.watched import OF_ALL, Updates, Watched, Whose
from tests.marks import promise
from tests.support.waiting import wait_until

OFFERED = sdk.ResourcesCapability(subscribe=True)


async def read(watched: Watched, *uris: str) -> None:
    """Read resources of a server that subscribes at once."""
    for uri in uris:
        async with asyncio.TaskGroup() as group:
            group.create_task(subscribed(watched))
            async with watched.read(uri):
                pass


async def subscribed(watched: Watched, *, anew: bool = False) -> None:
    watched.subscribed(watched.begin(), anew=anew)


async def reported(updates: Updates, watched: Watched) -> list[str]:
    task = asyncio.create_task(watched.report())
    await wait_until(lambda: updates.updated, what="a report")
    task.cancel()
    [(_, uris)] = updates.updated.items()
    updates.updated.clear()
    return [*uris]


@promise("resources are watched once per server, a bounded number of them, and reported at most once in a second")
async def test_what_was_read_is_watched_and_the_first_go_when_there_are_too_many() -> None:
    updates = Updates()
    watched = Watched("docs", updates)
    async with watched.read("x://0"):
        assert len(watched) == 0  # the server takes no subscriptions
    with watched.in_session(OFFERED):
        uris = [f"x://{number}" for number in range(MAX_WATCHED + 1)]
        await read(watched, *uris, "x://1")
        assert watched.begin() == {*uris[1:]}
        assert [*updates.wanted] == [("docs", uri) for uri in uris]
        with pytest.raises(ValueError, match="gone"):
            async with watched.read("x://new"):
                raise ValueError("gone")
        assert "x://new" not in watched.begin()


@promise("resources are watched once per server, a bounded number of them, and reported at most once in a second")
async def test_a_flood_of_updates_is_one_report() -> None:
    updates = Updates()
    watched = Watched("docs", updates)
    with watched.in_session(OFFERED):
        await read(watched, "x://a", "x://dir")
    for number in range(1_000):
        watched.updated("x://a")
        watched.updated(f"x://other/{number}")
        watched.updated(f"x://dir/{number}")
    assert await reported(updates, watched) == ["x://a", "x://dir"]


async def test_what_may_have_changed_without_a_subscription_is_reported_as_updated() -> None:
    updates = Updates()
    watched = Watched("docs", updates)
    watched.learn({"x://old": 60.0})  # another worker had watched it before this one began
    watched.subscribed(watched.begin(), anew=True)
    assert await reported(updates, watched) == ["x://old"]
    watched.learn({"x://old": 60.0, "x://later": 60.0})
    watched.subscribed(watched.begin(), anew=False)
    assert updates.updated == {}
    watched.subscribed(watched.begin(), anew=True)  # in the next session
    assert await reported(updates, watched) == ["x://old", "x://later"]
    watched.learn({"x://old": -1.0})
    assert watched.begin() == {"x://old", "x://later"}


async def test_what_a_session_of_ones_own_watches_is_not_shared_and_is_reported_for_its_subject() -> None:
    updates = Updates()
    whose = Whose(owner(SessionMode.SUBJECT, "ann"), "ann")
    watched = Watched("docs", updates, whose)
    with watched.in_session(OFFERED):
        await read(watched, "x://a")
    assert updates.wanted == {}
    watched.updated("x://a")
    task = asyncio.create_task(watched.report())
    await wait_until(lambda: updates.updated, what="a report")
    task.cancel()
    assert [*updates.updated] == [("docs", whose)] != [("docs", OF_ALL)]


async def test_a_read_does_not_wait_long_for_its_subscription() -> None:
    watched = Watched("docs", Updates())
    async with AsyncExitStack() as stack:
        stack.enter_context(watched.in_session(OFFERED))
        await stack.enter_async_context(watched.read("x://a"))  # nobody subscribes
    assert watched.begin() == {"x://a"}


def test_only_workers_say_what_is_watched() -> None:
    keys, others, now = RequestKeys(["k" * 32]), RequestKeys(["o" * 32]), 10**12
    value = watched_value(keys, "docs", "x://a", now + WATCHED_MS).encode()
    assert watched_until(keys, "docs", b"x://a", value, now) == now + WATCHED_MS
    for server, uri, data, at in (
        ("other", b"x://a", value, now),
        ("docs", b"x://b", value, now),
        ("docs", b"x://a", value, now + WATCHED_MS),
        ("docs", b"x://a", watched_value(others, "docs", "x://a", now + 1).encode(), now),
        ("docs", b"x://a", watched_value(keys, "docs", "x://a", now + 10 * WATCHED_MS).encode(), now),
        ("docs", b"x://a", b"no value", now),
    ):
        assert watched_until(keys, server, uri, data, at) is None


def test_an_announcement_is_told_from_the_other_messages_of_the_channel() -> None:
    update = ResourcesUpdated(server="docs", uris=("x://a",), owner="o", subject="ann")
    assert decode_update(encode_update(update)) == update
    for other in (b'{"kind":"catalog"}', b'{"kind":"cancel","correlationId":"c"}', b'{"server":1,"uris":2}', b"no"):
        assert decode_update(other) is None


# --- In the turn ---


def step(uri: str, status: ToolStatus = ToolStatus.SUCCEEDED, name: str = "read_resource") -> ToolStep:
    return ToolStep(status, ToolCall("c", "id", name, f'{{"server": "docs", "uri": "{uri}"}}'), "callstream", 1)


def shown(read: ReadResources, turn: Turn, update: ResourcesUpdated) -> list[str]:
    events = [*read.shown(turn, update)]
    assert all(event == ResourceUpdated(update.server, event.uri) for event in events)
    return [event.uri for event in events]


def test_a_turn_shows_updates_of_what_it_has_read_also_where_another_engine_began_it() -> None:
    turn, read = Turn("t", "s", "ann"), ReadResources()
    read.follow(step("x://a"))
    read.follow(step("x://failed", ToolStatus.FAILED))
    read.follow(step("x://other", name="notes__read"))
    read.follow(Reset("why", (step("x://b"),)))
    update = ResourcesUpdated(server="docs", uris=("x://a", "x://failed", "x://other", "x://b"))
    assert shown(read, turn, update) == ["x://a", "x://b"]
    assert shown(read, turn, ResourcesUpdated(server="other", uris=("x://a",))) == []
    read.follow(Done("t", DoneReason.STOP, Usage(), None))
    assert shown(read, turn, update) == []


@promise("what a session of a subject or conversation says of its resources reaches no other")
def test_an_update_in_a_session_is_shown_in_the_turns_of_its_owner_only() -> None:
    turn, read = Turn("t", "s", "ann"), ReadResources()
    read.follow(step("x://a"))
    for mode, name, uris in (
        (SessionMode.SUBJECT, "ann", ["x://a"]),
        (SessionMode.CONVERSATION, "s", ["x://a"]),
        (SessionMode.SUBJECT, "bob", []),
        (SessionMode.CONVERSATION, "another", []),
    ):
        update = ResourcesUpdated(server="docs", uris=("x://a",), owner=owner(mode, name), subject="ann")
        assert shown(read, turn, update) == uris
