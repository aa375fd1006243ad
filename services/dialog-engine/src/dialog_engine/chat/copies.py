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


class CallRow(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A tool call of a message. `request` is what workers were or are to be asked; none for a call that cannot run."""

    correlation_id: str
    tool_call_id: str
    name: str
    server: str
    arguments: str
    created_at: int
    extra: msgspec.Raw = NOTHING
    request: msgspec.Raw = NOTHING
    outcome: msgspec.Raw = NOTHING
    answered_at: int | None = None


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


SessionRow = TurnRow | MessageRow | OutcomeRow

_TURN, _MESSAGE, _OUTCOME = "turn:", "message:", "outcome:"


def encoded(rows: Iterable[SessionRow]) -> dict[str, bytes]:
    """The rows as JSON, by their names."""
    return {_name(row): msgspec.json.encode(row) for row in rows}


def decoded(fields: Mapping[str, bytes]) -> list[SessionRow]:
    """The rows among `fields`: turns first, then messages in their order, then outcomes.

    Raises:
        msgspec.DecodeError: a row is not one of this release.
    """
    turns = [msgspec.json.decode(data, type=TurnRow) for name, data in fields.items() if name.startswith(_TURN)]
    messages = [
        msgspec.json.decode(data, type=MessageRow) for name, data in fields.items() if name.startswith(_MESSAGE)
    ]
    messages.sort(key=lambda row: row.number)
    outcomes = [
        msgspec.json.decode(data, type=OutcomeRow) for name, data in fields.items() if name.startswith(_OUTCOME)
    ]
    return [*turns, *messages, *outcomes]


def _name(row: SessionRow) -> str:
    match row:
        case TurnRow():
            return f"{_TURN}{row.turn_id}"
        case MessageRow():
            return f"{_MESSAGE}{row.turn_id}:{row.number}"
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
    """A whole session. `version` rises with every change that was shared."""

    head: SessionHead
    version: int
    rows: tuple[SessionRow, ...]
