"""Interprets the text of a tool's result: a failure of some kind, or a value."""

import json
import re
from dataclasses import dataclass
from typing import Any, cast

MEANINGS = {
    "TIMEOUT": "it did not answer in time",
    "CANCELLED": "the call was cancelled",
    "OUTCOME_UNKNOWN": "nobody knows whether it ran: the call was interrupted after it had started. "
    "I did not repeat it, because it might then happen twice",
    "DISABLED": "tools are switched off",
    "OVERLOADED": "too much is waiting there already",
    "LOST": "the call was lost before it ran",
    "INVALID_ARGUMENTS": "it did not accept the arguments",
    "TOOL_NOT_FOUND": "there is no such tool any more",
    "TOOL_EXECUTION_FAILED": "it reported an error",
    "REPEATED": "it was made with the same result again and again, so it was not run once more",
    "NOT_APPROVED": "it needed approval and did not get it, so it was not run",
    "APPROVAL_REQUIRED": "it needs an approval that it did not have, so it was not run",
    "PERMISSION_DENIED": "it was not allowed",
    "NETWORK_ERROR": "it could not be reached",
    "RESOURCE_NOT_FOUND": "what it needs was not found",
    "PROMPT_NOT_FOUND": "there is no such prompt",
    "MODEL_ERROR": "the model was at fault",
    "UNKNOWN_ERROR": "something went wrong",
}

_CODE = re.compile(rf"\b({'|'.join(MEANINGS)})\b")
_CODE_FIRST = re.compile(rf"[\s\[(*_`\"'#-]*(?:error|failed)?[\s:\[(*_`\"'-]*{_CODE.pattern}", re.IGNORECASE)
_SAYS_ERROR = re.compile(r"[\s\[(*_`\"'#-]*(?:tool )?(?:error|failed|failure|exception)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Failure:
    """A failed call as its result describes it; `code` if the result contains one."""

    code: str | None
    message: str

    @property
    def meaning(self) -> str:
        return MEANINGS.get(self.code or "", "it reported an error")


def failure(text: str) -> Failure | None:
    """The failure that a result reports, or None: JSON with `error`, or a text that begins with a code or "error"."""
    value = parse(text)
    if isinstance(value, dict):
        return _failure_in(cast("dict[str, Any]", value), text)
    code = _CODE_FIRST.match(text)
    if code and code[1].isupper():
        return Failure(code[1], text.strip())
    if _SAYS_ERROR.match(text):
        code = _CODE.search(text.split("\n", 1)[0])
        return Failure(code[1] if code else None, text.strip())
    return None


def parse(text: str) -> Any:
    """The value in a result: parsed JSON, without a `{"result": …}` wrapper, or else the text."""
    try:
        value: Any = json.loads(text)
    except json.JSONDecodeError:
        return text
    match value:
        case {"result": inner} if len(value) == 1:
            return inner
        case _:
            return value


def _failure_in(value: dict[str, Any], text: str) -> Failure | None:
    match value:
        case {"error": {"code": str(code), **rest}}:
            return Failure(code.upper(), str(rest.get("message", text)))
        case {"error": {"message": str(message)}} | {"error": str(message)} if message:
            code = value.get("code")
            return Failure(code.upper() if isinstance(code, str) else None, message)
        case {"isError": True} | {"is_error": True}:
            return Failure(None, text)
        case _:
            return None
