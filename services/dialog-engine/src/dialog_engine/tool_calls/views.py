"""How calls and outcomes are shown: to users as JSON-ready values, to models as text. Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from dialog_engine.model import ToolCall, ToolMessage, ToolStatus
from dialog_engine.tool_calls import gateway, texts
from dialog_engine.tool_calls.arguments import read_arguments
from dialog_engine.tool_calls.questions import Decision, Question
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, CutBlock, LinkBlock, MediaBlock, TextBlock, ToolError, ToolOutcome

MAX_SHOWN = 4_000
"""Characters of a result, or of arguments that are no JSON object, that a user is shown at first."""
NOTHING = "The tool returned nothing."

_NOT_EXECUTED = {ErrorCode.DISABLED, ErrorCode.OVERLOADED, ErrorCode.NOT_APPROVED, ErrorCode.REPEATED}


def timestamp(milliseconds: int) -> str:
    """Unix milliseconds as RFC 3339 text."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def status_of(outcome: ToolOutcome) -> ToolStatus:
    """The last step of a call with this outcome. What may have taken effect is unknown, for whatever reason."""
    code = outcome.error.code if outcome.error else None
    match outcome.state:
        case CallState.SUCCEEDED:
            return ToolStatus.SUCCEEDED
        case CallState.CANCELLED:
            return ToolStatus.CANCELLED
        case CallState.UNKNOWN:
            return ToolStatus.UNKNOWN
        case CallState.EXPIRED:
            return ToolStatus.TIMEOUT
        case _ if code is ErrorCode.TIMEOUT:
            return ToolStatus.TIMEOUT
        case _ if code in _NOT_EXECUTED:
            return ToolStatus.REFUSED
        case _:
            return ToolStatus.FAILED


def shown_arguments(call: ToolCall) -> dict[str, Any]:
    """The arguments of the tool that is meant; text that is no object is shown as it stands, as far as it is of use."""
    arguments = read_arguments(call.arguments)
    if call.tool and isinstance(arguments, dict):
        arguments = gateway.params_of(arguments)
    return {"": call.arguments[:MAX_SHOWN]} if isinstance(arguments, str) else arguments


def outcome_details(turn_id: str, correlation_id: str, outcome: ToolOutcome) -> dict[str, Any]:
    """What the protocol adds to the last step of a call."""
    details: dict[str, Any] = {"durationMs": outcome.duration_ms}
    if outcome.error is not None:
        details["error"] = {"code": outcome.error.code, "message": outcome.error.message}
    said_by_error = outcome.error is not None and texts.user_text(outcome) in ("", outcome.error.message)
    if outcome.state is CallState.SUCCEEDED or not said_by_error or _shown(outcome):
        details["result"] = _result(f"/v1/turns/{turn_id}/tool-calls/{correlation_id}", outcome)
    return details


def _result(url: str, outcome: ToolOutcome) -> dict[str, Any]:
    text = texts.user_text(outcome)
    truncated = outcome.truncated or len(text) > MAX_SHOWN
    result: dict[str, Any] = {"text": text[:MAX_SHOWN], "truncated": truncated, "media": [], "links": []}
    if truncated:
        result["textUrl"] = f"{url}/text"
    for number, block in enumerate(outcome.content):
        match block:
            case MediaBlock(kind):
                result["media"].append({"mimeType": kind, "url": f"{url}/content/{number}", "size": block.size})
            case LinkBlock(uri, name, kind, description, title):
                about = {"title": title, "mimeType": kind, "description": description}
                result["links"].append({"uri": uri, "name": name} | {k: v for k, v in about.items() if v})
            case TextBlock() | CutBlock():
                pass
    return result


def _shown(outcome: ToolOutcome) -> bool:
    return any(isinstance(block, MediaBlock | LinkBlock) for block in outcome.content)


def question_details(question: Question) -> dict[str, Any]:
    """What the protocol adds when a call waits for approval."""
    details: dict[str, Any] = {
        "arguments": question.arguments,
        "policy": question.policy,
        "hash": question.hash,
        "expiresAt": timestamp(question.expires_at),
    }
    return details | ({"title": question.title} if question.title else {})


def decision_details(decision: Decision) -> dict[str, Any]:
    """What the protocol adds when it was decided."""
    details: dict[str, Any] = {"decidedAt": timestamp(decision.at)}
    if decision.reason:
        details["reason"] = decision.reason
    return details | ({} if decision.arguments is None else {"arguments": decision.arguments})


def tool_message(call: ToolCall, outcome: ToolOutcome, edited: Mapping[str, Any] | None = None) -> ToolMessage:
    """The result as it stands in the conversation: in words, with what a model may be able to see or hear of it."""
    media = (block for block in outcome.content if isinstance(block, MediaBlock) and not block.user_only)
    cut = any(isinstance(block, CutBlock) for block in outcome.content)
    failed = outcome.state is not CallState.SUCCEEDED
    words = for_model(outcome, edited)
    return ToolMessage(call.tool_call_id, call.name, words, tuple(filter(texts.perceptible, media)), failed, cut)


def for_model(outcome: ToolOutcome, edited: Mapping[str, Any] | None = None) -> str:
    """The result in the words the model reads. It is always told the truth, and never an empty text.

    `edited` are the arguments that the call was run with, where they are not the model's own: it is told so, because
    its own message stays as it wrote it.
    """
    if edited is None:
        return _for_model(outcome)
    ran_with = msgspec.json.encode(edited).decode()
    return f"{_for_model(outcome)}\n\n(The user approved this call with other arguments: it was run with {ran_with})"


def _for_model(outcome: ToolOutcome) -> str:
    text = texts.model_text(outcome)
    if outcome.state is CallState.SUCCEEDED:
        if text.strip():
            return text
        for_user = _shown(outcome) or texts.user_text(outcome).strip()
        return f"{NOTHING[:-1]} for you: what it returned is shown to the user." if for_user else NOTHING
    error = outcome.error or ToolError(ErrorCode.UNKNOWN_ERROR, "")
    why = text if text.strip() else error.message
    said = f"Error {error.code}: {why or f'the call ended as {outcome.state}, for a reason that is not known'}"
    if error.code is ErrorCode.NOT_APPROVED:
        said += "\nDo not make this call again unless the user asks you to."
    if outcome.state is CallState.UNKNOWN:
        said = f"{said.rstrip('.')}. It may or may not have taken effect. Do not repeat it on your own: tell the user."
    return said


def progress_details(progress: float, total: float | None, message: str | None) -> Mapping[str, Any]:
    """What the protocol adds to a progress step."""
    details: dict[str, Any] = {"progress": progress}
    if total is not None:
        details["total"] = total
    if message:
        details["message"] = message
    return details
