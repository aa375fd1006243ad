"""The rules of answers: what fits a form, and what follows from the answers of a round. Pure, and in bounded time."""

import math
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from dialog_engine.model import QuestionStatus
from dialog_engine.tool_calls.questions.values import Answers, Asking
from plugins_contract.encryption import Cipher, open_request, seal_request
from plugins_contract.errors import ErrorCode
from plugins_contract.messages import (
    ROUND_VERSION,
    ExecutionClass,
    ToolCallRequested,
    approve,
    decode_request,
)
from plugins_contract.outcomes import CallState, ToolOutcome
from plugins_contract.questions import NextRound, ServerQuestion, choices, round_id

MAX_TEXT = 10_000
"""Characters of one text of an answer."""
_EMAIL = re.compile(r"[^@\s]{1,64}@[^@\s.]+(\.[^@\s.]+)*")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_ACTIONS = {QuestionStatus.ANSWERED: "accept", QuestionStatus.DECLINED: "decline", QuestionStatus.CANCELLED: "cancel"}


def filled(question: ServerQuestion, content: Mapping[str, Any] | None) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """The content of an accepted question, with the defaults of fields that were left out; and what does not fit, by
    field."""
    if question.form is None:
        return None, {"content": "only a form has content"} if content else {}
    given = dict(content or {})
    fields: dict[str, dict[str, Any]] = question.form.get("properties", {})
    found = {
        name: given[name] if name in given else field["default"]
        for name, field in fields.items()
        if name in given or "default" in field
    }
    problems = {name: "the form has no such field" for name in given if name not in fields}
    problems |= {name: "is required" for name in question.form.get("required", []) if name not in found}
    problems |= {name: why for name, value in found.items() if (why := _problem(fields[name], value))}
    return found, problems


def _problem(field: Mapping[str, Any], value: Any) -> str:
    match field.get("type"):
        case "string":
            return _text_problem(field, value)
        case "boolean":
            return "" if isinstance(value, bool) else "must be true or false"
        case "array":
            return _several_problem(field, value)
        case kind:
            return _number_problem(field, value, whole=kind == "integer")


def _text_problem(field: Mapping[str, Any], value: Any) -> str:
    if not isinstance(value, str):
        return "must be a text"
    if (offered := choices(field)) is not None:
        return "" if value in offered else "must be one of those that are offered"
    least, most = field.get("minLength", 0), min(field.get("maxLength", MAX_TEXT), MAX_TEXT)
    if not least <= len(value) <= most:
        return f"must have {least} to {most} characters"
    fits, what = _FORMATS.get(field.get("format", ""), (lambda _: True, ""))
    return "" if fits(value) else f"must be {what}"


def _number_problem(field: Mapping[str, Any], value: Any, *, whole: bool) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return "must be a number"
    if whole and value != int(value):
        return "must be a whole number"
    least, most = field.get("minimum"), field.get("maximum")
    if (least is not None and value < least) or (most is not None and value > most):
        return f"must be from {'any' if least is None else least} to {'any' if most is None else most}"
    return ""


def _several_problem(field: Mapping[str, Any], value: Any) -> str:
    if not isinstance(value, list):
        return "must be a list"
    given, offered = cast("list[Any]", value), choices(field) or []
    least, most = field.get("minItems", 0), min(field.get("maxItems", len(offered)), len(offered))
    if not least <= len(given) <= most:
        return f"must have {least} to {most} of those that are offered"
    if not all(isinstance(each, str) and each in offered for each in given) or len({*given}) < len(given):
        return "must be those that are offered, each once"
    return ""


def _reads(read: Callable[[str], object]) -> Callable[[str], bool]:
    def reads(text: str) -> bool:
        try:
            read(text)
        except ValueError:
            return False
        return True

    return reads


def _address(text: str) -> None:
    if not urlsplit(text).scheme or any(character.isspace() for character in text):
        raise ValueError(text)


def _day(text: str) -> None:
    if not _DATE.fullmatch(text):
        raise ValueError(text)
    date.fromisoformat(text)


def _moment(text: str) -> None:
    _day(text[:10])
    if text[10:11] not in ("T", "t") or datetime.fromisoformat(text).tzinfo is None:
        raise ValueError(text)


_FORMATS: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "email": (lambda text: _EMAIL.fullmatch(text[:400]) is not None, "an email address"),
    "uri": (_reads(_address), "an address with its scheme, such as https://example.com"),
    "date": (_reads(_day), "a date: YYYY-MM-DD"),
    "date-time": (_reads(_moment), "a time with its zone, such as 2026-11-26T18:00:00Z"),
}


def next_request(
    asking: Asking, answers: Answers, *, cipher: Cipher, deadline: int, again: bool = False
) -> ToolCallRequested:
    """The request of the next round, with the answers and exactly the server's state. `again`: the call is to run from
    its beginning.

    Raises:
        UnsupportedEventError: the request of the round before cannot be decrypted.
    """
    before = open_request(decode_request(asking.request.encode()), cipher)
    asked, number = asking.asked, 1 + (before.next_round.number if before.next_round else 1)
    call = before.correlation_id.partition(":")[0]
    channel = before.response_channel.removesuffix(before.correlation_id)
    responses: dict[str, Any] = {}
    for place, question in enumerate(asked.questions, 1):
        answer = answers[place]
        if answer.status not in _ACTIONS:
            continue  # nobody answered, and the server does not wait
        responses[question.key] = {"action": _ACTIONS[answer.status]}
        if answer.content is not None:
            responses[question.key]["content"] = answer.content
    request = msgspec.structs.replace(
        before,
        event_version=ROUND_VERSION,
        correlation_id=round_id(call, number),
        response_channel=channel + round_id(call, number),
        deadline=deadline,
        execution_class=ExecutionClass.ONCE,
        sealed=msgspec.UNSET,
        next_round=NextRound(number) if again else NextRound(number, responses, asked.state, asked.holder),
    )
    request = approve(request, before.approved.by if before.approved else "")
    return seal_request(request, cipher)


def dropped(why: str) -> ToolOutcome:
    """The outcome of a call whose turn goes on without the answer to its question."""
    message = f"{why} while its server waited for an answer: it did not go on"
    return ToolOutcome.failure(CallState.CANCELLED, ErrorCode.CANCELLED, message)


def unanswered(seconds: int) -> ToolOutcome:
    """The outcome of a call whose question nobody answered within so many seconds."""
    message = f"nobody answered the question of its server within {seconds} seconds, so the call did not go on"
    return ToolOutcome.failure(CallState.FAILED, ErrorCode.INPUT_EXPIRED, message)


def lost(asking: Asking) -> ToolOutcome | None:
    """The outcome of a call that was open at a worker, or in a session, that has ended; None if it may run again."""
    if decode_request(asking.request.encode()).execution_class is ExecutionClass.REPEATABLE:
        return None
    message = "its server asked a question in the middle of it, and the session ended before anybody answered"
    return ToolOutcome.failure(
        CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, f"{message}: it is not known whether it took effect"
    )
