"""Clients of responses while no log of a turn can be read: they get what they lack, the end, or nothing yet."""

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI

from callstream_runtime.redis_errors import RedisUnavailable
from dialog_engine.event_log.stored_logs import LogStore
from tests.integration.engines import Model
from tests.integration.test_chat_completions import clients, model_of
from tests.integration.test_responses import read
from tests.integration.test_responses_functions import PICK, calls_of, result
from tests.marks import promise

__all__ = ["clients"]

WAIT_SECONDS = 2


@contextmanager
def unreadable(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """No engine can read a log of Redis for as long as the block."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise RedisUnavailable("away")

    with monkeypatch.context() as patch:
        for name in ("newest", "read", "read_many"):
            patch.setattr(LogStore, name, refuse)
        yield


async def behind(client: AsyncOpenAI, events: Sequence[Any], place: int) -> list[Any]:
    """What a client gets that asks once for the events behind this place, and waits for some time."""
    got: list[Any] = []
    responses = client.with_options(max_retries=0).responses
    with suppress(TimeoutError, httpx2.TransportError, openai.APIError):
        async with asyncio.timeout(WAIT_SECONDS):
            after = events[place].sequence_number
            async for event in await responses.retrieve(events[0].response.id, stream=True, starting_after=after):
                got = [*got, event]
    return got


@promise("a response in the background is read later, from any event, and stopped at any engine")
async def test_a_client_behind_an_event_gets_nothing_twice_while_no_log_can_be_read(
    clients: tuple[AsyncOpenAI, AsyncOpenAI], model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = clients
    model.will_call("pick_colour")
    asked: Any = {"model": await model_of(here), "stream": True, "background": True, "tools": [PICK]}
    first: list[Any] = await read(await here.responses.create(input="Which one?", **asked))
    with unreadable(monkeypatch):
        for client in clients:
            got = await behind(client, first, 1)
            assert got == first[2:] or [each.type for each in got] in ([], ["response.completed"])

    model.held.clear()
    model.will_say("Red it is.")
    outputs: Any = [result(calls_of(first[-1].response)[0], "red")]
    create: Any = there.responses.create
    goes_on = await create(input=outputs, **asked)
    second: list[Any] = [await anext(goes_on) for _ in range(3)]
    with unreadable(monkeypatch):
        assert await behind(there, second, 2) == []
    model.held.set()
    second += [event async for event in goes_on]
    for events in (first, second):
        for client in clients:
            with unreadable(monkeypatch):
                *_, last = await behind(client, events, 1)
                assert last.response.output_text.startswith(events[-1].response.output_text)
                whole = await read(await client.responses.retrieve(events[0].response.id, stream=True))
                assert whole[-1].response.output_text == last.response.output_text
            assert await behind(client, events, 1) == events[2:]
