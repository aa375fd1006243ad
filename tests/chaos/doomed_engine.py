"""`python -m tests.chaos.doomed_engine FILE`: the engine, which ends as by `kill -9` where and when FILE says.

FILE holds a number and a step. Turns that come to the step stand still there; when so many stand there, the engine
dies. It is looked at again at every step, and there need not be one. What other engines leave is left to others.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from dialog_engine.chat.events import DONE, encode
from dialog_engine.chat.journal import JournalEntry, Step
from dialog_engine.chat.outbox import OutboxRow
from dialog_engine.chat.service import ChatService
from dialog_engine.llm.openai_client import OpenAIChatClient
from dialog_engine.main import main
from dialog_engine.model import ChatRequest, LLMEvent, TextDelta, ToolMessage, TurnEvent
from dialog_engine.storage.database import Database
from dialog_engine.storage.outbox import SqliteOutbox
from dialog_engine.streams.journal import SharedJournal
from dialog_engine.streams.relay import Relay
from dialog_engine.streams.runs import RedisRuns
from plugins_contract.ledger import EngineLedger
from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED

TOLD_SECONDS = 0.1
"""How long the engine lives on, so that clients hear what they are told, and engines what is shared."""
SHARED = "the round is shared, the call is not enqueued"
UNSHARED_END = "the end is told as soon as it may be, its sharing is slow"
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
    _sharing(doom)
    _model(doom)
    _what_is_told(doom)
    _no_turns_of_others()


def _commits(doom: Doom) -> None:
    """`before` and `after` the transaction of a method of the storage, such as `after SqliteCalls.add_round`."""
    write = Database.write

    async def commit(self: Database, unit: Callable[..., Any]) -> Any:
        name = unit.__qualname__.removesuffix(".<locals>.unit")
        await doom.stand(f"before {name}")
        committed: Any = await write(self, unit)
        await doom.stand(f"after {name}")
        return committed

    Database.write = commit


def _publication(doom: Doom) -> None:
    """The relay is one for all turns: it does not stand still, but comes no further."""
    offer, enqueue, mark = Relay.offer, EngineLedger.enqueue, SqliteOutbox.published

    def offered(self: Relay, rows: Sequence[OutboxRow]) -> None:
        offer(self, rows)
        for row in rows:
            if row.event_type == TOOL_CALL_REQUESTED and doom.is_at(SHARED):
                doom.come(SHARED, TOLD_SECONDS)

    async def enqueued(self: EngineLedger, *args: Any, **options: Any) -> Any:
        if doom.is_at(SHARED):
            raise ConnectionError("not now")
        answer = await enqueue(self, *args, **options)
        if doom.is_at(ENQUEUED):
            doom.come(ENQUEUED, 0)
        return answer

    async def marked(self: SqliteOutbox, rows: Sequence[OutboxRow]) -> None:
        if doom.is_at(ENQUEUED):
            await asyncio.get_running_loop().create_future()
        await mark(self, rows)

    Relay.offer, EngineLedger.enqueue, SqliteOutbox.published = offered, enqueued, marked


def _sharing(doom: Doom) -> None:
    """The ends of turns take longer to be shared than the engine lives on."""
    share = SharedJournal._share  # pyright: ignore[reportPrivateUsage]

    async def shared(self: SharedJournal, entries: Sequence[JournalEntry]) -> None:
        if doom.is_at(UNSHARED_END) and any(entry.step is Step.ENDS for entry in entries):
            await asyncio.sleep(1.5 * TOLD_SECONDS)
        await share(self, entries)

    SharedJournal._share = shared  # pyright: ignore[reportPrivateUsage]


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
                        await doom.stand(UNSHARED_END, TOLD_SECONDS)
                    await doom.stand(f"told {data.get('status', name)}", TOLD_SECONDS)

        return events

    ChatService.opening = told(ChatService.opening)
    ChatService.stream_reply = told(ChatService.stream_reply)
    ChatService.end = told(ChatService.end)


def _no_turns_of_others() -> None:
    """They would be counted among those that are to come to the step, which then would not be where the others are."""

    async def nothing(self: RedisRuns) -> list[str]:
        return []

    RedisRuns.run_out = RedisRuns.given_up = nothing


if __name__ == "__main__":
    arm(Doom(Path(sys.argv.pop())))
    main()
