"""Records as the JSON of the protocol. Pure functions."""

import base64
import binascii
import contextlib
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from fastapi import Response
from pydantic import AwareDatetime, TypeAdapter, ValidationError

from dialog_engine.chat.archive import CallRecord, MessageRecord, SessionPlace, SessionRecord, Transcript
from dialog_engine.http import turn_views
from dialog_engine.model import ApprovalStatus, MediaOfUser, ToolStatus
from dialog_engine.personal_data.service import Left
from dialog_engine.tool_calls.exposure.exposure import Exposure
from dialog_engine.tool_calls.ports import ServerView
from dialog_engine.tool_calls.results.steps import (
    client_details,
    decision_details,
    named_details,
    outcome_details,
    question_details,
    rfc3339,
    shown_arguments,
    status_of,
)
from dialog_engine.tool_calls.results.texts import user_text
from dialog_engine.tool_calls.values import Approval, WholeResult
from plugins_contract.catalog import IconEntry, ToolEntry
from plugins_contract.outcomes import MediaBlock, ToolOutcome

_SHOWN = re.compile(r"(image|audio)/[a-zA-Z0-9][a-zA-Z0-9.+_-]{0,100}")
"""The media types that a browser may show; no other one is put into a header."""
MAX_RESOURCES = 1_000
"""The most resources of a server that its view has; `GET /v1/resources` has all."""
_MOMENT = TypeAdapter(AwareDatetime)
_MESSAGE = re.compile(r"m(\d{1,15})", re.ASCII)
_PLACE = re.compile(r"(\d{1,15})\.([\w-]{1,100})", re.ASCII)


def timestamp(milliseconds: int | None) -> str | None:
    """Unix milliseconds as RFC 3339 text."""
    if milliseconds is None:
        return None
    return rfc3339(milliseconds)


def milliseconds(moment: datetime) -> int:
    """The Unix milliseconds of a moment; the exact inverse of `timestamp`."""
    return round(moment.timestamp() * 1000)


def erasure(left: Left) -> dict[str, Any]:
    """What is left of the erasures of a subject."""
    return {"sessions": left.sessions, "running": left.running, "traces": left.traces}


def session_cursor(place: SessionPlace) -> str:
    """The place as `nextCursor` of a list of sessions; opaque to clients."""
    return base64.urlsafe_b64encode(f"{place.updated_at}.{place.session_id}".encode()).decode().rstrip("=")


def session_place(before: str) -> SessionPlace:
    """The place of a cursor, or of a time: RFC 3339, or a Unix time as a number. Raises ValueError for any other."""
    with contextlib.suppress(ValueError):
        if place := _PLACE.fullmatch(_decoded(before)):
            return SessionPlace(int(place[1]), place[2])
    try:
        return SessionPlace(milliseconds(_MOMENT.validate_strings(before)))
    except (ValidationError, OverflowError):
        raise ValueError("must be the nextCursor of the page before, or a time with its zone") from None


def _decoded(cursor: str) -> str:
    return base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True).decode()


def sessions(records: Sequence[SessionRecord], limit: int) -> dict[str, Any]:
    """The first `limit` of these sessions as a page, and the cursor of the next page if there are more."""
    page = records[:limit]
    more = len(records) > limit
    return {
        "sessions": [session(record) for record in page],
        "nextCursor": session_cursor(page[-1].place) if more else None,
    }


def session(record: SessionRecord) -> dict[str, Any]:
    """A session in a list."""
    return {
        "sessionId": record.session_id,
        "title": record.title,
        "createdAt": timestamp(record.created_at),
        "updatedAt": timestamp(record.updated_at),
        "runningTurnId": record.running_turn_id,
        "leafTurnId": record.leaf_turn_id,
        "awaitsApproval": record.awaits_approval,
        "awaitsAnswer": record.awaits_answer,
        "awaitsClient": record.awaits_client,
        "revision": record.revision,
        "waiting": record.waiting,
        "held": record.held or None,
        "tools": turn_views.tool_choice(record.tools),
    }


def message_cursor(number: int) -> str:
    """The message as `nextCursor` of a page of messages; opaque to clients."""
    return base64.urlsafe_b64encode(f"m{number}".encode()).decode().rstrip("=")


def message_place(before: str) -> int:
    """The message of a cursor. Raises ValueError for any other text."""
    with contextlib.suppress(ValueError):
        if place := _MESSAGE.fullmatch(_decoded(before)):
            return int(place[1])
    raise ValueError("must be the nextCursor of the page before")


def transcript(found: Transcript) -> dict[str, Any]:
    """A page of a session with its turns, and the cursor of the older messages if there are any."""
    page = found.page
    return {
        **session_head(found.session),
        "messages": [message(each) for each in page.messages],
        "turns": [turn_views.turn(each) | {"siblings": each.siblings} for each in found.turns],
        "waiting": [turn_views.waiting(each) for each in found.waiting],
        "nextCursor": message_cursor(page.messages[0].message_id) if page.more else None,
    }


def session_head(record: SessionRecord) -> dict[str, Any]:
    """What is said of a session beside its messages."""
    return {
        "sessionId": record.session_id,
        "title": record.title,
        "runningTurnId": record.running_turn_id,
        "leafTurnId": record.leaf_turn_id,
        "tools": turn_views.tool_choice(record.tools),
    }


def message(record: MessageRecord) -> dict[str, Any]:
    """One message; `reasoning` only where there is some."""
    data: dict[str, Any] = {
        "messageId": record.message_id,
        "turnId": record.turn_id,
        "role": record.role,
        "content": record.content,
        "interrupted": record.interrupted,
        "createdAt": timestamp(record.created_at),
        "toolCalls": [_call(record.turn_id, call) for call in record.calls],
    }
    shown = [image_of_user(each) for each in record.brought.media if isinstance(each, MediaOfUser)]
    return data | ({"reasoning": record.reasoning} if record.reasoning else {}) | ({"images": shown} if shown else {})


def image_of_user(image: MediaOfUser) -> dict[str, Any]:
    """Where an image is that came with a message."""
    url = f"/v1/turns/{image.turn_id}/images/{image.number}"
    return {"url": url, "mimeType": image.mime_type, "size": image.size}


def server_state(view: ServerView) -> dict[str, Any]:
    """Whether an MCP server can be used."""
    return {
        "server": view.catalog.server,
        "title": view.catalog.title,
        "state": view.state,
        "error": view.error,
        "breaker": view.breaker,
        "retryAt": timestamp(view.retry_at),
        "workers": view.workers,
    }


def server(view: ServerView) -> dict[str, Any]:
    """An MCP server with its tools, and those that were left out and why."""
    catalog = view.catalog
    return server_state(view) | {
        "icons": _icons(catalog.icons),
        "tools": [
            {
                "name": tool.name,
                "tool": tool.tool,
                "title": tool.title,
                "description": tool.description,
                "inputSchema": tool.input_schema,
                "annotations": tool.annotations,
                "executionClass": tool.execution_class,
                "timeoutMs": tool.timeout_ms,
                "approval": tool.approval,
                "forModel": tool.for_model,
                "outputSchema": tool.output_schema,
                "icons": _icons(tool.icons),
                "meta": tool.meta,
            }
            for tool in catalog.tools
        ],
        "quarantined": [
            *({"tool": each.tool, "reason": each.reason} for each in catalog.quarantined),
            *({"tool": each.tool, "reason": each.reason, "model": each.model} for each in view.refused),
        ],
        "resources": [
            {"uri": each.uri, "name": each.name, "template": each.template}
            for each in catalog.resources[:MAX_RESOURCES]
        ],
        "prompts": [{"name": each.name, "description": each.description} for each in catalog.prompts],
    }


def _icons(icons: Sequence[IconEntry]) -> list[dict[str, Any]]:
    return [{"src": each.src, "mimeType": each.mime_type, "sizes": each.sizes} for each in icons]


def exposure(exposure: Exposure, catalog: tuple[ToolEntry, ...]) -> dict[str, Any]:
    """How the tools are offered to the model, and how many tokens all their schemas would take in every request."""
    rule = exposure.in_force(catalog)
    return {
        "mode": rule.mode,
        "setting": exposure.mode,
        "tools": len(catalog),
        "tokens": rule.tokens,
        "budgetTokens": exposure.budget_tokens,
    }


def media_url(turn_id: str, correlation_id: str, number: int) -> str:
    """Where that image, sound or file of a result is."""
    return f"/v1/turns/{turn_id}/tool-calls/{correlation_id}/content/{number}"


def media(block: MediaBlock) -> Response | None:
    """The image, sound or file as its bytes; None when it is not base64.

    Content of tools is not trusted: nothing in it may run (an SVG can hold scripts), and anything but an image or a
    sound is a download.
    """
    try:
        data = base64.b64decode(block.data, validate=True)
    except binascii.Error:
        return None
    shown = _SHOWN.fullmatch(block.mime_type) is not None
    headers = {
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "private, max-age=86400",
        "Vary": "Origin",  # a page on another origin could not read what the engine's own page has left in the cache
        "Content-Disposition": "inline" if shown else "attachment",
    }
    return Response(data, media_type=block.mime_type if shown else "application/octet-stream", headers=headers)


def result_text(outcome: ToolOutcome, whole: WholeResult | None) -> Response:
    """The whole text of the outcome as plain text; without `whole`, the shortened text."""
    headers = {
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "private, no-cache",
        "Content-Disposition": "inline",
    }
    text = user_text(outcome) if whole is None else whole.user_text
    return Response(text.encode("utf-8", "replace"), media_type="text/plain; charset=utf-8", headers=headers)


def approval(approval: Approval) -> dict[str, Any]:
    """The approval of a call, and the arguments that replaced the model's, if any."""
    decision = approval.decision
    if decision is None:
        return {"approval": {"status": ApprovalStatus.ASKED} | question_details(approval.question)}
    shown = {"approval": {"status": decision.status} | decision_details(decision) | named_details(approval.question)}
    return shown if decision.arguments is None else shown | {"arguments": decision.arguments}


def _call(turn_id: str, record: CallRecord) -> dict[str, Any]:
    call = record.call
    data: dict[str, Any] = {
        "toolCallId": call.tool_call_id,
        "correlationId": call.correlation_id,
        "toolName": call.tool_name,
        "server": record.server,
        "arguments": shown_arguments(call),
    }
    if record.title:
        data["title"] = record.title
    if record.approval is not None:
        of_client = client_details(record.approval.question) if record.waits else {}
        data |= of_client if record.by_client else approval(record.approval)
    if record.rounds:
        data["questions"] = [question for each in record.rounds for question in each.shown()]
    if record.outcome is None:
        return data | {"status": ToolStatus.PENDING}
    details = outcome_details(turn_id, call.correlation_id, record.outcome)
    return data | {"status": status_of(record.outcome)} | details
