"""The answer of a turn as one JSON document, for clients that read no event stream."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import Response
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from dialog_engine.chat.archive import MessageRecord, TurnRecord
from dialog_engine.chat.events import DONE, RESET, START, WITHDRAWN, Batch, Frame
from dialog_engine.chat.waiting_messages import WaitingMessage
from dialog_engine.errors import TurnNotFoundError, UnauthenticatedError
from dialog_engine.http import sse, turn_views, views, waiting
from dialog_engine.http.problems import ProblemError
from dialog_engine.http.services import Services
from dialog_engine.sideband import run_shielded

RUNNING = "running"
RETRY_AFTER_SECONDS = 1

T = TypeVar("T")
WaitsFor = Sequence[Mapping[str, str]]
"""What a turn asks its user, and where to answer; empty when it does not wait for its user only."""


class PlainAnswer(Response):
    """Waits until a turn has ended, or waits for its user, and sends what it has come to by then. Its message may still
    wait behind other turns.

    The turn goes on without its client. Where this engine cannot follow it to its end the answer is 503.
    """

    def __init__(
        self,
        engine: Services,
        subject: str,
        turn_id: str,
        *,
        on_end: Callable[[], Coroutine[Any, Any, None]],
        document: "Document | None" = None,
    ) -> None:
        """`on_end` is called when the answer is sent, or is not sent any more. `document` makes it, in the form of
        another protocol."""
        super().__init__()
        self._engine = engine
        self._subject = subject
        self._turn_id = turn_id
        self._on_end = on_end
        self._document = document or own_document

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer. Raises ProblemError and EngineError before anything is sent."""
        try:
            found = await _while_there(receive, self._over())
            if found is None:
                raise self._goes_on()
            if not await sse.still_admitted(scope):
                raise UnauthenticatedError("the credential of the request is not valid any more")
            async with self._engine.large_answers.place(self._subject):
                messages = await self._engine.archive.turn_messages(self._turn_id)
                await JSONResponse(self._document(*found, messages))(scope, receive, send)
        finally:
            await run_shielded(self._on_end())

    async def _over(self) -> tuple[TurnRecord, WaitsFor] | None:
        """The turn, when it has ended or waits for its user; None when that cannot be learned here."""
        found = await self._state()
        if isinstance(found, tuple):
            return found
        async with aclosing(self._events(found)) as events:
            async for batch in events:
                if any(map(_may_be_over, batch)):
                    found = await self._state()
                    if isinstance(found, tuple):
                        return found
        return None

    def _events(self, message: WaitingMessage | None) -> AsyncGenerator[Batch]:
        if message is None:
            return sse.of_running(self._engine, self._subject, self._turn_id, START)
        return waiting.of_waiting(self._engine, self._subject, message.turn, START)

    async def _state(self) -> tuple[TurnRecord, WaitsFor] | WaitingMessage | None:
        """The turn, when it is over; its message, while that waits. Raises TurnNotFoundError: that is withdrawn."""
        waits_for = await self._engine.parked.waits_for(self._turn_id)
        # Read behind that: it has the usage of the round that waits.
        record = await waiting.record_of(self._engine, self._subject, self._turn_id)
        if isinstance(record, WaitingMessage):
            if record.withdrawn:
                raise TurnNotFoundError(f"the message of turn {self._turn_id} is withdrawn")
            return record
        if record.status != RUNNING:
            return record, ()
        return (record, waits_for) if waits_for else None

    def _goes_on(self) -> ProblemError:
        detail = (
            "the turn goes on, and this engine cannot wait for its end: ask for its answer with GET"
            f" /v1/turns/{self._turn_id}/events and Accept: application/json"
        )
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
        turn = {"turnId": self._turn_id}
        return ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, "TURN_GOES_ON", detail, headers=headers, **turn)


Document = Callable[[TurnRecord, WaitsFor, Sequence[MessageRecord]], dict[str, Any]]
"""Makes the document of a turn. Raises ProblemError."""


def own_document(record: TurnRecord, waits_for: WaitsFor, messages: Sequence[MessageRecord]) -> dict[str, Any]:
    """A turn with what was said and called in it. Its text is that of the last message, and so is its reasoning."""
    said = [views.message(each) for each in messages if each.role == "assistant"]
    last = said[-1] if said else {}
    found = turn_views.turn(record) | {"text": last.get("content", "")}
    if "reasoning" in last:
        found["reasoning"] = last["reasoning"]
    found["calls"] = [call for each in said for call in each["toolCalls"]]
    return found | ({"status": "waiting", "waitsFor": [*waits_for]} if waits_for else {})


def _may_be_over(frame: Frame) -> bool:
    """Whether a turn may have ended, or wait for its user, after this event; a reset stands for any events."""
    return frame.name in (DONE, RESET, WITHDRAWN) or frame.says_waiting


async def _while_there(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work, which is cancelled when the client leaves. The request has no body that is not read.

    Raises:
        ProblemError: the client has left.
    """
    working, leaving = asyncio.create_task(work), asyncio.create_task(_left(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ProblemError(HTTPStatus.REQUEST_TIMEOUT, "CLIENT_GONE", "the client has not waited for its answer")
        return await working
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
