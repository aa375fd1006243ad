"""A session as it travels from engine to engine: rows, each with a name under which a newer one replaces it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

NOTHING = msgspec.Raw()
"""Stands for JSON that is not there: such a field does not travel."""


class TurnRow(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """How a turn is doing, or how it ended. Times are Unix milliseconds."""

    turn_id: str
    status: str
    rounds: int
    reason: str | None
    input_tokens: int
    output_tokens: int
    ttft_ms: int | None
    error_code: str | None
    error_message: str | None
    traceparent: str | None
    created_at: int
    finished_at: int | None
    model: str | None = None
    chosen_model: str = ""
    tool_mode: str = ""


class CallRow(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A tool call of a message. `request` is what workers were or are to be asked; none for a call that cannot run, or
    not without the approval that `question` asks for."""

    correlation_id: str
    tool_call_id: str
    name: str
    server: str
    arguments: str
    created_at: int
    tool: str = ""
    extra: msgspec.Raw = NOTHING
    request: msgspec.Raw = NOTHING
    outcome: msgspec.Raw = NOTHING
    answered_at: int | None = None
    question: msgspec.Raw = NOTHING
    decision: msgspec.Raw = NOTHING


class MessageRow(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A message with the calls in it. `number` orders the messages of a session."""

    number: int
    turn_id: str
    role: str
    content: str
    created_at: int
    reasoning: str = ""
    interrupted: bool = False
    calls: tuple[CallRow, ...] = ()


class OutcomeRow(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What came of a call after its message was committed."""

    correlation_id: str
    outcome: msgspec.Raw
    answered_at: int


class ApprovalRow(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """What became of a call's question after its message was committed; `request` runs it, once it is approved."""

    correlation_id: str
    question: msgspec.Raw
    decision: msgspec.Raw = NOTHING
    request: msgspec.Raw = NOTHING


SessionRow = TurnRow | MessageRow | ApprovalRow | OutcomeRow

_TURN, _MESSAGE, _APPROVAL, _OUTCOME = "turn:", "message:", "approval:", "outcome:"


def encoded(rows: Iterable[SessionRow]) -> dict[str, bytes]:
    """The rows as JSON, by their names."""
    return {_name(row): msgspec.json.encode(row) for row in rows}


def decoded(fields: Mapping[str, bytes]) -> list[SessionRow]:
    """The rows among `fields`: turns first, then messages in their order, then approvals and outcomes.

    Raises:
        msgspec.DecodeError: a row is not one of this release.
    """
    turns = [msgspec.json.decode(data, type=TurnRow) for name, data in fields.items() if name.startswith(_TURN)]
    messages = [
        msgspec.json.decode(data, type=MessageRow) for name, data in fields.items() if name.startswith(_MESSAGE)
    ]
    messages.sort(key=lambda row: row.number)
    approvals = [
        msgspec.json.decode(data, type=ApprovalRow) for name, data in fields.items() if name.startswith(_APPROVAL)
    ]
    outcomes = [
        msgspec.json.decode(data, type=OutcomeRow) for name, data in fields.items() if name.startswith(_OUTCOME)
    ]
    return [*turns, *messages, *approvals, *outcomes]


def _name(row: SessionRow) -> str:
    match row:
        case TurnRow():
            return f"{_TURN}{row.turn_id}"
        case MessageRow():
            return f"{_MESSAGE}{row.turn_id}:{row.number}"
        case ApprovalRow():
            return f"{_APPROVAL}{row.correlation_id}"
        case OutcomeRow():
            return f"{_OUTCOME}{row.correlation_id}"


@dataclass(frozen=True, slots=True)
class SessionHead:
    """What is known of a session apart from what was said in it. Times are Unix milliseconds."""

    session_id: str
    subject: str
    title: str
    created_at: int
    updated_at: int
    running_turn_id: str | None = None


@dataclass(frozen=True, slots=True)
class SessionCopy:
    """A whole session. `version` rises with every change that was shared: a time of Redis, in ms."""

    head: SessionHead
    version: int
    rows: tuple[SessionRow, ...]
