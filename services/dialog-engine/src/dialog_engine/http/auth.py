"""Who is asking: API keys, and what stands in for them on one's own machine."""

import hashlib
import hmac
from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Request
from pydantic import SecretStr

from dialog_engine.http.problems import ProblemError

LOCAL = "local"
"""The subject of all requests when no keys are set; the engine listens on loopback only then."""


class Authenticator:
    """Finds the subject of a request. Keys are compared by hash, each in constant time."""

    def __init__(self, keys: Mapping[str, SecretStr]) -> None:
        self._digests = {name: _digest(key.get_secret_value()) for name, key in keys.items()}

    def subject(self, authorization: str | None) -> str:
        """Whose request it is.

        Raises:
            ProblemError: 401, when keys are set and this is none of them.
        """
        if not self._digests:
            return LOCAL
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() == "bearer":
            given = _digest(key.strip())
            for name, digest in self._digests.items():
                if hmac.compare_digest(given, digest):
                    return name
        raise ProblemError(
            HTTPStatus.UNAUTHORIZED,
            "UNAUTHORIZED",
            "send Authorization: Bearer <key>, with a key of API_KEYS",
            field="Authorization",
            headers={"WWW-Authenticate": "Bearer"},
        )


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


async def current_subject(request: Request) -> str:
    """The subject of `request`, from the authenticator of its app. (A plain function would be run in a thread.)"""
    authenticator: Authenticator = request.app.state.authenticator
    return authenticator.subject(request.headers.get("authorization"))


Subject = Annotated[str, Depends(current_subject)]
