"""How calls and their outcomes are shown to users: as steps, with details that are ready to be JSON."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dialog_engine.model import (
    ApprovalStatus,
    ApprovalStep,
    CallAnswered,
    CallHeld,
    CallProgressed,
    CallQueued,
    CallRunning,
    CallUpdate,
    ToolCall,
    ToolStatus,
    ToolStep,
    Turn,
    WaitsFor,
)
from dialog_engine.tool_calls.arguments import read_arguments
from dialog_engine.tool_calls.exposure import gateway
from dialog_engine.tool_calls.results.texts import USER_MAX_CHARS, has_media_or_links, user_text
from dialog_engine.tool_calls.values import Asked, Decision, Question
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, CutBlock, LinkBlock, MediaBlock, TextBlock, ToolOutcome

_NOT_EXECUTED = {
    ErrorCode.DISABLED,
    ErrorCode.OVERLOADED,
    ErrorCode.NOT_APPROVED,
    ErrorCode.REPEATED,
    ErrorCode.APPROVAL_REQUIRED,
}


def rfc3339(milliseconds: int) -> str:
    """Unix milliseconds as RFC 3339 text."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def status_of(outcome: ToolOutcome) -> ToolStatus:
    """The status of the last step of a call with this outcome."""
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
    """The arguments of the tool that the call resolves to. Text that is no JSON object gets an empty key."""
    arguments = read_arguments(call.arguments)
    if call.tool and isinstance(arguments, dict):
        arguments = gateway.params_of(arguments)
    return {"": call.arguments[:USER_MAX_CHARS]} if isinstance(arguments, str) else arguments


def outcome_details(turn_id: str, correlation_id: str, outcome: ToolOutcome) -> dict[str, Any]:
    """The details of the last step of a call."""
    details: dict[str, Any] = {"durationMs": outcome.duration_ms}
    if outcome.state_lost:
        details["stateLost"] = True
    if outcome.error is not None:
        details["error"] = {"code": outcome.error.code, "message": outcome.error.message}
    repeats_error = outcome.error is not None and user_text(outcome) in ("", outcome.error.message)
    if outcome.state is CallState.SUCCEEDED or not repeats_error or has_media_or_links(outcome):
        details["result"] = _result(f"/v1/turns/{turn_id}/tool-calls/{correlation_id}", outcome)
    return details


def _result(url: str, outcome: ToolOutcome) -> dict[str, Any]:
    text = user_text(outcome)
    truncated = outcome.truncated or len(text) > USER_MAX_CHARS
    result: dict[str, Any] = {"text": text[:USER_MAX_CHARS], "truncated": truncated, "media": [], "links": []}
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


def question_details(question: Question) -> dict[str, Any]:
    """The details of a step that asks for approval."""
    details: dict[str, Any] = {
        "arguments": question.arguments,
        "policy": question.policy,
        "hash": question.hash,
        "expiresAt": rfc3339(question.expires_at),
    }
    return details | named_details(question)


def client_details(question: Question) -> dict[str, Any]:
    """The details of a step that waits for the client that runs the tool."""
    return {"waitsFor": WaitsFor.CLIENT, "expiresAt": rfc3339(question.expires_at)}


def named_details(question: Question) -> dict[str, Any]:
    """What the server calls the tool that a step with an approval is about, where that is known."""
    named = {"tool": question.tool, "title": question.title}
    return {key: value for key, value in named.items() if value}


def decision_details(decision: Decision) -> dict[str, Any]:
    """The details of a step that shows a decision."""
    details: dict[str, Any] = {"decidedAt": rfc3339(decision.at)}
    if decision.reason:
        details["reason"] = decision.reason
    return details | ({} if decision.arguments is None else {"arguments": decision.arguments})


def progress_details(progress: float, total: float | None, message: str | None) -> Mapping[str, Any]:
    """The details of a progress step."""
    details: dict[str, Any] = {"progress": progress}
    if total is not None:
        details["total"] = total
    if message:
        details["message"] = message
    return details


class Steps:
    """Makes the events about the calls of one round. `servers` maps correlation ids to the servers that run them."""

    def __init__(self, turn: Turn, round_number: int, servers: Mapping[str, str]) -> None:
        self._turn = turn
        self._round = self.round = round_number
        self._servers = servers
        self._reached: dict[str, tuple[ToolStatus, Mapping[str, Any]]] = {}
        self._held: dict[str, WaitsFor | None] = {}

    def pending(self, call: ToolCall, title: str | None) -> ToolStep:
        """The first step: the call is committed."""
        details: dict[str, Any] = {"arguments": shown_arguments(call)}
        if title:
            details["title"] = title
        return self._step(call, ToolStatus.PENDING, details)

    def update(self, call: ToolCall, update: CallUpdate) -> ToolStep:
        """The step for an update. Each step says what the call waits for; when only that changes, the last step is
        repeated with it."""
        reached: tuple[ToolStatus, Mapping[str, Any]]
        match update:
            case CallAnswered(outcome=outcome):
                return self.finished(call, outcome)
            case CallHeld(waits_for=waits_for):
                self._held[call.correlation_id] = waits_for
                reached = self._reached.get(call.correlation_id, (ToolStatus.PENDING, {}))
            case CallQueued(position=position):
                reached = ToolStatus.QUEUED, {} if position is None else {"position": position}
            case CallRunning(attempt=attempt):
                reached = ToolStatus.RUNNING, {"attempt": attempt}
            case CallProgressed(_, progress, total, message):
                reached = ToolStatus.PROGRESS, progress_details(progress, total, message)
        self._reached[call.correlation_id] = status, details = reached
        held = self._held.get(call.correlation_id)
        return self._step(call, status, {**details, "waitsFor": held} if held else details)

    def finished(self, call: ToolCall, outcome: ToolOutcome) -> ToolStep:
        """The last step: the call has its outcome."""
        details = outcome_details(self._turn.turn_id, call.correlation_id, outcome)
        return self._step(call, status_of(outcome), details)

    def asked(self, asked: Asked) -> ApprovalStep | ToolStep:
        """The call waits for a person's approval, or for the client that runs it, which is its first step."""
        if asked.question.by_client:
            details = {"arguments": asked.question.arguments} | client_details(asked.question)
            return self._step(asked.call, ToolStatus.PENDING, details)
        return self._approval(asked.call, ApprovalStatus.ASKED, question_details(asked.question))

    def decided(self, call: ToolCall, decision: Decision) -> ApprovalStep:
        """The approval of the call was decided."""
        return self._approval(call, decision.status, decision_details(decision))

    def _approval(self, call: ToolCall, status: ApprovalStatus, details: Mapping[str, Any]) -> ApprovalStep:
        return ApprovalStep(status, call, self._servers.get(call.correlation_id, ""), self._round, details)

    def _step(self, call: ToolCall, status: ToolStatus, details: Mapping[str, Any]) -> ToolStep:
        return ToolStep(status, call, self._servers.get(call.correlation_id, ""), self._round, details)
