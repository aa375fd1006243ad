"""Approvals: a person decides on a tool call that waits."""

import json
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import AfterValidator, Field

from dialog_engine.errors import ArgumentsRefusedError
from dialog_engine.http.auth import Subject
from dialog_engine.http.chat import Body, whole_characters
from dialog_engine.http.problems import ProblemError
from dialog_engine.http.services import Engine
from dialog_engine.tool_calls.approvals.rules import MAX_REASON, Approve, Given, Refuse, read_edited
from dialog_engine.tool_calls.results.views import decision_details

router = APIRouter(prefix="/v1", tags=["turns"])


class DecisionRequest(Body):
    """What a person decides about a tool call."""

    decision: Literal["approve", "refuse"]
    hash: Annotated[str | None, Field(description="Of the question that is answered; needed to approve.")] = None
    arguments: Annotated[
        dict[str, Any] | None, Field(description="Run it with these instead of the model's arguments.")
    ] = None
    reason: Annotated[
        str, Field(max_length=MAX_REASON, description="Why not; told to the model."), AfterValidator(whole_characters)
    ] = ""

    def given(self) -> Given:
        """It in the words of the core. Raises ArgumentsRefusedError, ProblemError."""
        if self.decision == "refuse":
            if self.arguments is not None:
                raise _misplaced("arguments", "arguments are for approving; leave them out to refuse")
            return Refuse(self.reason.strip())
        if not self.hash:
            raise _misplaced("hash", "hash is required to approve: it is in the event that asks")
        if self.reason:
            raise _misplaced("reason", "reason is for refusing; leave it out to approve")
        return Approve(self.hash, None if self.arguments is None else _as_sent(self.arguments))


@router.post("/turns/{turn_id}/approvals/{tool_call_id}")
async def decide(
    turn_id: str, tool_call_id: str, body: DecisionRequest, engine: Engine, subject: Subject
) -> dict[str, Any]:
    """Approve a tool call, as it is or with other arguments, or refuse it."""
    record, decision = await engine.approvals.decide(subject, turn_id, tool_call_id, body.given())
    call = record.call
    ids = {"turnId": turn_id, "toolCallId": call.tool_call_id, "correlationId": call.correlation_id}
    return ids | {"status": decision.status} | decision_details(decision)


def _misplaced(field: str, why: str) -> ProblemError:
    return ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "INVALID_REQUEST", why, field=field)


def _as_sent(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments under the same bounds as a model's. Python reads more than JSON allows: NaN, half characters."""
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, RecursionError) as error:
        raise ArgumentsRefusedError("arguments", f"they are not valid JSON: {error}") from None
    return read_edited(text)
