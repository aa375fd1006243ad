"""The steps of a tool call, as the user is told of them."""

from collections.abc import Mapping
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
from dialog_engine.tool_calls import views
from dialog_engine.tool_calls.questions import Asked, Decision
from plugins_contract.outcomes import ToolOutcome


class Steps:
    """Makes the steps of the calls of one round. `servers` maps correlation ids to the servers that run them."""

    def __init__(self, turn: Turn, round_number: int, servers: Mapping[str, str]) -> None:
        self._turn = turn
        self._round = round_number
        self._servers = servers
        self._reached: dict[str, tuple[ToolStatus, Mapping[str, Any]]] = {}
        self._held: dict[str, WaitsFor | None] = {}

    def pending(self, call: ToolCall, title: str | None) -> ToolStep:
        """The model asked for it, and it is committed."""
        details: dict[str, Any] = {"arguments": views.shown_arguments(call)}
        if title:
            details["title"] = title
        return self._step(call, ToolStatus.PENDING, details)

    def update(self, call: ToolCall, update: CallUpdate) -> ToolStep:
        """Something became of it. What it waits for is said with each step, and, when that changes, with the last one
        again."""
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
                reached = ToolStatus.PROGRESS, views.progress_details(progress, total, message)
        self._reached[call.correlation_id] = status, details = reached
        held = self._held.get(call.correlation_id)
        return self._step(call, status, {**details, "waitsFor": held} if held else details)

    def finished(self, call: ToolCall, outcome: ToolOutcome) -> ToolStep:
        """Its last step."""
        details = views.outcome_details(self._turn.turn_id, call.correlation_id, outcome)
        return self._step(call, views.status_of(outcome), details)

    def asked(self, asked: Asked) -> ApprovalStep:
        """It waits for a person's approval."""
        return self._approval(asked.call, ApprovalStatus.ASKED, views.question_details(asked.question))

    def decided(self, call: ToolCall, decision: Decision) -> ApprovalStep:
        """It was decided on."""
        return self._approval(call, decision.status, views.decision_details(decision))

    def _approval(self, call: ToolCall, status: ApprovalStatus, details: Mapping[str, Any]) -> ApprovalStep:
        return ApprovalStep(status, call, self._servers.get(call.correlation_id, ""), self._round, details)

    def _step(self, call: ToolCall, status: ToolStatus, details: Mapping[str, Any]) -> ToolStep:
        return ToolStep(status, call, self._servers.get(call.correlation_id, ""), self._round, details)
