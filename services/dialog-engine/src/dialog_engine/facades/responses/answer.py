"""One response as one document: what its encoder makes of the events of its turn until now."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from dialog_engine.chat.archive import MessageRecord, TurnRecord
from dialog_engine.chat.events import Batch, Cursor, Frame, encode
from dialog_engine.chat.replay import replay_ended, replay_parked
from dialog_engine.facades.responses.encoder import Form, ResponseEncoder
from dialog_engine.http.plain import RUNNING, WaitsFor
from dialog_engine.model import TurnEvent


def stored_response(
    form: Form, record: TurnRecord, waits_for: WaitsFor, messages: Sequence[MessageRecord], *, decided: bool = False
) -> dict[str, Any]:
    """A response of a turn that has ended, or waits for its user; with the requests for approval that are `decided`."""
    encoder = ResponseEncoder(form, all_requests=decided)
    rebuild = replay_parked if record.status == RUNNING else replay_ended
    events = rebuild(record, messages, decided=decided)
    for frame in _frames(events):
        encoder.feed(frame)
    return encoder.document


async def response_until(form: Form, batches: AsyncGenerator[Batch], newest: Cursor) -> dict[str, Any]:
    """A response as it is at this place of the log of its turn, which may run. `batches` begin at the first event."""
    encoder = ResponseEncoder(form)
    async with aclosing(batches):
        async for batch in batches:
            for frame in batch:
                encoder.feed(frame)
            if not batch or encoder.is_over or Cursor.parse(batch[-1].id) >= newest:
                break
    return encoder.document


def _frames(events: Iterable[TurnEvent]) -> Iterable[Frame]:
    for number, event in enumerate(events, 1):
        name, data = encode(event)
        yield Frame(str(Cursor(1, number)), name, msgspec.json.encode(data).decode())
