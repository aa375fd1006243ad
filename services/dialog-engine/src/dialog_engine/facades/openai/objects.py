"""Objects that several parts of OpenAI's API have. Pure."""

from typing import Any

PATHS = ("/v1/chat/completions", "/v1/models", "/v1/responses", "/v1/conversations")
"""The beginnings of the paths that clients of OpenAI's API use."""


def error_object(message: str, code: str, *, kind: str = "server_error", param: str | None = None) -> dict[str, Any]:
    """An error as clients read it."""
    return {"message": message, "type": kind, "param": param, "code": code}


def created(turn_id: str) -> int:
    """When a turn began, in Unix seconds: its id begins with the time in milliseconds."""
    return int(turn_id.replace("-", "")[:12], 16) // 1000
