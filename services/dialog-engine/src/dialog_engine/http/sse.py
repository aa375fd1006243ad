"""Server-Sent Events: the events of a turn, from its log and the database, as a response of sse-starlette."""

import asyncio
import logging
import math
import random
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext, suppress
from types import MappingProxyType
from typing import Any

import msgspec
from fastapi import Request
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Message, Receive, Scope, Send

from dialog_engine.chat import events
from dialog_engine.chat.archive import MessageRecord, TurnRecord
from dialog_engine.chat.events import (
    DONE,
    REBUILT_EPOCH,
    REBUILT_SEQ,
    START,
    WITHDRAWN,
    Batch,
    Cursor,
    Frame,
    LogGoneError,
)
from dialog_engine.chat.replay import replay, replay_ended, replay_parked
from dialog_engine.errors import EngineError, IdentityProviderError
from dialog_engine.http.admission import Admission
from dialog_engine.http.requests import LARGE_BYTES
from dialog_engine.http.services import Services
from dialog_engine.http.streams import EarlyEnd, OpenStream, Streams
from dialog_engine.model import Reset, ResetReason, TurnEvent, TurnStarted
from dialog_engine.sideband import run_shielded

log = logging.getLogger(__name__)

RETRY_MS = 1000
"""How long a browser waits before it reconnects."""
HINT_RETRY_MS = (200, 1200)
"""The range of the same after a reconnect hint: each client gets its own time, so that not all come back at once."""
POLL_SECONDS = 0.05
NEWLINE = "\n"
HEADERS = {"Cache-Control": "no-store, no-transform"}
"""No intermediary may store or compress a stream: one that compresses it holds events back."""


class BrokenStreamError(Exception):
    """A stream cannot go on, and its protocol has no end for that: its connection is closed."""


class EventStream(EventSourceResponse, OpenStream):
    """Sends batches of frames until there are no more, the client disconnects, or it does not read for too long."""

    def __init__(
        self,
        streams: Streams,
        batches: AsyncGenerator[Batch],
        *,
        on_end: Callable[[], Coroutine[Any, Any, None]],
        encoded: "Callable[[AsyncGenerator[Batch]], AsyncGenerator[ServerSentEvent | bytes]] | None" = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`encoded` says the events in another protocol; a stream that does not reach its end is then broken off."""
        super().__init__(
            (encoded or _events)(batches),
            headers={**HEADERS, **headers},
            sep=NEWLINE,
            ping=streams.ping_seconds,
            ping_message_factory=_ping,
        )
        self._scope: Scope = {}
        self._ended: asyncio.Future[EarlyEnd] = asyncio.get_running_loop().create_future()
        self.checked_at = time.monotonic()
        self.unread_since = math.inf
        """Since when something that was sent has waited for the client to read."""
        self._streams = streams
        self._on_end = on_end
        self._native = encoded is None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream. The server closes the connection when it is not complete; the turn runs on in any case."""
        self._scope = scope
        self._streams.open.add(self)
        try:
            await super().__call__(scope, receive, send)
            if self._ended.done() and not self._ended.cancelled():
                await self._say_end(self._ended.result(), send)
        except* BrokenStreamError:
            log.info("a stream is broken off before its end", extra=self._subject())
        except* Exception:
            # The head of the response is sent: there is nothing left for the handlers of errors to answer.
            log.exception("an event stream failed", extra=self._subject())
        finally:
            self._streams.open.discard(self)
            await run_shielded(self._on_end())

    async def _say_end(self, end: EarlyEnd, send: Send) -> None:
        if end is EarlyEnd.UNREAD:
            text = "client %s has read nothing for %.3g s: its stream is ended"
            log.info(text, self._scope["client"], time.monotonic() - self.unread_since, extra=self._subject())
            self._streams.on_drop()
        else:
            log.info("a stream is ended: the credential of its request is not valid any more", extra=self._subject())
            if self._native:
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _subject(self) -> dict[str, str]:
        return {"subject": self._scope["state"]["principal"].subject}

    async def check(self) -> None:
        """End the stream if its sender is not admitted any more."""
        if not await still_admitted(self._scope):
            self.end(EarlyEnd.REFUSED)

    def end(self, why: EarlyEnd) -> None:
        """End the stream, unless it is ended already."""
        if not self._ended.done():
            self._ended.set_result(why)

    async def _send_with_timeout(self, send: Send, message: Message) -> None:
        """Send one message. `Streams.check` is its limit: a timer for each would cost more than the sending does."""
        self.unread_since = min(self.unread_since, time.monotonic())
        await send(message)
        self.unread_since = math.inf

    async def _listen_for_exit_signal_with_grace(self) -> None:
        """Return, which ends the stream, when it is to end before its turn.

        This is where sse-starlette waits for SIGTERM; its way to end streams then is switched off.
        """
        await self._ended  # with the stream this is cancelled, and so is the future


async def still_admitted(scope: Scope) -> bool:
    """Whether the sender of a request that was admitted would be admitted now, too."""
    admission: Admission | None = scope["state"].get("admission")
    try:
        if admission:
            await admission.admit(Request(scope))
    except IdentityProviderError:
        return True
    except EngineError:
        return False
    return True


async def _events(batches: AsyncGenerator[Batch]) -> AsyncGenerator[ServerSentEvent]:
    """The frames as events; a stream that ends before its turn ends with a hint when to reconnect."""
    async with aclosing(batches):
        yield ServerSentEvent(retry=RETRY_MS, sep=NEWLINE)
        last = ""
        async for batch in batches:
            for frame in batch:
                yield ServerSentEvent(frame.data, event=frame.name, id=frame.id, sep=NEWLINE)
                last = frame.name
        if last not in (DONE, WITHDRAWN):
            yield ServerSentEvent(comment="reconnect", retry=random.randint(*HINT_RETRY_MS), sep=NEWLINE)


def _ping() -> ServerSentEvent:
    return ServerSentEvent(comment="ping", sep=NEWLINE)


# --- The events of a turn: from its log, and from the database where the log has a gap ---


async def of_running(engine: Services, subject: str, turn_id: str, after: Cursor) -> AsyncGenerator[Batch]:
    """The events after `after` of a turn that runs, on this engine or another; an empty batch when there are none.

    The stream ends early when neither the log nor the database can continue it: the client reconnects.
    """
    last_id = str(after)
    with engine.readers.reading(turn_id):
        while True:
            here = engine.frames.running(turn_id)
            if here is None and (parked := await _parked(engine, subject, turn_id, Cursor.parse(last_id))):
                async with _place(engine, subject, parked):
                    yield parked
                last_id = parked[-1].id
            try:
                async with aclosing(engine.frames.follow(turn_id, Cursor.parse(last_id))) as batches:
                    async for batch in batches:
                        if not batch and engine.frames.running(turn_id) is None:
                            # Its engine may have died after the end was committed and before the log had it.
                            record = await engine.archive.turn(subject, turn_id)
                            if record.status != "running":
                                async for rest in of_ended(engine, record, Cursor.parse(last_id)):
                                    async with _place(engine, subject, rest):
                                        yield rest
                                return
                        async with _place(engine, subject, batch):
                            yield batch
                        if batch:
                            last_id = batch[-1].id
                            if batch[-1].name == DONE:
                                return
                if engine.frames.running(turn_id) == here:
                    return
                continue  # it was parked, or goes on here
            except LogGoneError:
                newest = await engine.frames.newest(turn_id)
                if newest is None or Cursor.parse(newest.id) <= Cursor.parse(last_id):
                    return
            # The id is read before the database: every event up to it is in what the database returns.
            record = await engine.archive.turn(subject, turn_id)
            committed = replay(turn_id, await engine.archive.turn_messages(record.turn_id))
            begun = [TurnStarted(turn_id, record.session_id)] if last_id == str(START) else []
            reset = [_frame(newest.id, Reset(ResetReason.LOG_LOST, (*begun, *committed)))]
            async with _place(engine, subject, reset):
                yield reset
            last_id = newest.id


async def _parked(engine: Services, subject: str, turn_id: str, after: Cursor) -> Batch:
    """The events after `after` of a parked turn whose log is not kept any more, rebuilt from the database. Their ids
    come after every one of its epoch, and before those of the next."""
    record = await engine.archive.turn(subject, turn_id)
    if not record.parked or await engine.frames.newest(turn_id) is not None:
        return ()
    messages = await engine.archive.turn_messages(turn_id)
    first = Cursor(record.epoch, REBUILT_SEQ)
    if START < after < first:
        return [
            _frame(str(Cursor(record.epoch, 2 * REBUILT_SEQ)), Reset(ResetReason.LOG_LOST, replay(turn_id, messages)))
        ]
    events = replay_parked(record, messages)
    ids = (Cursor(record.epoch, seq) for seq in range(REBUILT_SEQ, REBUILT_SEQ + len(events)))
    return [_frame(str(each), event) for each, event in zip(ids, events, strict=True) if each > after]


async def of_ended(engine: Services, record: TurnRecord, after: Cursor) -> AsyncGenerator[Batch]:
    """The events after `after` of a turn that has ended; no batch at all when its last event was seen."""
    if after.epoch < REBUILT_EPOCH:
        last: Frame | None = None
        with suppress(LogGoneError):
            # The end of a turn is committed first and logged after that.
            await _last_event_logged(engine, record.turn_id, engine.streams.times.end)
            async with aclosing(engine.frames.kept(record.turn_id, after)) as batches:
                async for batch in batches:
                    yield batch
                    last = batch[-1]
                    after = Cursor.parse(last.id)
            # An end that was read is not looked up again: Redis may be unavailable by now.
            last = last or await engine.frames.newest(record.turn_id)
        if last is not None and last.name == DONE:
            return
    if rest := _rebuilt(record, await engine.archive.turn_messages(record.turn_id), after):
        yield rest


_NO_PLACE = nullcontext()


def _place(engine: Services, subject: str, batch: Batch) -> AbstractAsyncContextManager[None]:
    """A place for a large batch until it is sent. Readers of a turn share its batches; what is sent is a copy."""
    large = sum(len(frame.data) for frame in batch) > LARGE_BYTES
    return engine.large_answers.place(subject) if large else _NO_PLACE


async def _last_event_logged(engine: Services, turn_id: str, seconds: float) -> None:
    """Wait, at most so many seconds, until an existing log has its last event."""
    for _ in range(round(seconds / POLL_SECONDS)):
        newest = await engine.frames.newest(turn_id)
        if newest is None or newest.name == DONE:
            return
        await asyncio.sleep(POLL_SECONDS)


def _rebuilt(record: TurnRecord, messages: Sequence[MessageRecord], after: Cursor) -> Batch:
    """The events that a reader at `after` lacks of an ended turn, rebuilt from what the database has.

    A reader that has seen a part of the turn's log gets a reset first.
    """
    new_reader = after == START or after.epoch == REBUILT_EPOCH
    epoch = REBUILT_EPOCH if new_reader else REBUILT_EPOCH + 1
    rebuilt = replay_ended(record, messages, reset="" if new_reader else ResetReason.LOG_LOST)
    ids = (Cursor(epoch, seq) for seq in range(1, len(rebuilt) + 1))
    return [_frame(str(each), event) for each, event in zip(ids, rebuilt, strict=True) if each > after]


def _frame(event_id: str, event: TurnEvent) -> Frame:
    name, data = events.encode(event)
    return Frame(event_id, name, msgspec.json.encode(data).decode())
