"""The audit: an append-only record of who did what and when. It holds ids, names and digests, and no texts.

What is recorded together with a change of the store is written in the transaction of that change (`storage/audit.py`).
Other parts record an event by the port `AuditLog`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class AuditAction(StrEnum):
    """What was done. Stable: exports and filters match on these words."""

    SIGNED_IN = "sign_in"
    SIGNED_OUT = "sign_out"
    TURN_STARTED = "turn.started"
    MESSAGE_QUEUED = "message.queued"
    """A message waits for the turns before it; `turn_id` is what it becomes."""
    MESSAGE_EDITED = "message.edited"
    MESSAGE_RELEASED = "message.released"
    """Its user has said that it is sent, whatever has become of the turn before it."""
    MESSAGE_WITHDRAWN = "message.withdrawn"
    ITEMS_ADDED = "items.added"
    """A client has added messages to a conversation, which come before the next question."""
    ITEM_DELETED = "item.deleted"
    """Such a message was deleted, before a question came."""
    RESPONSE_DELETED = "response.deleted"
    """A client has deleted a response of OpenAI's API: `turn_id` is not found by its id any more."""
    CALL_ACCEPTED = "call.accepted"
    """The request of a tool call was committed; from now on a worker, or the client that has the tool, may run it."""
    CALL_ENDED = "call.ended"
    """A tool call has its outcome. One that was never accepted was not sent to any MCP server."""
    CALL_APPROVED = "call.approved"
    CALL_DENIED = "call.denied"
    CALL_ANSWERED = "call.answered"
    """The client has sent the result of a call of its own tool."""
    APPROVAL_EXPIRED = "call.approval_expired"
    QUESTION_ASKED = "question.asked"
    """A server asks a person in the middle of a call."""
    QUESTION_ENDED = "question.ended"
    """`outcome` says how."""
    READ_REFUSED = "read.refused"
    """A resource or prompt was asked for that the subject may not read; `tool` names it."""
    SESSION_DELETED = "session.deleted"
    DATA_ERASED = "data.erased"
    DATA_EXPORTED = "data.exported"


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One event. Empty fields do not apply to its action.

    `subject` is whose data or turn it concerns, and who acted; `key_id` names the credential that was used, never the
    credential itself. `tool` is the name that the model calls it by. `digest` identifies the arguments of a call:
    see `storage.audit.AuditTrail.digest`.
    """

    action: AuditAction
    subject: str
    key_id: str = ""
    session_id: str = ""
    turn_id: str = ""
    correlation_id: str = ""
    server: str = ""
    tool: str = ""
    digest: str = ""
    outcome: str = ""


class AuditLog(Protocol):
    """Records events that change nothing else in the store."""

    async def record(self, event: AuditEvent) -> None:
        """Commit the event.

        Raises:
            StorageUnavailableError: it is not recorded; the caller refuses what it was about to do.
        """
        ...
