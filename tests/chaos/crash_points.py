"""Steps of a turn at which an engine kills itself (SIGKILL).

A file holds a number of turns and a step. Turns that reach the step wait there; when that number of turns waits, the
engine kills itself. The file is read again at every step and may be missing.
"""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from callstream_runtime.redis_errors import RedisUnavailable
from dialog_engine.calls.subscriptions import Subscriptions
from dialog_engine.chat.events import DONE, encode
from dialog_engine.chat.outbox import OutboxRow
from dialog_engine.chat.service import ChatService
from dialog_engine.event_log.stored_logs import LogStore
from dialog_engine.event_log.turn_log import LiveLog
from dialog_engine.llm.openai_client import OpenAIChatClient
from dialog_engine.model import ChatEvent, ChatRequest, TextDelta, ToolMessage, Turn, TurnEvent
from dialog_engine.relay.relay import Relay
from dialog_engine.sideband import ModelStream
from dialog_engine.storage.outbox import SqlOutbox
from dialog_engine.storage.store import Store
from plugins_contract.ledger import EngineLedger
from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED
from plugins_contract.outcomes import CallFinished, CallReply

SENT_SECONDS = 0.1
"""The delay of the kill, so that clients receive what was just sent."""
OFFERED = "the round is committed, the call is not enqueued"
UNSTORED_END = "the end is sent to clients, the log in Redis does not have it"
ENQUEUED = "the call is enqueued, the row is not marked"
SENT_QUEUED = "sent queued"


class CrashPoint:
    """The step at which this engine kills itself."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._there = 0

    def is_at(self, step: str) -> int:
        """The number of turns that must reach this step; 0 when the file names another one."""
        number, _, name = self._file.read_text().partition(" ") if self._file.exists() else ("0", "", "")
        return int(number) if name == step else 0

    def was_reached(self, step: str) -> bool:
        return self._there > 0 and self.is_at(step) > 0

    async def wait_at(self, step: str, seconds: float = 0) -> None:
        """Wait here if this is the step. The kill comes `seconds` after the last turn has reached it."""
        if self.is_at(step):
            self.reached(step, seconds)
            await asyncio.get_running_loop().create_future()

    def reached(self, step: str, seconds: float) -> None:
        """Count a turn that has reached the step, without making it wait."""
        self._there += 1
        if self._there == self.is_at(step):
            asyncio.get_running_loop().call_later(seconds, os.kill, os.getpid(), signal.SIGKILL)


def arm(crash_point: CrashPoint) -> None:
    _commits(crash_point)
    _publication(crash_point)
    _notices(crash_point)
    _log(crash_point)
    _model(crash_point)
    _sent_events(crash_point)


def _commits(crash_point: CrashPoint) -> None:
    """`before` and `after` the transaction of a method of the storage, such as `after SqlCalls.add_round`."""

    def waiting(write: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def commit(self: object, unit: Callable[..., Any]) -> Any:
            name = unit.__qualname__.removesuffix(".<locals>.unit")
            await crash_point.wait_at(f"before {name}")
            committed = await write(self, unit)
            await crash_point.wait_at(f"after {name}")
            return committed

        return commit

    Store.write = waiting(Store.write)  # pyright: ignore[reportAttributeAccessIssue]


def _publication(crash_point: CrashPoint) -> None:
    """All turns share the relay: it does not wait, but publishes nothing more."""
    offer, enqueue, mark = Relay.offer, EngineLedger.enqueue_each, SqlOutbox.published

    def offered(self: Relay, rows: Sequence[OutboxRow]) -> None:
        offer(self, rows)
        for row in rows:
            if row.event_type == TOOL_CALL_REQUESTED and crash_point.is_at(OFFERED):
                crash_point.reached(OFFERED, SENT_SECONDS)

    async def enqueued(self: EngineLedger, offers: Sequence[Any], **options: Any) -> Any:
        if crash_point.is_at(OFFERED):
            return [RedisUnavailable("refused by the test")] * len(offers)
        answer = await enqueue(self, offers, **options)
        for _ in offers:
            if crash_point.is_at(ENQUEUED):
                crash_point.reached(ENQUEUED, 0)
        return answer

    async def marked(self: SqlOutbox, rows: Sequence[OutboxRow]) -> None:
        if crash_point.is_at(ENQUEUED):
            await asyncio.get_running_loop().create_future()
        await mark(self, rows)

    Relay.offer, EngineLedger.enqueue_each, SqlOutbox.published = offered, enqueued, marked


def _notices(crash_point: CrashPoint) -> None:
    """Until the kill the notices of starts are lost.

    A busy engine may read one before the answer of ENQUEUE, and does not show that call as queued.
    """
    replied = Subscriptions.replied

    def delivered(self: Subscriptions, correlation_id: str, reply: CallReply) -> None:
        if isinstance(reply, CallFinished) or not crash_point.is_at(SENT_QUEUED):
            replied(self, correlation_id, reply)

    Subscriptions.replied = delivered


def _log(crash_point: CrashPoint) -> None:
    """After the end of the first turn nothing is written to the logs in Redis."""
    append = LogStore.append

    async def appended(self: LogStore, logs: Sequence[Any]) -> Any:
        if crash_point.was_reached(UNSTORED_END):
            raise RedisUnavailable("refused by the test")
        return await append(self, logs)

    LogStore.append = appended


def _model(crash_point: CrashPoint) -> None:
    """`before` and `in` the `first` reply of the model, or its `last`, which it gives with a result in hand."""
    open_chat = OpenAIChatClient.open

    async def opened(self: OpenAIChatClient, request: ChatRequest) -> ModelStream:
        reply = "last" if any(isinstance(message, ToolMessage) for message in request.messages) else "first"
        await crash_point.wait_at(f"before the {reply} reply")
        return await ModelStream.begun(events(await open_chat(self, request), f"in the {reply} reply"))

    async def events(stream: ModelStream, step: str) -> AsyncGenerator[ChatEvent]:
        async with aclosing(stream):
            async for event in stream:
                yield event
                if isinstance(event, TextDelta):
                    await crash_point.wait_at(step, SENT_SECONDS)

    OpenAIChatClient.open = opened


def _sent_events(crash_point: CrashPoint) -> None:
    """`sent`, and the status or the name of the event that was just sent to clients. Nothing is sent or ended later."""
    append, end = LiveLog.append, ChatService.end
    waiting: set[str] = set()

    def appended(self: LiveLog, event: TurnEvent) -> None:
        if self.turn.turn_id in waiting:
            return
        append(self, event)
        name, data = encode(event)
        # The log in Redis gets events some milliseconds later: this end does not reach it.
        for step in (f"sent {data.get('status', name)}", *([UNSTORED_END] if name == DONE else [])):
            if crash_point.is_at(step):
                waiting.add(self.turn.turn_id)
                crash_point.reached(step, SENT_SECONDS)

    async def ended(self: ChatService, turn: Turn, *args: Any, **options: Any) -> bool:
        if turn.turn_id in waiting:
            await asyncio.get_running_loop().create_future()
        return await end(self, turn, *args, **options)

    LiveLog.append = appended
    ChatService.end = ended
