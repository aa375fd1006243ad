"""The sessions of people who signed in on the page: sealed values that the browser keeps in cookies."""

import os
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import msgspec
from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from plugins_contract.signing import read_keys

MAX_COOKIE_CHARS = 4_000
"""Browsers refuse longer cookies."""


class PageSession(msgspec.Struct, frozen=True, tag="session"):
    """A person who has signed in. `ends_at` is in Unix seconds."""

    subject: str
    name: str
    roles: tuple[str, ...]
    ends_at: float


class PendingSignIn(msgspec.Struct, frozen=True, tag="sign-in"):
    """A sign-in that the provider has not answered yet. `state` and `nonce` come back, `verifier` is for PKCE."""

    state: str
    nonce: str
    verifier: str
    ends_at: float


T = TypeVar("T", PageSession, PendingSignIn)


class Seal:
    """Encrypts and authenticates values (Fernet). The first key seals, all open.

    Each key is the SHA-256 of a line of the file; without a file there is a random one until the engine stops.
    """

    def __init__(self, path: Path | None = None, *, now: Callable[[], float] = time.time) -> None:
        """Raises ValueError when the file cannot be used."""
        secrets: Sequence[bytes] = [key.encode() for key in read_keys(path)] if path else [os.urandom(32)]
        self._box = MultiFernet([Fernet(urlsafe_b64encode(sha256(secret).digest())) for secret in secrets])
        self._now = now

    def seal(self, value: PageSession | PendingSignIn) -> str:
        """The value as text for a cookie."""
        return self._box.encrypt(msgspec.json.encode(value)).decode()

    def unseal(self, text: str, kind: type[T]) -> T | None:
        """The value; None when it was not sealed here, is of another kind, or has ended."""
        if not text.isascii():  # as only a forged cookie is
            return None
        try:
            value = msgspec.json.decode(self._box.decrypt(text), type=kind)
        except (InvalidToken, msgspec.DecodeError):
            return None
        return value if value.ends_at > self._now() else None
