"""`python -m tests.chaos.doomed_engine FILE`: the engine, which ends as by `kill -9` where and when FILE says.

FILE holds a number and a step. Turns that come to the step stand still there; when so many stand there, the engine
dies. It is looked at again at every step, and there need not be one. What other engines leave is left to others.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from dialog_engine.chat.events import DONE, encode
from dialog_engine.chat.outbox import OutboxRow
from dialog_engine.chat.ports import SeenEngine
from dialog_engine.chat.service import ChatService
from dialog_engine.event_log.stored_logs import LogStore
from dialog_engine.llm.openai_client import OpenAIChatClient
from dialog_engine.main import main
from dialog_engine.model import ChatRequest, LLMEvent, TextDelta, ToolMessage, TurnEvent
from dialog_engine.relay.relay import Relay
from dialog_engine.storage.engines import SqlEngines
from dialog_engine.storage.outbox import SqlOutbox
from dialog_engine.storage.postgres import PostgresDatabase
from dialog_engine.storage.sqlite import SqliteDatabase
from plugins_contract.ledger import EngineLedger
from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED

TOLD_SECONDS = 0.1
"""How long the engine lives on, so that clients hear what they are told."""
OFFERED = "the round is committed, the call is not enqueued"
UNSTORED_END = "the end is told here, the log in Redis does not have it"
ENQUEUED = "the call is enqueued, the row is not marked"


class Doom:
    """Where this engine is to die."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._there = 0

    def is_at(self, step: str) -> int:
        """How many turns are to come to that step; 0 when it is not the one."""
        number, _, name = self._file.read_text().partition(" ") if self._file.exists() else ("0", "", "")
        return int(number) if name == step else 0

    def has_come(self, step: str) -> bool:
        """Whether a turn stands at that step."""
        return self._there > 0 and self.is_at(step) > 0

    async def stand(self, step: str, seconds: float = 0) -> None:
        """Stand still if this is the step. The engine dies so many seconds after the last one has come."""
        if self.is_at(step):
            self.come(step, seconds)
            await asyncio.get_running_loop().create_future()

    def come(self, step: str, seconds: float) -> None:
        """The same without standing still."""
        self._there += 1
        if self._there == self.is_at(step):
            asyncio.get_running_loop().call_later(seconds, os.kill, os.getpid(), signal.SIGKILL)


def arm(doom: Doom) -> None:
    """Put the steps into the engine."""
    _commits(doom)
    _publication(doom)
    _log(doom)
    _model(doom)
    _what_is_told(doom)
    _no_turns_of_others()


def _commits(doom: Doom) -> None:
    """`before` and `after` the transaction of a method of the storage, such as `after SqlCalls.add_round`."""

    def standing(write: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def commit(self: object, unit: Callable[..., Any]) -> Any:
            name = unit.__qualname__.removesuffix(".<locals>.unit")
            await doom.stand(f"before {name}")
            committed = await write(self, unit)
            await doom.stand(f"after {name}")
            return committed

        return commit

    for driver in (SqliteDatabase, PostgresDatabase):
        driver.write = standing(driver.write)  # pyright: ignore[reportAttributeAccessIssue]


def _publication(doom: Doom) -> None:
    """The relay is one for all turns: it does not stand still, but comes no further."""
    offer, enqueue, mark = Relay.offer, EngineLedger.enqueue, SqlOutbox.published

    def offered(self: Relay, rows: Sequence[OutboxRow]) -> None:
        offer(self, rows)
        for row in rows:
            if row.event_type == TOOL_CALL_REQUESTED and doom.is_at(OFFERED):
                doom.come(OFFERED, TOLD_SECONDS)

    async def enqueued(self: EngineLedger, *args: Any, **options: Any) -> Any:
        if doom.is_at(OFFERED):
            raise ConnectionError("not now")
        answer = await enqueue(self, *args, **options)
        if doom.is_at(ENQUEUED):
            doom.come(ENQUEUED, 0)
        return answer

    async def marked(self: SqlOutbox, rows: Sequence[OutboxRow]) -> None:
        if doom.is_at(ENQUEUED):
            await asyncio.get_running_loop().create_future()
        await mark(self, rows)

    Relay.offer, EngineLedger.enqueue, SqlOutbox.published = offered, enqueued, marked


def _log(doom: Doom) -> None:
    """From the first turn's end on the logs in Redis are told nothing more."""
    append = LogStore.append

    async def appended(self: LogStore, logs: Sequence[Any]) -> Any:
        if doom.has_come(UNSTORED_END):
            raise ConnectionError("not now")
        return await append(self, logs)

    LogStore.append = appended


def _model(doom: Doom) -> None:
    """`before` and `in` the `first` reply of the model, or its `last`, which it gives with a result in hand."""
    stream_chat = OpenAIChatClient.stream_chat

    async def speak(self: OpenAIChatClient, request: ChatRequest) -> AsyncGenerator[LLMEvent]:
        reply = "last" if any(isinstance(message, ToolMessage) for message in request.messages) else "first"
        await doom.stand(f"before the {reply} reply")
        async with aclosing(stream_chat(self, request)) as events:
            async for event in events:
                yield event
                if isinstance(event, TextDelta):
                    await doom.stand(f"in the {reply} reply", TOLD_SECONDS)

    OpenAIChatClient.stream_chat = speak


def _what_is_told(doom: Doom) -> None:
    """`told` and the status, or the name, of an event that clients were just told."""

    def told(generate: Callable[..., AsyncGenerator[TurnEvent]]) -> Callable[..., AsyncGenerator[TurnEvent]]:
        async def events(self: ChatService, *args: Any, **options: Any) -> AsyncGenerator[TurnEvent]:
            async with aclosing(generate(self, *args, **options)) as source:
                async for event in source:
                    yield event
                    name, data = encode(event)
                    if name == DONE:
                        # What was told of a turn is stored some milliseconds later: it is told nothing any more.
                        await doom.stand(UNSTORED_END, TOLD_SECONDS)
                    await doom.stand(f"told {data.get('status', name)}", TOLD_SECONDS)

        return events

    ChatService.opening = told(ChatService.opening)
    ChatService.stream_reply = told(ChatService.stream_reply)
    ChatService.end = told(ChatService.end)


def _no_turns_of_others() -> None:
    """They would be counted among those that are to come to the step, which then would not be where the others are."""

    async def nobody(self: SqlEngines) -> Sequence[SeenEngine]:
        return []

    SqlEngines.others = nobody


if __name__ == "__main__":
    arm(Doom(Path(sys.argv.pop())))
    main()
