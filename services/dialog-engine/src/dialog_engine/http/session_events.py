"""The route of the events of a subject: changes of its sessions, and the state of its tools."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Header, Query, Response

from dialog_engine.chat.events import Batch, Frame
from dialog_engine.chat.session_changes import Changes
from dialog_engine.http import described, views
from dialog_engine.http.problems import ProblemError
from dialog_engine.http.requests import Engine, Sender
from dialog_engine.http.services import Services
from dialog_engine.http.sse import EventStream
from dialog_engine.identity.principal import Principal
from plugins_contract import reads

SESSION, DELETED, TOOLS, RESOURCE, RESET = "session", "deleted", "tools", "resource", "reset"

router = APIRouter(prefix="/v1", tags=["sessions"])


@router.get(
    "/events",
    response_class=Response,
    responses=described.SESSION_EVENTS | described.problems((HTTPStatus.BAD_REQUEST,)),
)
async def events(
    engine: Engine,
    sender: Sender,
    last_event_id: Annotated[str | None, Header()] = None,
    after: Annotated[str | None, Query()] = None,
) -> Response:
    """What changes in the sender's sessions and tools, until the client leaves.

    A stream that cannot go on after the given event begins with `reset`: the client reads the lists again.
    """
    revision = _revision("Last-Event-ID", last_event_id)
    place = _revision("after", after) if revision is None else revision
    slot = await engine.consumption.stream(sender.subject)
    return EventStream(engine.streams, _batches(engine, sender, place), on_end=slot.release)


def _revision(field: str, text: str | None) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        detail = f"{field} must be the id of an event of this stream: a number of up to 18 digits"
        raise ProblemError(HTTPStatus.BAD_REQUEST, "INVALID_CURSOR", detail, field=field)
    return int(text)


async def _batches(engine: Services, sender: Principal, after: int | None) -> AsyncGenerator[Batch]:
    last_tools: object = None
    async with aclosing(engine.feed.follow(sender.subject, after)) as all_changes:
        async for changes in all_changes:
            batch = [*_frames(changes)]
            visible = engine.tools.visible_to(sender.subject, sender.roles)
            batch += [
                _frame(changes.revision, RESOURCE, {"server": server, "uri": uri})
                for server, uri in changes.updated
                if visible.allows(server, reads.RESOURCE + uri)
            ]
            tools = {"servers": [*map(views.server_state, visible.servers)]}
            if tools != last_tools:
                last_tools = tools
                batch.append(_frame(changes.revision, TOOLS, tools))
            if batch:
                yield batch


def _frames(changes: Changes) -> Iterator[Frame]:
    """The events. Only the last one of a revision has it as its id: a client that has seen a part of them gets all of
    them again."""
    if changes.changes is None:
        yield _frame(changes.revision, RESET, {})
        return
    seen = changes.after
    for change, following in zip(changes.changes, [*changes.changes[1:], None], strict=False):
        if following is None or following.revision > change.revision:
            seen = change.revision
        if change.record is None:
            data = {"sessionId": change.session_id, "revision": change.revision}
            yield _frame(seen, DELETED, data)
        else:
            yield _frame(seen, SESSION, views.session(change.record))


def _frame(revision: int, name: str, data: dict[str, Any]) -> Frame:
    return Frame(str(revision), name, msgspec.json.encode(data).decode())
