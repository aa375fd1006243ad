"""Objects that several parts of OpenAI's API have. Pure."""

from typing import Any

PATHS = ("/v1/chat/completions", "/v1/models")
"""The beginnings of the paths that clients of OpenAI's API use."""


def error_object(message: str, code: str, *, kind: str = "server_error", param: str | None = None) -> dict[str, Any]:
    """An error as clients read it."""
    return {"message": message, "type": kind, "param": param, "code": code}
